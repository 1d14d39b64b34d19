"""The folder of a run's checkpoints: its states on the disk, and whether they have room."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import secrets
import shutil

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.files import Folder
from luthier.checkpoint.policy import SavedCheckpoint
from luthier.errors import CheckpointError, Problem, VersionError
from luthier.storage.trash import empty_before_step, move_to_trash
from luthier.terminal import format_bytes


def require_space(directory: str | os.PathLike[str], bytes_needed: int) -> None:
    """Refuse to start a run whose checkpoints would fill the disk after hours.

    Args:
      directory: Where checkpoints will be; need not exist yet.
      bytes_needed: The most bytes that they will need.

    Raises:
      CheckpointError: Less than that is free.

    Example:
      >>> from luthier import checkpoint
      >>> checkpoint.require_space(".", bytes_needed=1)
    """
    place = pathlib.Path(directory).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < bytes_needed:
        raise CheckpointError(
            Problem(
                f"{directory}: checkpoints need {format_bytes(bytes_needed)} "
                f"and {format_bytes(free)} is free",
                path="checkpoints",
                remedy="free some space, choose another records.directory, or keep fewer",
            )
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a fault of the place


# The folders of a run's checkpoints.
#
#   150/                a checkpoint: the files of Orbax, and commit.json
#   150.replaced/       the former checkpoint of that step, until the new one is committed
#   200.saving-TOKEN/   a save that is running; no other process has its token
#   200, 200.anything   without commit.json: the remains of a save that was killed
#   .trash/             moved aside by recovery, until something later is committed

# Orbax writes this file last: a folder that has it holds all arrays, although nobody sealed it.
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
_REPLACED = ".replaced"
# `900` and `900.replaced` can be checkpoints; `900.saving-1f2e3d4c`, and Orbax's own temporary
# names that begin so, never are. What begins otherwise is not ours and is never touched.
_NAME = re.compile(rf"(\d+)({re.escape(_REPLACED)})?")
_OURS = re.compile(r"\d+(\..*)?")


class Directory:
    """Finds, moves and deletes checkpoints, so that a kill at any moment leaves whole ones.

    Only one process may change it at a time; any number may look.

    Args:
      path: The directory; made at the first save.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    def committed(self) -> dict[int, pathlib.Path]:
        """Return the checkpoints by step; one that is being replaced counts until it is.

        Returns:
          Folders by step.
        """
        found = {}
        # The longest names first, so that `900` overwrites `900.replaced` where both are committed:
        # the new one is whole, and only the deletion of the old one is missing.
        for path in sorted(self._entries(), key=lambda path: -len(path.name)):
            match = _NAME.fullmatch(path.name)
            if match and (path / commit_lib.FILE).is_file():
                found[int(match[1])] = path
        return found

    def saved(self) -> list[SavedCheckpoint]:
        """Return steps and metrics of the checkpoints; without metrics where they are damaged.

        Returns:
          Steps and metrics, in order.
        """
        saved = []
        for step, path in self.committed().items():
            try:
                saved.append(SavedCheckpoint(step, commit_lib.read(path).metrics))
            except CheckpointError:
                saved.append(SavedCheckpoint(step, {}))
            except (OSError, VersionError):
                # Nobody knows what it is worth: no rule may delete it.
                saved.append(SavedCheckpoint(step, {}, is_known=False))
        return saved

    def unsealed(self) -> list[int]:
        """Return the steps of folders that hold all of Orbax's files and no commit file.

        Returns:
          Steps, in order.
        """
        committed = self.committed()
        return sorted(
            int(path.name)
            for path in self._entries()
            if path.name.isdecimal()
            and int(path.name) not in committed
            and (path / _ORBAX_METADATA).is_file()
        )

    def new_token(self) -> str:
        """Return what the saves of one writer have in their names.

        Returns:
          A random number.
        """
        return secrets.token_hex(4)

    def saving(self, step: int, token: str) -> pathlib.Path:
        """Return the folder in which a step is saved before it is committed.

        A writer that was paused and superseded continues to write when it wakes up, for as long
        as its threads do not look at the lock. In a folder of its own that harms nobody.

        Args:
          step: Optimizer steps done.
          token: Random; the same in all processes of the run.

        Returns:
          The folder, which does not exist yet.
        """
        return self.path / f"{step}.saving-{token}"

    # Until the rename the former checkpoint counts under its own name, after it under `.replaced`
    # (see `committed`), and from the commit file on the new one counts. There is no moment without
    # one.
    def put_in_place(self, saving: Folder, step: int) -> pathlib.Path:
        """Give a finished save its name; a checkpoint of that step is moved aside.

        Args:
          saving: The result of `saving`; all of its files are on the disk.
          step: Its step.

        Returns:
          The folder of the checkpoint.
        """
        path = self.path / str(step)
        if (path / commit_lib.FILE).is_file():
            os.rename(path, self._replaced(step))
        elif path.exists():
            self._discard_remains(path)
        os.rename(saving, path)
        return path

    def withdraw(self, saving: Folder) -> None:
        """Remove what a save wrote that may not be committed, and what it made to hold that.

        Where the run's folder was moved, TensorStore has made the old path again.

        Args:
          saving: The folder of the save.
        """
        for path in self.path.glob(f"{saving.name}*"):
            _delete(path)
        with contextlib.suppress(OSError):  # they are not empty: the folder is another writer's
            self.path.rmdir()
            self.path.parent.rmdir()

    def clean(self) -> None:
        """Remove the remains of killed saves; move back what was to be replaced and was not.

        What holds all arrays of a step beyond every checkpoint goes to the trash: its commit file
        may have been lost, and not just not written.
        """
        committed = self.committed()
        for path in self._entries():
            # A whole checkpoint under another name (`900.bad`) is somebody's copy, not remains.
            is_copy = not _NAME.fullmatch(path.name) and (path / commit_lib.FILE).is_file()
            if _OURS.fullmatch(path.name) and path not in committed.values() and not is_copy:
                self._discard_remains(path)
        # The save that was to replace it was killed before its commit: its remains are gone by now,
        # and the former checkpoint gets its name back.
        for step, path in committed.items():
            if path.name != str(step):
                os.rename(path, path.with_name(str(step)))

    # A disk that is full stays full while the remains of the save that filled it lie there.
    def remove_failed(self, step: int) -> None:
        """Remove what a save of this process left, which failed.

        Args:
          step: Step of the checkpoint.
        """
        for path in self._entries():
            ours = _OURS.fullmatch(path.name) and int(path.name.split(".")[0]) == step
            if ours and not (path / commit_lib.FILE).is_file():
                _delete(path)

    def move_to_trash(self, step: int, reason: str) -> None:
        """Move a checkpoint aside; it is removed when a later step is committed.

        Args:
          step: Step of the checkpoint.
          reason: The reason, in one line.
        """
        if path := self.committed().get(step):
            move_to_trash(path, reason)

    def empty_trash(self, step: int) -> None:
        """Remove from the trash what belongs to earlier steps than one that is committed now.

        Args:
          step: Step of the checkpoint.
        """
        empty_before_step(self.path, step)

    # A folder with all of Orbax's files, later than every checkpoint, may be hours of work whose
    # commit file a disk has lost. It is kept in the trash, from where a person can take it.
    def _discard_remains(self, path: pathlib.Path) -> None:
        newest = max(self.committed(), default=-1)
        if path.name.isdecimal() and int(path.name) > newest and (path / _ORBAX_METADATA).is_file():
            move_to_trash(path, f"it holds all arrays, and no {commit_lib.FILE} that seals them")
        else:
            _delete(path)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of that step.

        Args:
          step: Step of the checkpoint.
        """
        if path := self.committed().get(step):
            _delete(path)

    def delete_replaced(self, step: int) -> None:
        """Delete the former checkpoint of a step, once the new one is committed.

        Args:
          step: Step of the checkpoint.
        """
        _delete(self._replaced(step))

    def _replaced(self, step: int) -> pathlib.Path:
        return self.path / f"{step}{_REPLACED}"

    def _entries(self) -> list[pathlib.Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []


def _delete(path: pathlib.Path) -> None:
    # First the file that makes it a checkpoint: half a checkpoint must not pass for one.
    if path.is_dir():
        (path / commit_lib.FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
