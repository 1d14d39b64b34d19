"""A trash folder, `.trash/`, that takes what would otherwise be deleted, with the reason in a line.

A move is one rename into a folder of its own:

    checkpoints/.trash/20261123-201500-3fa9c1/900
    checkpoints/.trash/20261123-201500-3fa9c1/reason.txt

so that a wrong verdict (a disk that was away for a moment, a file of a later version) costs a
rename back, and no work. `empty` deletes what is no longer needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import time
from collections.abc import Collection

from luthier.storage.atomic import one_line_errors, sync_directory

TRASH = ".trash"
_REASON = "reason.txt"


@dataclasses.dataclass(frozen=True)
class Trashed:
    """Something in the trash.

    Args:
      path: Where it is now.
      reason: Reason of the move, in one line.
      time: When it was moved, in seconds since 1970 by the file system's clock.
    """

    path: pathlib.Path
    reason: str
    time: float


def move_to_trash(path: str | os.PathLike[str], reason: str) -> pathlib.Path:
    """Move a file or a folder into `.trash/` beside it.

    Args:
      path: The file or folder; a symbolic link is moved itself, not its target.
      reason: The reason, in one line.

    Returns:
      Where it is now.

    Raises:
      RunError: It is not there, or the disk refuses; `path` is where it was.

    Example:
      >>> from luthier import storage
      >>> storage.write_atomically("note.txt", "To be")
      >>> _ = storage.move_to_trash("note.txt", "no longer needed")
      >>> [trashed.reason for trashed in storage.list_trash(".")]
      ['no longer needed']
    """
    path = pathlib.Path(path)
    with one_line_errors("move to the trash", path):
        # First, so that a path that does not exist leaves no empty entry behind.
        os.lstat(path)
        entry = _new_entry(path.parent / TRASH)
        try:
            # The reason first: a process that is killed here leaves a reason, and nothing lost.
            (entry / _REASON).write_text(" ".join(reason.split()) + "\n", encoding="utf-8")
            target = entry / (path.name if path.name != _REASON else f"{_REASON}.moved")
            os.rename(path, target)
        except OSError:
            shutil.rmtree(entry, ignore_errors=True)
            raise
    sync_directory(entry)
    sync_directory(path.parent)
    return target


def move_contents_to_trash(
    directory: str | os.PathLike[str], reason: str, first: str, kept: Collection[str] = ()
) -> pathlib.Path:
    """Move everything in a folder into one entry of its own `.trash/`; the folder itself stays.

    Args:
      directory: The folder.
      reason: The reason, in one line.
      first: The name in it that goes before all others.
      kept: Names in it that stay; the trash stays, too.

    Returns:
      The entry of the trash.

    Raises:
      RunError: The disk refuses; a part was moved then, and a second call moves the rest.

    Example:
      >>> import os, pathlib
      >>> from luthier import storage
      >>> os.mkdir("old")
      >>> _ = pathlib.Path("old/config.json").write_text("{}")
      >>> entry = storage.move_contents_to_trash("old", "it was moved", first="config.json")
      >>> os.listdir("old"), (entry / "config.json").exists()
      (['.trash'], True)
    """
    place = pathlib.Path(directory)
    with one_line_errors("move to the trash", place):
        entry = _new_entry(place / TRASH)
        (entry / _REASON).write_text(" ".join(reason.split()) + "\n", encoding="utf-8")
        names = sorted(os.listdir(place), key=lambda name: (name != first, name))
        for name in names:
            if name not in (*kept, TRASH):
                os.rename(place / name, entry / name)
    sync_directory(entry)
    sync_directory(place)
    return entry


def copy_to_trash(path: str | os.PathLike[str], reason: str) -> pathlib.Path:
    """Keep a file in `.trash/` beside it, as it is now; it stays where it is.

    For a file that is replaced next: a rename would leave a moment without it.

    Args:
      path: The file; it must be replaced, and not written to.
      reason: The reason, in one line.

    Returns:
      Where it is kept.

    Raises:
      RunError: It is not there, or the disk refuses.

    Example:
      >>> from luthier import storage
      >>> storage.write_atomically("note.txt", "To be")
      >>> storage.copy_to_trash("note.txt", "before a change").read_text()
      'To be'
    """
    path = pathlib.Path(path)
    with one_line_errors("copy to the trash", path):
        entry = _new_entry(path.parent / TRASH)
        target = entry / path.name
        try:
            (entry / _REASON).write_text(" ".join(reason.split()) + "\n", encoding="utf-8")
            try:
                # A hard link keeps the content for free, and only because whoever asked promises to
                # replace the file: writing into it would change the kept copy, too.
                os.link(path, target)
            except OSError:  # a disk without hard links
                shutil.copy2(path, target)
        except OSError:
            shutil.rmtree(entry, ignore_errors=True)
            raise
    sync_directory(entry)
    return target


def _new_entry(trash: pathlib.Path) -> pathlib.Path:
    trash.mkdir(exist_ok=True)
    while True:
        # A folder for each move, with a random part: two things of the same name (step 900 was
        # damaged twice) must not collide, and a rename onto an existing folder fails.
        entry = trash / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
        with contextlib.suppress(FileExistsError):
            entry.mkdir()
            return entry


def list_trash(directory: str | os.PathLike[str]) -> list[Trashed]:
    """Return the content of the trash of a directory, the oldest first.

    Args:
      directory: The directory that `path` of `move_to_trash` lay in; it may have no trash.

    Returns:
      The entries, each with its path, the reason, and the time in seconds since 1970.

    Example:
      >>> from luthier import storage
      >>> storage.list_trash(".")
      []
    """
    found = []
    for entry in _entries(pathlib.Path(directory, TRASH)):
        try:
            reason = (entry / _REASON).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            reason = ""
        with contextlib.suppress(OSError):
            for content in sorted(entry.iterdir()):
                if content.name != _REASON:
                    found.append(Trashed(content, reason, entry.stat().st_mtime))
    return sorted(found, key=lambda trashed: (trashed.time, trashed.path))


def empty(directory: str | os.PathLike[str], keep: Collection[str] = ()) -> int:
    """Delete what lies in the trash of a directory; return how many entries were deleted.

    Never fails: what cannot be deleted now is deleted another time.

    Args:
      directory: The directory that `path` of `move_to_trash` lay in; it may have no trash.
      keep: Names (of what was moved) that stay.

    Returns:
      The number of entries that were deleted.

    Example:
      >>> from luthier import storage
      >>> storage.empty(".")
      0
    """
    trash = pathlib.Path(directory, TRASH)
    deleted = 0
    for entry in _entries(trash):
        with contextlib.suppress(OSError):
            if any((entry / name).exists() for name in keep):
                continue
            shutil.rmtree(entry)
            deleted += 1
    with contextlib.suppress(OSError):
        trash.rmdir()  # only where nothing is left in it
    return deleted


def _entries(trash: pathlib.Path) -> list[pathlib.Path]:
    try:
        return sorted(entry for entry in trash.iterdir() if not entry.is_symlink())
    except OSError:  # there is none, or the disk refuses: nothing is lost by leaving it alone
        return []


def empty_before_step(directory: str | os.PathLike[str], saved_step: int) -> int:
    """Delete what a durable save has made superfluous; return how many entries were deleted.

    What belongs to a step has it in its name (`900`, `metrics.913.jsonl`): it stays until a later
    step is saved. What belongs to no step goes with any save.

    Args:
      directory: The directory that `path` of `move_to_trash` lay in; it may have no trash.
      saved_step: The step that is durably saved now.
    """
    names = [entry.path.name for entry in list_trash(directory)]
    return empty(directory, keep=[name for name in names if _step_of(name) >= saved_step])


def _step_of(name: str) -> int:
    # The largest number in the name, and -1 without one, which is less than every step: what
    # belongs to no step is always emptied.
    return max((int(part) for part in re.split(r"\D+", name) if part), default=-1)
