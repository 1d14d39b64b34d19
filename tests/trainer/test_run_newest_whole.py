"""Several processes agree on which checkpoint is whole, and trust it together."""

import pathlib
import shutil

import jax.numpy as jnp
import pytest

from luthier import records
from luthier.checkpoint import Checkpoints, Store
from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.files import DiskFiles
from luthier.errors import CheckpointError
from luthier.parallel import distributed
from luthier.trainer.run import _newest_whole
from tests.parallel.distributed.conftest import processes, service

__all__ = ["processes", "service"]

STEPS = (10, 20, 30)


@pytest.fixture
def saved(tmp_path):
    """A folder with three checkpoints."""
    with Store(tmp_path / "checkpoints", Checkpoints(keep_latest=3)) as store:
        for step in STEPS:
            store.save(step, {"parameters/kernel": jnp.full((64, 64), step, jnp.float32)})
    return tmp_path / "checkpoints"


def _flip(checkpoint):
    path = max((p for p in checkpoint.rglob("d/*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _views(saved, count):
    """Return a folder for each host: what each sees of the same storage."""
    views = [saved.with_name(f"host-{index}") for index in range(count)]
    for view in views:
        shutil.copytree(saved, view)
    return views


def _ask(processes, folders):
    """Return step, damage and what is trusted of each process."""

    def ask(index):
        with Store(folders[index], Checkpoints(keep_latest=3)) as store:
            directory = records.RunDirectory(folders[index].parent)
            step, damage = _newest_whole(store, directory)
            return step, damage, store._trusted == (store.read(step).files if step else None)

    return processes(len(folders), ask)


@pytest.mark.parametrize("count", [2, 4])
def test_a_bit_that_the_first_host_sees_flipped_sends_all_to_the_same_step(processes, saved, count):
    views = _views(saved, count)
    _flip(views[0] / "30")
    found = _ask(processes, views)
    assert found == [found[0]] * count
    step, (problem,), trusted = found[0]
    assert step == 20
    assert problem.startswith(f"{views[0] / '30'} is damaged: ")
    assert "differs from what was written; other checkpoints: 20, 10" in problem
    assert trusted


def test_two_damaged_checkpoints_are_both_reported_and_the_third_is_taken(processes, saved):
    _flip(saved / "30")
    (saved / "20" / "commit.json").write_text("{}")
    found = _ask(processes, [saved] * 3)
    assert [step for step, _, _ in found] == [10] * 3
    assert found[1:] == found[:1] * 2
    assert len(found[0][1]) == 2


def test_none_that_is_whole_is_none_for_all(processes, saved):
    for step in STEPS:
        _flip(saved / str(step))
    found = _ask(processes, [saved] * 2)
    assert found == [found[0]] * 2
    assert found[0][0] is None
    assert len(found[0][1]) == 3


def test_a_host_whose_commit_file_is_another_does_not_go_on_by_itself(processes, saved):
    views = _views(saved, 2)
    (views[1] / "30" / "commit.json").write_text("{}")
    first, second = _ask(processes, views)
    assert first[0] == 30
    assert isinstance(second, CheckpointError)
    assert f"{views[1] / '30'} is damaged: commit.json cannot be read" in str(second)


def test_a_host_that_misses_the_checkpoint_does_not_go_on_by_itself(processes, saved):
    views = _views(saved, 2)
    shutil.rmtree(views[1] / "30")
    first, second = _ask(processes, views)
    assert first[0] == 30
    assert isinstance(second, CheckpointError)
    assert "has no checkpoint of step 30" in str(second)
    assert pathlib.Path(views[1] / "20").is_dir()


def test_every_file_is_read_once_and_the_bytes_are_shared_by_the_processes(
    processes, tmp_path, monkeypatch
):
    read, readers = [], []
    check, checksum = commit_lib.check, DiskFiles.checksum

    def spy(self, name, sync=False):
        read.append(self._path / name)
        return checksum(self, name, sync)

    def spy_on_check(directory, commit, *part):
        if directory.name == "10" and [] not in part:
            readers.append(distributed.process_index())
        return check(directory, commit, *part)

    with Store(tmp_path) as store:
        for step in (10, 20):
            arrays = {f"a{n}": jnp.full((64, 64), n + step, jnp.float32) for n in range(4)}
            store.save(step, arrays)
            store.wait()
    files = commit_lib.read(tmp_path / "10").files
    _flip(tmp_path / "20")
    monkeypatch.setattr(DiskFiles, "checksum", spy)
    monkeypatch.setattr(commit_lib, "check", spy_on_check)
    found = _ask(processes, [tmp_path] * 4)
    assert [step for step, _, _ in found] == [10] * 4
    assert len({damage[0] for _, damage, _ in found}) == 1
    whole = [path for path in read if path.is_relative_to(tmp_path / "10")]
    assert sorted(whole) == sorted(tmp_path / "10" / path for path in files)
    assert sorted(readers) == [0, 1, 2, 3]


def test_shares_are_fair_and_prefer_what_a_process_wrote():
    sizes = {f"arrays/ocdbt.process_{k}/d/{n}": (100, 1) for k in range(4) for n in range(3)}
    sizes |= {"arrays/manifest.ocdbt": (5, 1), "arrays/array_metadatas/process_7": (6, 1)}
    parts = [commit_lib.share(_of(sizes), process, 4) for process in range(4)]
    assert sorted(path for part in parts for path in part) == sorted(sizes)
    for process, part in enumerate(parts):
        assert {commit_lib.writer(path) for path in part} <= {process, None, 7}
    for count in (2, 3, 5):  # other processes than those that wrote it
        parts = [commit_lib.share(_of(sizes), process, count) for process in range(count)]
        assert sorted(path for part in parts for path in part) == sorted(sizes)
        loads = [sum(sizes[path][0] for path in part) for part in parts]
        assert max(loads) <= 1.25 * sum(loads) / count + 100
    alone = {"arrays/ocdbt.process_0/d/1": (900, 1), "arrays/ocdbt.process_0/d/2": (900, 1)}
    assert all(len(commit_lib.share(_of(alone), process, 2)) == 1 for process in range(2))


def _of(files):
    return commit_lib.Commit(1, {}, {}, {}, {}, False, files)
