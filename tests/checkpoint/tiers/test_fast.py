from __future__ import annotations

import json
import shutil

import pytest

from luthier.checkpoint import FastTier
from luthier.durations import Steps
from luthier.errors import CheckpointError


@pytest.fixture
def tier(tmp_path):
    return FastTier(str(tmp_path / "fast"), Steps(10))


def test_a_run_has_a_folder_of_its_own_and_finds_it_again(tier, tmp_path):
    first = tier.folder(tmp_path / "a", primary=True)
    assert first.is_dir()
    assert tier.folder(tmp_path / "a", primary=True) == first
    assert tier.folder(tmp_path / "a", primary=False) == first
    assert tier.folder(tmp_path / "b", primary=True) != first
    shutil.rmtree(first)
    assert not first.exists()
    assert tier.folder(tmp_path / "a", primary=True) == first


def test_a_process_that_does_not_see_it_says_so(tier, tmp_path):
    folder = tier.folder(tmp_path / "a", primary=True)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError) as caught:
        tier.folder(tmp_path / "a", primary=False)
    assert str(caught.value) == (
        f"checkpoints.fast.directory: {folder} is not visible to every process; "
        "choose a directory that all of them see, or use a HostTier"
    )


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    tier = FastTier(str(tmp_path / "file" / "fast"), Steps(10))
    with pytest.raises(CheckpointError, match="Not a directory; choose a directory that can be"):
        tier.folder(tmp_path / "a", primary=True)


@pytest.mark.parametrize("name", ["../x", "/etc", "", "run-../x", None, 3])
def test_a_note_with_a_name_that_is_not_ours_is_replaced(tier, tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "fast_tier.json").write_text(json.dumps({"name": name}))
    with pytest.raises(CheckpointError, match="missing or damaged"):
        tier.folder(tmp_path / "a", primary=False)
    folder = tier.folder(tmp_path / "a", primary=True)
    assert folder.parent == tmp_path / "fast"
