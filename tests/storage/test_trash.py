"""What is moved to the trash can be moved back, and is deleted only when it was asked for."""

import errno
import os

import pytest

from luthier import storage
from luthier.errors import RunError


def _checkpoint(path):
    path.mkdir()
    (path / "state").write_text("arrays")
    return path


def test_a_moved_folder_keeps_its_content_and_its_reason(tmp_path):
    moved = storage.move_to_trash(_checkpoint(tmp_path / "900"), "it is\ndamaged")
    assert not (tmp_path / "900").exists()
    assert moved.is_relative_to(tmp_path / ".trash")
    assert moved.name == "900"
    assert (moved / "state").read_text() == "arrays"
    [trashed] = storage.list_trash(tmp_path)
    assert (trashed.path, trashed.reason) == (moved, "it is damaged")
    storage.move_to_trash(_checkpoint(tmp_path / "900"), "again")  # the same name twice
    assert len(storage.list_trash(tmp_path)) == 2
    assert storage.empty(tmp_path) == 2
    assert not (tmp_path / ".trash").exists()


def test_what_is_to_be_kept_stays(tmp_path):
    old = storage.move_to_trash(_checkpoint(tmp_path / "1"), "old")
    new = storage.move_to_trash(_checkpoint(tmp_path / "2"), "new")
    assert storage.empty(tmp_path, keep={"2"}) == 1
    assert (old.exists(), new.exists()) == (False, True)
    assert storage.empty(tmp_path, keep={"2"}) == 0
    assert new.exists()


def test_what_cannot_be_moved_stays(tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"cannot move to the trash .*gone: No such file"):
        storage.move_to_trash(tmp_path / "gone", "why")

    def refuse(*arguments):
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(RunError, match="Read-only"):
        storage.move_to_trash(_checkpoint(tmp_path / "3"), "why")
    assert (tmp_path / "3" / "state").exists()
    assert storage.list_trash(tmp_path) == []


def test_a_link_is_moved_itself(tmp_path):
    target = _checkpoint(tmp_path / "target")
    (tmp_path / "link").symlink_to(target)
    moved = storage.move_to_trash(tmp_path / "link", "a link")
    assert moved.is_symlink()
    storage.empty(tmp_path)
    assert (target / "state").exists()


def test_a_copy_is_what_the_file_was_before_it_was_replaced(tmp_path):
    path = tmp_path / "study.json"
    path.write_text("before")
    kept = storage.copy_to_trash(path, "it is repaired")
    storage.write_atomically(path, "after")
    assert (kept.read_text(), path.read_text()) == ("before", "after")
    [trashed] = storage.list_trash(tmp_path)
    assert (trashed.path, trashed.reason) == (kept, "it is repaired")


@pytest.fixture
def no_links(monkeypatch):
    """A disk without hard links."""

    def refuse(*arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


def test_a_disk_without_hard_links_keeps_a_copy(tmp_path, no_links):
    path = tmp_path / "study.json"
    path.write_text("before")
    kept = storage.copy_to_trash(path, "why")
    path.write_text("after")
    assert kept.read_text() == "before"


def test_what_cannot_be_copied_leaves_nothing_behind(tmp_path, no_links):
    with pytest.raises(RunError, match=r"cannot copy to the trash .*gone: No such file"):
        storage.copy_to_trash(tmp_path / "gone", "why")
    assert storage.list_trash(tmp_path) == []
    assert storage.empty(tmp_path) == 0
    assert not (tmp_path / ".trash").exists()


def test_what_lost_its_reason_is_listed_and_emptied_like_the_rest(tmp_path):
    moved = storage.move_to_trash(_checkpoint(tmp_path / "900"), "why")
    (moved.parent / "reason.txt").unlink()
    [trashed] = storage.list_trash(tmp_path)
    assert (trashed.path, trashed.reason) == (moved, "")
    assert storage.empty(tmp_path) == 1
