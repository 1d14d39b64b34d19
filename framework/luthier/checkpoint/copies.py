"""Copies of the checkpoints of a run at another place, on a disk or in an object store.

The files are copied as they are, and each is read back and compared with the size and the checksum
that its checkpoint lists. `commit.json` comes last, so that nothing is a checkpoint there before
all of them are whole.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.bucket_path import MANIFEST
from luthier.checkpoint.commit import Commit
from luthier.checkpoint.files import Folder, files_of, folder
from luthier.checkpoint.store import open_directory
from luthier.errors import CheckpointError, Problem

_NUM_THREADS = 4
# A file is in memory whole on its way to an object store, so large ones go one by one.
_SMALL_BYTES = 1 << 24


class CheckpointCopy:
    """A copy of all checkpoints of a run.

    Args:
      source: The folder of the checkpoints, or its URL; it need not exist.
      destination: The folder of the copies, or its URL. What is there and not a part of the copy
        is deleted.

    Raises:
      CheckpointError: A commit file is damaged.
      VersionError: Another version of luthier wrote it.
      RunError: A store refuses.
      OSError: A disk refuses.
    """

    def __init__(self, source: str | os.PathLike[str], destination: str | os.PathLike[str]):
        self._destination = folder(destination)
        # Of two checkpoints of a step in an object store the newest counts, and is copied; the copy
        # has the step alone for a name, which every place knows.
        committed: dict[int, Folder] = dict(open_directory(os.fspath(source)).committed())
        self._folders = dict(sorted(committed.items()))
        self._commits = {step: commit_lib.read(path) for step, path in self._folders.items()}

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return list(self._commits)

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        files = (commit.files for commit in self._commits.values())
        return sum(size for each in files for size, _ in each.values())

    def write(
        self, check: Callable[[], None], report: Callable[[str], None] = lambda text: None
    ) -> None:
        """Copy and compare all files but those that make the copies checkpoints.

        What an earlier copy left there, and is as it should be, is not written again.

        Args:
          check: Raises where this process may not write any more; called before each file.
          report: Is given a phrase about each checkpoint.

        Raises:
          CheckpointError: A checkpoint is damaged, or a copy did not arrive whole.
          RunError: A store refuses.
          OSError: A disk refuses.
        """
        wanted = {f"{step}/{name}" for step, one in self._commits.items() for name in one.files}
        files = files_of(self._destination)
        there = files.paths()
        # The commits first: a folder of which another part is missing must not pass for whole.
        for name in sorted(set(there) - wanted, key=lambda name: not _is_commit(name)):
            check()
            files.delete(name)
        for step, commit in self._commits.items():
            report(f"copying the checkpoint of step {step}")
            self._write_one(step, commit, wanted.intersection(there), check)

    def _write_one(
        self, step: int, commit: Commit, there: set[str], check: Callable[[], None]
    ) -> None:
        source, destination = self._folders[step], self._destination / str(step)
        reader, writer = files_of(source), files_of(destination)

        def copy(name: str) -> None:
            check()
            expected = commit.files[name]
            if f"{step}/{name}" in there and writer.checksum(name) == expected:
                return
            try:
                writer.write(name, reader.read(name))
            except FileNotFoundError:
                raise _damaged(source, f"{name} is missing") from None
            if writer.checksum(name, sync=True) == expected:
                return
            # Read once more, to name the place that is to blame.
            if reader.checksum(name) != expected:
                raise _damaged(source, f"{name} differs from what was written")
            what = f"{destination}/{name} did not arrive whole"
            raise CheckpointError(Problem(what, remedy="rerun the command"))

        small, large, last = list[str](), list[str](), list[str]()
        for name, (size, _) in commit.files.items():
            # A manifest is checked together with the files that it lists, so it comes after them.
            is_manifest = name.rpartition("/")[2] == MANIFEST
            (last if is_manifest else small if size <= _SMALL_BYTES else large).append(name)
        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(copy, small))
        for name in [*large, *last]:
            copy(name)

    def seal(self, check: Callable[[], None]) -> None:
        """Make the copies checkpoints.

        Args:
          check: As of `write`.

        Raises:
          RunError: A store refuses.
          OSError: A disk refuses.
        """
        for step, source in self._folders.items():
            check()
            text = files_of(source).read_text(commit_lib.FILE)
            files_of(self._destination / str(step)).write_last(commit_lib.FILE, text)


def _is_commit(name: str) -> bool:
    return name.rpartition("/")[2] == commit_lib.FILE


def _damaged(source: Folder, why: str) -> CheckpointError:
    remedy = "nothing was moved: take that folder out of the run, and rerun the command"
    return CheckpointError(Problem(f"{source} is damaged: {why}", remedy=remedy))
