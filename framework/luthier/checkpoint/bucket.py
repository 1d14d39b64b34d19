"""The checkpoints of a run in an object store.

An object store has no rename. A save is therefore written where it stays, into a folder that no
other save uses, and one object that is written last, on condition that it is not there, makes it a
checkpoint:

    900.019ac2f7e1b0-1f2e3d4c-3/       a save: its step, the time and a random number of its
                                       writer, and its number among those of the writer
      arrays/..., commit_success.txt   the files of Orbax, which every process writes for itself
      commit.json                      written last; the folder is a checkpoint
      trashed.json                     in its place: set aside, until a later step is committed
    900/                               a checkpoint that a run's mirror uploaded

Of two checkpoints of one step the later counts. A writer that was paused and superseded can at
worst commit one more whole checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import secrets
import time

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.bucket_path import BucketPath, delete_all, patient, prepare_orbax
from luthier.checkpoint.files import Folder
from luthier.checkpoint.policy import SavedCheckpoint
from luthier.errors import CheckpointError, RunError, VersionError

TRASHED = "trashed.json"
_ORBAX_COMMIT = "commit_success.txt"
_NAME = re.compile(r"(\d+)(?:\.([0-9a-f]{12})-[0-9a-f]{8}-(\d+))?")
_NUM_THREADS = 8


class BucketDirectory:
    """Finds and deletes the checkpoints of a run in an object store; see `directory.Directory`.

    Args:
      url: The folder of the checkpoints.
    """

    def __init__(self, url: str):
        prepare_orbax()
        self.path = BucketPath(url.rstrip("/"))
        self._bucket = patient(url)
        self._num_saves = 0

    def _folders(self) -> dict[str, set[str]]:
        """Return the names of the objects of each save, by its folder."""
        found: dict[str, set[str]] = {}
        for key in self._bucket.list():
            folder, _, name = key.partition("/")
            if name and _NAME.fullmatch(folder):
                found.setdefault(folder, set()).add(name)
        for folder, names in found.items():
            # Not every store lists what was just written, but all of them return it. Such a
            # checkpoint would be taken for the remains of a save, and be deleted.
            if names & {commit_lib.FILE, TRASHED}:
                continue
            if self._bucket.read(f"{folder}/{commit_lib.FILE}").data is not None:
                names.add(commit_lib.FILE)
        return found

    def committed(self) -> dict[int, BucketPath]:
        """Return the checkpoints by step; of two of one step the later.

        Returns:
          Folders by step.
        """
        return {step: self.path / folder for step, folder in _newest(self._folders()).items()}

    def saved(self) -> list[SavedCheckpoint]:
        """Return steps and metrics of the checkpoints; see `Directory.saved`.

        Returns:
          Steps and metrics, in order.
        """

        def look(item: tuple[int, BucketPath]) -> SavedCheckpoint:
            step, path = item
            try:
                return SavedCheckpoint(step, commit_lib.read(path).metrics)
            except VersionError:
                return SavedCheckpoint(step, {}, is_known=False)
            except CheckpointError:
                return SavedCheckpoint(step, {})
            except RunError:  # the store refuses now: no rule may delete it
                return SavedCheckpoint(step, {}, is_known=False)

        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
            return list(pool.map(look, sorted(self.committed().items())))

    def unsealed(self) -> list[int]:
        """Return the steps of saves that Orbax finished and that were never committed.

        Returns:
          Steps, in order.
        """
        return sorted(
            _step(folder)
            for folder, names in self._folders().items()
            if _ORBAX_COMMIT in names and not names & {commit_lib.FILE, TRASHED}
        )

    def new_token(self) -> str:
        """Return what the saves of one writer have in their names.

        Returns:
          A time, later than that of every save that is there, and a random number.
        """
        # Of two checkpoints of one step the later counts, whatever the clocks of their machines
        # were: hence later than every other name, and not only later than now.
        names = (_NAME.fullmatch(folder) for folder in self._folders())
        times = [int(match[2], 16) for match in names if match and match[2]]
        now = max([time.time_ns() // 1_000_000, *(one + 1 for one in times)])
        return f"{now:012x}-{secrets.token_hex(4)}"

    def saving(self, step: int, token: str) -> BucketPath:
        """Return the folder in which a step is saved, and where it stays.

        Args:
          step: Optimizer steps done.
          token: Of `new_token`; the same in all processes of the run.

        Returns:
          The folder; every call returns another one.
        """
        self._num_saves += 1
        return self.path / f"{step}.{token}-{self._num_saves}"

    def put_in_place(self, saving: Folder, step: int) -> Folder:
        """Return the folder of a finished save: it is in its place.

        Args:
          saving: The result of `saving`.
          step: Its step.

        Returns:
          The same folder.
        """
        del step
        return saving

    def withdraw(self, saving: Folder) -> None:
        """Remove what a save wrote that may not be committed.

        Args:
          saving: The folder of the save.
        """
        delete_all(self._bucket, self._bucket.list(f"{saving.name}/"))

    def clean(self) -> None:
        """Remove the remains of killed saves, and checkpoints that a later one has replaced."""
        folders = self._folders()
        kept = set(_newest(folders).values())
        for folder, names in folders.items():
            if folder not in kept and TRASHED not in names:
                self._delete(folder, names)

    def remove_failed(self, step: int) -> None:
        """Remove what saves of a step left that were never committed.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and not names & {commit_lib.FILE, TRASHED}:
                self._delete(folder, names)

    def move_to_trash(self, step: int, reason: str) -> None:
        """Set a checkpoint aside; it is removed when a later step is committed.

        Args:
          step: Step of the checkpoint.
          reason: The reason, in one line.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and commit_lib.FILE in names:
                commit = self._bucket.read(f"{folder}/{commit_lib.FILE}").data or b""
                note = {"reason": reason, "commit": commit.decode("utf-8", "replace")}
                self._bucket.write(f"{folder}/{TRASHED}", json.dumps(note, indent=1).encode())
                self._bucket.delete(f"{folder}/{commit_lib.FILE}")

    def empty_trash(self, step: int) -> None:
        """Remove what was set aside of earlier steps than one that is committed now.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if TRASHED in names and commit_lib.FILE not in names and _step(folder) < step:
                self._delete(folder, names)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of that step.

        Args:
          step: Step of the checkpoint.
        """
        for folder, names in self._folders().items():
            if _step(folder) == step and commit_lib.FILE in names:
                self._delete(folder, names)

    def delete_replaced(self, step: int) -> None:
        """Delete the former checkpoint of a step, once the new one is committed.

        Args:
          step: Step of the checkpoint.
        """
        folders = self._folders()
        newest = _newest(folders).get(step)
        for folder, names in folders.items():
            if _step(folder) == step and folder != newest and commit_lib.FILE in names:
                self._delete(folder, names)

    def _delete(self, folder: str, names: set[str]) -> None:
        # First the file that makes it a checkpoint: half a checkpoint must not pass for one. Also
        # where it was not listed: a store may be slow to list it, or an answer was lost.
        self._bucket.delete(f"{folder}/{commit_lib.FILE}")
        delete_all(self._bucket, (f"{folder}/{name}" for name in names - {commit_lib.FILE}))


def _step(folder: str) -> int:
    return int(folder.partition(".")[0])


def _newest(folders: dict[str, set[str]]) -> dict[int, str]:
    """Return the folder of each committed step: the one with the latest name."""
    newest: dict[int, tuple[tuple[str, int], str]] = {}
    for folder, names in folders.items():
        match = _NAME.fullmatch(folder)
        if match and commit_lib.FILE in names:
            order = (match[2] or "", int(match[3] or 0))
            newest[int(match[1])] = max(newest.get(int(match[1]), (order, folder)), (order, folder))
    return {step: folder for step, (_, folder) in newest.items()}
