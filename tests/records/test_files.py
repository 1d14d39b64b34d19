from __future__ import annotations

import errno
import math
import os

import pytest

from luthier.errors import RunError
from luthier.records import write_json
from luthier.storage import read_json, run_error, write_atomically, write_together


def test_a_text_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "eins")
    write_atomically(path, "zwei ✓")
    assert path.read_text(encoding="utf-8") == "zwei ✓"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_text_and_no_other_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*a\.txt: No space left.*free space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_files_written_together_wait_for_the_disk_once_each_and_once_for_their_names(
    tmp_path, monkeypatch
):
    synced, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda given: synced.append(given) or fsync(given))
    write_together(tmp_path, {"a.txt": "eins ✓", "b.txt": "zwei"})
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "eins ✓"
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "zwei"
    assert len(synced) == 3


def test_of_files_written_together_the_one_that_fails_is_named(tmp_path):
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*b\.txt: Is a directory"):
        write_together(tmp_path, {"a.txt": "eins", "b.txt": "zwei"})


@pytest.mark.parametrize(
    "path", ["missing/a.txt", "file/a.txt"], ids=["no directory", "not a directory"]
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        write_atomically(tmp_path / path, "x")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / path) in str(caught.value)


def test_json_is_strict(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, 2.5]})
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", math.nan)
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5]}


def test_missing_and_damaged_json(tmp_path):
    assert read_json(tmp_path / "none.json", default=3) == 3
    (tmp_path / "bad.json").write_text('{"a": ')
    with pytest.raises(RunError, match=r"bad\.json is damaged"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(RunError, match="cannot read"):
        read_json(tmp_path)


def test_an_error_without_words_still_says_something():
    assert "PermissionError" in str(run_error("write", "x", PermissionError()))
