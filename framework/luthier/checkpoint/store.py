"""The checkpoint store: saving, restoring and checking, and the versions that wrote a checkpoint.

A save passes through these states, and a kill between any two of them leaves older checkpoints
whole and at most remains that the next start removes (`Directory.clean`):

1. Orbax writes into `STEP.saving-TOKEN`, in the background.
2. Every process flushes and checksums its own files and reports to the primary.
3. The primary checks the fence and renames the folder to `STEP`; a checkpoint of the same step
   moves to `STEP.replaced` first.
4. The primary writes `commit.json`, and the folder is a checkpoint.
5. What the policy does not keep is deleted, and so are `STEP.replaced` and the trash of earlier
   steps.

What is wrong with a checkpoint has three verdicts: it is damaged (a start may fall back to an older
one), it cannot be read now (nothing may be done to it), or another version wrote it (a start ends).
"""

from __future__ import annotations

import concurrent.futures
import errno
import functools
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from luthier.checkpoint import arrays as arrays_lib
from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.commit import Commit
from luthier.checkpoint.directory import Directory
from luthier.checkpoint.files import Folder
from luthier.checkpoint.policy import Checkpoints
from luthier.errors import (
    EXIT_FAILED,
    CheckpointError,
    LockLost,
    LuthierError,
    Problem,
    RunError,
    StoreError,
    StoreUnavailable,
)
from luthier.faults import chain, is_transient
from luthier.storage import unfenced
from luthier.storage.bucket import is_refusal, is_url, refusal

if TYPE_CHECKING:
    import jax

    from luthier.checkpoint.bucket import BucketDirectory
    from luthier.parallel.distributed import Rounds


