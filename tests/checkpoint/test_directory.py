from __future__ import annotations

import pytest

from luthier.checkpoint import Commit, Directory
from luthier.checkpoint import commit as commit_lib


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path / "checkpoints")


def add(directory, name, content="x", committed=True, **metrics):
    path = directory.path / name
    path.mkdir(parents=True)
    (path / "data").write_text(content)
    if committed:
        step = int(name.split(".")[0])
        commit_lib.write(path, Commit(step, {}, {}, metrics, {}, False))


def content(directory, step):
    return (directory.committed()[step] / "data").read_text()


def test_what_is_not_there_is_empty(directory):
    assert directory.committed() == {}
    directory.clean()
    assert not directory.path.exists()


def test_only_committed_ones_are_found(directory):
    add(directory, "100")
    add(directory, "200", committed=False)
    add(directory, "200.orbax-checkpoint-tmp", committed=False)
    (directory.path / "notes.txt").write_text("mine")
    assert list(directory.committed()) == [100]


def test_clean_deletes_remains_and_nothing_else(directory):
    test_only_committed_ones_are_found(directory)
    directory.clean()
    assert sorted(path.name for path in directory.path.iterdir()) == ["100", "notes.txt"]


def saved(directory, content, token="ab"):
    """A save that is on the disk as a whole, and not committed."""
    path = directory.saving(100, token)
    add(directory, path.name, content, committed=False)
    return path


def test_a_kill_while_replacing_keeps_the_former(directory):
    add(directory, "100", "old")
    saving = saved(directory, "new")
    assert content(directory, 100) == "old"
    directory.put_in_place(saving, 100)  # and killed before the commit
    assert content(directory, 100) == "old"
    directory.clean()
    assert content(directory, 100) == "old"
    assert [path.name for path in directory.path.iterdir()] == ["100"]


def test_the_new_one_replaces_the_former_when_it_is_committed(directory):
    add(directory, "100", "old")
    path = directory.put_in_place(saved(directory, "new"), 100)
    commit_lib.write(path, Commit(100, {}, {}, {}, {}, False))
    assert content(directory, 100) == "new"
    directory.delete_replaced(100)
    assert [path.name for path in directory.path.iterdir()] == ["100"]


def test_a_torn_one_makes_room(directory):
    add(directory, "100", "torn", committed=False)
    path = directory.put_in_place(saved(directory, "whole"), 100)
    assert (path / "data").read_text() == "whole"
    assert list(directory.path.iterdir()) == [path]


def test_a_save_that_lost_its_lock_takes_its_own_parts_away_and_nothing_else(directory):
    mine, other = saved(directory, "mine"), saved(directory, "another writer's", token="cd")
    (directory.path / f"{mine.name}.orbax-checkpoint-tmp").mkdir()
    directory.withdraw(mine)
    assert list(directory.path.iterdir()) == [other]
    directory.withdraw(other)  # the run's folder was moved: what is left is what the save made
    assert not directory.path.parent.exists()


def test_delete_makes_it_no_checkpoint_first(directory, monkeypatch):
    add(directory, "100")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    directory.delete(100)
    assert (directory.path / "100" / "data").exists()
    assert directory.committed() == {}


def test_metrics_of_a_damaged_one_are_none(directory):
    add(directory, "100", loss=1.0)
    add(directory, "200", loss=2.0)
    (directory.path / "200" / commit_lib.FILE).write_text("{")
    assert {s.step: dict(s.metrics) for s in directory.saved()} == {100: {"loss": 1.0}, 200: {}}