_PACKAGES = "flax", "grain", "jax", "jaxlib", "luthier", "numpy", "optax", "orbax-checkpoint"


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions of the packages that decide what a checkpoint is."""
    import importlib.metadata

    versions = {}
    # Installed versions and not `__version__`, which would import every package.
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def version_notices(saved: Mapping[str, str]) -> list[str]:
    """Return one line for each change of version that may change what follows."""
    now = installed_versions()
    # Packages that a later version records, and this one does not know, are passed over.
    changed = {name: old for name, old in saved.items() if name in now and now[name] != old}
    reasons = {
        "grain": "it promises to restore the order of the data only within one version",
        "jax": "the same program may round differently",
        "jaxlib": "the same program may round differently",
        "flax": "layers may compute something else",
        "optax": "updates may be computed otherwise",
        "numpy": "random data may differ",
        "orbax-checkpoint": "",
        "luthier": "",
    }
    return [
        f"the checkpoint was written with {name} {old}, this is {now[name]}"
        + (f": {reasons[name]}" if reasons[name] else "")
        for name, old in sorted(changed.items())
    ]


# The checkpoints of one run.
#
# One process at a time writes (the lock of the run directory sees to that); any number may read.

_T = TypeVar("_T")
_RETRY_SECONDS = (0.1, 0.5, 2.0)
"""Waits before a file that could not be read is read again."""
_DISK_FULL = re.compile(r"no space left|disk quota exceeded|ENOSPC|EDQUOT", re.IGNORECASE)
# TensorStore's errors are ValueErrors (and others) without an errno; the code is in their text.
_CODE = re.compile(r"os_error_code='(\d+)'")
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on file sizes (`ulimit -f`)",
    errno.EROFS: "make it writable",
}


class Store:
    """Saves and restores named arrays, the data iterator and JSON-able facts, as one whole.

    With several processes, all of them call the same methods in the same order.

    Args:
      directory: Where the checkpoints are: a folder of a local or shared POSIX disk, made at the
        first save, or the URL of a folder in an object store, `gs://...` or `s3://...`.
      policy: The checkpoint policy. Saving `every` so often is the caller's part.
    """

    def __init__(self, directory: str | os.PathLike[str], policy: Checkpoints | None = None):
        self._directory = open_directory(os.fspath(directory))
        self._policy = policy or Checkpoints()
        # One thread, so that saves finish in the order in which they began, and exchanges of the
        # processes stay in step.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Folder, int, concurrent.futures.Future[None]] | None = None
        # Random, agreed on by all processes at the first save: see `Directory.saving`.
        self._token = ""
        self._committed: list[int] = []
        # The newest step that was restored or committed here, for messages about a store that
        # cannot be asked.
        self._newest: int | None = None
        self._num_not_deleted = 0  # commits in a row after which nothing could be deleted
        # Remains of killed saves are removed once, before the first save of this process.
        self._is_clean = False
        self._num_barriers = 0
        # Checksums of the checkpoint that was just checked; reading it twice would double the time
        # of a restart.
        self._trusted: Mapping[str, tuple[int, int]] | None = None
        self._exchanges: Rounds | None = None
        # Why later checkpoints were passed over: the reason goes with them into the trash.
        self._damage: dict[int, str] = {}
        self.fence: Callable[[], None] = unfenced
        """Raises `LockLost` where another process writes here now; called before each commit."""
        self.before_commit: Callable[[], None] = unfenced
        """Called by the primary when a save is complete; where it raises, nothing is committed."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def directory(self) -> Folder:
        """The folder of the checkpoints."""
        return self._directory.path

    # What there is.

    def steps(self) -> list[int]:
        """Return the steps of all committed checkpoints, in order.

        Returns:
          Steps, in order.
        """
        return sorted(self._directory.committed())

    def latest(self) -> int | None:
        """Return the step of the newest committed checkpoint; killed saves do not count.

        Returns:
          A step; None without checkpoints.
        """
        return max(self._directory.committed(), default=None)

    def best(self) -> int | None:
        """Return the step of the checkpoint with the best metric, of those saved with one.

        Returns:
          A step; None without metrics.
        """
        return self._policy.best(self._directory.saved())

    def read(self, step: int) -> Commit:
        """Return the commit of a checkpoint: its description, without the arrays.

        Args:
          step: Step of the checkpoint.

        Returns:
          The commit.

        Raises:
          CheckpointError: There is no checkpoint of that step, or it is damaged or unreadable.
          VersionError: It was written by another version of luthier.
        """
        path = self._directory.committed().get(step)
        if path is None:
            raise self._missing(step)
        try:
            return self._retried(path, lambda: commit_lib.read(path))
        except CheckpointError as error:
            raise type(error)(
                Problem(problem.what, remedy=problem.remedy or self._others(step))
                for problem in error.problems
            ) from error

    def read_extra(self, step: int) -> dict[str, Any]:
        """Return the JSON facts saved beside the arrays. Raises as `read`.

        Args:
          step: Step of the checkpoint.

        Returns:
          JSON values by name.
        """
        return dict(self.read(step).extra)

    def notices(self, step: int) -> list[str]:
        """Return one line for each package that is of another version now. Raises as `read`.

        Args:
          step: Step of the checkpoint.

        Returns:
          Lines for the user.
        """
        return version_notices(self.read(step).versions)

    def check(self, step: int) -> list[Problem]:
        """Read every file of a checkpoint and return what is damaged; empty when it is whole.

        Args:
          step: Step of the checkpoint.

        Returns:
          The problems; none if it is whole.

        Raises:
          CheckpointError: A file of it is there and cannot be read now, which says nothing about
            what is in it.
          VersionError: It was written by another version of luthier.
        """
        try:
            commit = self.read(step)
        # Not damage: a disk that is away for a moment must not cost a good checkpoint, so this ends
        # the start instead of letting it fall back to an older one.
        except _Unreadable:
            raise
        except CheckpointError as error:
            return list(error.problems)
        path = self._directory.committed().get(step)
        if path is None:  # it was deleted meanwhile
            return list(self._missing(step).problems)
        return [
            Problem(f"{path} is damaged: {damage}", remedy=self._others(step))
            for damage in self._retried(path, lambda: commit_lib.check_in_parallel(path, commit))
        ]

    def newest_whole(self) -> tuple[int | None, list[Problem]]:
        """Return the newest step whose files are all as written, and what is wrong with later ones.

        Reads everything of the checkpoints that it looks at. Raises as `check`: what may be whole
        is never passed over.

        Returns:
          A step or None, and the problems of later ones.
        """
        problems: list[Problem] = []
        # Everything is read, since Orbax restores flipped bits without an error; usually only the
        # newest.
        for step in reversed(self.steps()):
            if not (damage := self.check(step)):
                self.trust(step)
                return step, problems
            self._damage[step] = damage[0].what
            problems += damage
        return None, problems

    def unsealed(self) -> list[int]:
        """Return the steps of folders that look like checkpoints, but have no commit file.

        Returns:
          Steps, in order.
        """
        return self._directory.unsealed()

    def trust(self, step: int) -> None:
        """Take a checkpoint as whole: the next `restore` of it reads its files once only.

        Args:
          step: A step that `newest_whole` returned, here or to another process of the run.
        """
        # The checksums and not the step are remembered: if the checkpoint is replaced meanwhile,
        # they differ, and it is read again.
        self._trusted, self._newest = self.read(step).files, step

    # Saving.

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        iterator: Any = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Begin to save, and return as soon as the arrays may be donated and the iterator moved.

        Waits for a save that is still running. When this one is committed, older checkpoints
        that the policy does not keep are deleted. A checkpoint of the same step is replaced.

        Args:
          step: Optimizer steps done.
          arrays: Arrays by name, of any sharding.
          iterator: The data iterator (Orbax's `save` and `load`, or `get_state` and `set_state`).
          extra: JSON-able facts, copied.
          metrics: Values by `evaluation/metric`, for `keep_best`.

        Raises:
          CheckpointError: The save before this failed, or this one cannot begin.
        """
        self.wait()
        # Where another process has taken over, nothing more is written into its folder.
        self.fence()
        has_iterator = iterator is not None
        versions = installed_versions()
        commit = commit_lib.describe(step, arrays, extra, metrics, versions, has_iterator)
        try:
            if arrays_lib.process_index() == 0:
                # At the first save and not when the store is opened: whoever only restores or lists
                # must not change a directory that another process may be writing.
                if not self._is_clean:
                    self._directory.clean()
                self.directory.mkdir(parents=True, exist_ok=True)
            self._is_clean = True
            path = self._directory.saving(step, self._agreed_token())
            # No process may write into the folder before the primary has removed the remains of
            # earlier saves. A primary that the disk refuses above never comes here: its process
            # ends, and with it the wait of the others.
            self._barrier("may begin")
            context = self._policy.storage.saving()
            pending = arrays_lib.save(path, arrays, iterator, context)
        # A disk or a store that refuses at once; what it refuses while arrays are written is raised
        # by `wait`.
        except (OSError, StoreError) as error:
            _blame_disk(self, step, error)
            raise
        # One save at a time: `wait` above has ended the last one, so that at most one set of host
        # copies exists.
        self._pending = (path, step, self._thread.submit(self._finish, path, pending, commit))

    def committed(self) -> list[int]:
        """Return the steps committed since the last call, without waiting.

        Returns:
          Steps, in order.

        Raises:
          CheckpointError: The last save failed.
        """
        # `wait` and not `result`: it also cleans up after a failure, in the thread that trains.
        if self._pending is not None and self._pending[2].done():
            self.wait()
        committed, self._committed = self._committed, []
        return committed

    def wait(self) -> None:
        """Wait until the running save is committed.

        Raises:
          CheckpointError: It failed.
        """
        if self._pending is None:
            return
        (path, step, future), self._pending = self._pending, None
        try:
            future.result()
        except LockLost:
            self._directory.withdraw(path)
            raise
        except Exception as error:
            if arrays_lib.process_index() == 0:
                # A save also fails where a new writer has removed its parts: what else lies there
                # now is the new writer's.
                try:
                    self.fence()
                except LockLost:
                    self._directory.withdraw(path)
                    raise
                # A store that refuses now would refuse this, too, and hide the reason. What lies
                # there has no commit, and the first save of the next start removes it.
                if _refusal_of_store(self, error) is None:
                    self._directory.remove_failed(step)
                    self._directory.clean()
            _blame_disk(self, step, error)
            raise
        self._committed.append(step)
        self._newest = step

    def close(self) -> None:
        """Wait, and end the thread. Raises as `wait`."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def discard_fast(self) -> None:
        """Do nothing: there is one tier."""

    # Restoring.

    def restore(
        self,
        step: int,
        abstract: Mapping[str, jax.ShapeDtypeStruct],
        iterator: Any = None,
        *,
        partial: bool = False,
    ) -> dict[str, jax.Array]:
        """Read arrays straight into shardings of any mesh, after checking every file.

        Files that `newest_whole` has just read, or that `trust` vouches for, are not read again.

        Args:
          step: Step of the checkpoint.
          abstract: Shape, dtype and sharding by name.
          iterator: The data iterator to set to its saved state, in place; None leaves it out.
          partial: Whether the checkpoint may hold arrays that are not asked for.

        Returns:
          The arrays by name.

        Raises:
          CheckpointError: There is no such checkpoint; it is damaged; or arrays are missing, left
            over, or of another shape or dtype: all are listed.
        """
        commit, path = self.read(step), self._directory.committed()[step]
        # Names and shapes first, because they cost nothing and reading every file for its checksum
        # takes minutes.
        problems = arrays_lib.compare(commit.arrays, abstract, partial)
        if iterator is not None and not commit.has_iterator:
            problems.append(Problem(f"{path} was saved without the state of a data iterator"))
        # Used once: what was whole when it was checked may be damaged by the next restore, hours
        # later.
        trusted, self._trusted = self._trusted, None
        if problems := problems or (self.check(step) if trusted != commit.files else []):
            raise CheckpointError(problems)
        if iterator is not None:
            # The iterator before the arrays: it refuses in milliseconds, they take minutes.
            arrays_lib.load_iterator(path, iterator)
        return arrays_lib.load(path, abstract, self._policy.storage.loading(abstract))

    def load(self, step: int, abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Read some arrays without checking anything: for whoever called `check` before.

        Args:
          step: Step of the checkpoint.
          abstract: Shape, dtype and sharding by name.

        Returns:
          Arrays by name.
        """
        return arrays_lib.load(self._directory.committed()[step], abstract)

    def move_to_trash(self, step: int, reason: str) -> None:
        """Move a checkpoint into the trash; none of that step is fine.

        Args:
          step: Step of the checkpoint.
          reason: The reason, in one line.
        """
        self.fence()
        self._directory.move_to_trash(step, reason)

    def cut_back(self, step: int | None) -> None:
        """Move every later checkpoint into the trash: training is resumed from `step`.

        They are removed when a later step than theirs is committed. So is what killed saves left.

        Args:
          step: The restored step; None where training starts again from step 0.
        """
        self.wait()
        # No process may still be reading what the primary is about to move.
        self._barrier("restored")
        if arrays_lib.process_index() == 0:
            self.fence()  # restoring took minutes: another process may have taken over meanwhile
            for later in self.steps():
                if later > (-1 if step is None else step):
                    since = f"training was resumed from step {step or 0}"
                    self._directory.move_to_trash(later, self._damage.get(later, since))
            self._directory.clean()
        self._barrier("cut back")

    # Files.

    def _finish(self, path: Folder, pending: arrays_lib.Pending, commit: Commit) -> None:
        commit_lib.finish(
            pending,
            self._rounds(),
            seal=lambda: commit_lib.seal_own(path, arrays_lib.process_index()),
            commit=lambda sums: self._commit(path, commit, sums),
            summarize=lambda error: _summary(self, commit.step, error),
        )

    def _agreed_token(self) -> str:
        if not self._token:
            self._token = self._rounds().exchange(None, lambda _: self._directory.new_token())
        return self._token

    def _rounds(self) -> Rounds:
        """Return the exchanges of all processes about saves, for the thread that finishes them."""
        if self._exchanges is None:
            self._exchanges = commit_lib.rounds(self.directory)
        return self._exchanges

    # The fence is checked as late as possible, right before the rename. Between the check and the
    # rename a pause can still happen, which is why saves are written under a random token: a writer
    # that was taken over can at worst put a whole checkpoint in place.
    #
    # Deleting comes after the commit file is durable, so that at every moment as many whole
    # checkpoints exist as the policy keeps.
    def _commit(self, saving: Folder, commit: Commit, sums: commit_lib.Sums) -> None:
        self.before_commit()
        self.fence()
        path = self._directory.put_in_place(saving, commit.step)
        commit_lib.write(path, commit, sums)
        try:
            saved = self._directory.saved()
            for step in {checkpoint.step for checkpoint in saved} - self._policy.kept(saved):
                self._directory.delete(step)
            self._directory.delete_replaced(commit.step)
            self._directory.empty_trash(commit.step)
        except StoreUnavailable:
            # The step is saved. What should go is deleted after the next save.
            return
        except StoreError as error:
            # Once it may be trouble that passes; twice in a row it would fill the store.
            self._num_not_deleted += 1
            if self._num_not_deleted == 1:
                return
            (problem,) = error.problems
            what = f"step {commit.step} was saved, but older ones cannot be deleted: {problem.what}"
            remedy = f"{problem.remedy} and rerun the command: it continues from there"
            raise _NotDeleted(Problem(what, remedy=remedy)) from error
        self._num_not_deleted = 0

    # The number makes each name new: Orbax's barriers may not be used twice under one name.
    def _barrier(self, event: str) -> None:
        self._num_barriers += 1
        arrays_lib.barrier(f"{self.directory} {event} {self._num_barriers}")

    def _retried(self, path: Folder, look: Callable[[], _T]) -> _T:
        """Return the result of `look`, retrying a few times if the disk refuses.

        Raises:
          CheckpointError: It refuses still. Nothing is known about the checkpoint, so that nothing
            may be done to it.
        """
        # Only faults that pass by themselves are retried (a network disk that is away for a moment,
        # EIO); see `faults`.
        pauses = iter(_RETRY_SECONDS)
        while True:
            try:
                return look()
            except OSError as error:
                seconds = next(pauses, None)
                if seconds is None or not is_transient(error):
                    what = f"{path} cannot be read now: {error}"
                    remedy = (
                        "nothing was changed: check the disk and rerun the command; if it stays "
                        f"so, move that folder away ({self._others(int(path.name.split('.')[0]))})"
                    )
                    raise _Unreadable(Problem(what, remedy=remedy)) from error
            time.sleep(seconds)

    def _missing(self, step: int) -> CheckpointError:
        what = f"{self.directory} has no checkpoint of step {step}"
        return CheckpointError(Problem(what, remedy=self._others(step)))

    def _others(self, step: int) -> str:
        others = ", ".join(str(other) for other in reversed(self.steps()) if other != step)
        return f"other checkpoints: {others}" if others else "there is no other checkpoint"


def open_directory(path: str) -> Directory | BucketDirectory:
    """Return the folder of a run's checkpoints, on a disk or in an object store.

    Args:
      path: A path, or the URL of an object store.

    Raises:
      CheckpointError: It is another URL.
    """
    if is_url(path):
        from luthier.checkpoint.bucket import BucketDirectory

        return BucketDirectory(path)
    if "://" in path:
        what = f"{path} is neither a directory nor a URL of an object store"
        raise CheckpointError(Problem(what, remedy="write a path, gs://... or s3://..."))
    return Directory(pathlib.Path(path).absolute())


class _Unreadable(CheckpointError):
    """A checkpoint is there and cannot be read now."""


class _NotDeleted(StoreError):
    """A checkpoint was committed, and those that it replaces cannot be deleted."""


def _summary(store: Store, step: int, error: Exception) -> tuple[str, int]:
    """Return in one line why a step was not saved, and the exit code, for other processes."""
    try:
        _blame_disk(store, step, error)
    except CheckpointError as blamed:
        error = blamed
    code = error.exit_code if isinstance(error, LuthierError) else EXIT_FAILED
    return " ".join(str(error).split()) or repr(error), code


# Orbax and TensorStore wrap what the system said in exceptions of their own, so the chain of causes
# is searched for an errno. An error without one is a bug (ours or theirs), and keeps its traceback.
def _blame_disk(store: Store, step: int, error: BaseException) -> None:
    """Raise the one-line error for a disk or an object store that refuses; return for our own bug.

    A store that cannot be reached for a while lets the run end with the exit code of a requeue.
    """
    if isinstance(error, _NotDeleted):
        return
    refused = _refusal_of_store(store, error)
    if refused is not None:
        (problem,) = refused.problems
        latest = store._newest
        after = "continues from its last checkpoint, if it has one"
        if latest is not None:
            after = f"continues from step {latest}"
        remedy = f"{problem.remedy} and rerun the command: it {after}"
        what = f"step {step} was not saved: {problem.what}"
        raise CheckpointError(Problem(what, remedy=remedy), refused.exit_code) from refused
    cause: BaseException | None = error
    while cause is not None and (code := _refusal(cause)) is None:
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return
    why = os.strerror(code) if code else " ".join(str(cause).split())[:300]
    if code in (errno.ENOSPC, errno.EDQUOT):
        why = "the disk is full"
    what = f"{store.directory}: step {step} was not saved: {why}"
    remedy = _REMEDIES.get(code or 0, "check the directory")
    latest = store.latest()
    after = "starts again" if latest is None else f"continues from step {latest}"
    remedy = f"{remedy} and rerun the command: it {after}"
    raise CheckpointError(Problem(what, remedy=remedy)) from error


def _refusal_of_store(store: Store, error: BaseException) -> StoreError | None:
    """Return the refusal of an object store that an error goes back to; None for any other."""
    for link in chain(error):
        if isinstance(link, StoreError):
            return link
        if is_url(str(store.directory)) and is_refusal(link):  # of a request of Orbax
            return refusal(str(store.directory), link)
    return None


def _refusal(error: BaseException) -> int | None:
    """Return the errno of a refusal by the system; 0 if it has none, None for any other error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if match := _CODE.search(str(error)):  # TensorStore, in errors of several kinds
        return int(match[1])
    if _DISK_FULL.search(str(error)):
        return errno.ENOSPC
    return 0 if isinstance(error, OSError | RunError) else None
