"""A fenced lock that gives a directory one writer, although the holder may be paused at any time.

The lock is `flock` on a file that also says who holds it. Where the kernel is the same, `flock`
alone decides, and the lock of a process that was killed is free at once. For a holder on another
machine (shared disks, of which not all share `flock`), the file's time stamp is the holder's
heartbeat: the lock is taken over when it has not moved while it was watched. No clock is read for
that: a heartbeat is a change.

A holder that was paused (a suspended laptop, a migrated machine, SIGSTOP) cannot know that it was
taken over until it looks. So it looks before every write that counts: the file holds a random
token, and `Lock.check` raises `LockLost` where the file at the path has another token, is another
file, or is gone. `fence` finds the check that belongs to a path.

Whoever writes its name into the file holds `PATH.claim` meanwhile, made with O_EXCL, so that two
processes that find the same dead holder do not both take its place; disks without `flock` have
that, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from luthier.errors import LockLost, Problem, RunError
from luthier.storage.atomic import run_error
from luthier.storage.process import ProcessIdentity

# Of filelock's locks (4.3), `FileLock` is `flock` alone, so it says nothing about a holder on
# another machine, and `SoftFileLease` is a heartbeat and a process id, without `flock`. Both leave
# the check before each write to the caller, which is most of this module.

HEARTBEAT_SECONDS = 10.0
"""Seconds between two heartbeats of a holder; it is taken over after three times that."""

# Only for showing a holder (`holder`): longer than the three heartbeats after which a take-over
# would succeed, because showing a dead holder for a while is harmless.
_SHOWN_SECONDS = 60.0
# What file systems without `flock` answer. The lock then rests on the name in the file, the claim
# file and the heartbeat alone.
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
# ESTALE is NFS's answer for a file that another client has removed; ENOTDIR and ELOOP mean that a
# part of the path has been replaced by something else.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
# Weak, so that a lock that nobody releases is collected with its owner; `fence` and the fork hook
# find the locks of this process here.
_held: weakref.WeakSet[Lock] = weakref.WeakSet()
_fork_hook_installed = False


@dataclasses.dataclass(frozen=True)
class Holder(ProcessIdentity):
    """The process that holds a lock.

    Args:
      since: When the lock was taken, in seconds since 1970.
      token: Random; no two holders have the same.
      inode: The number of the lock file; a copy of the file has another.
    """

    since: float = 0.0
    token: str = ""
    inode: int = 0

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} (since {since})"


def _parse(text: bytes) -> Holder | None:
    """Return whom the text of a lock file names; None where it was released (or is torn)."""
    try:
        fields: dict[str, Any] = json.loads(text)
        known = {field.name for field in dataclasses.fields(Holder)}
        # Unknown fields are dropped instead of refused: a holder that runs a newer luthier must
        # still be recognised as a holder.
        return Holder(**{name: value for name, value in fields.items() if name in known})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _read(descriptor: int) -> Holder | None:
    return _parse(os.pread(descriptor, 4096, 0))


def _open(path: pathlib.Path, flags: int) -> int:
    """Open a lock file; never what a symbolic link points at, and nothing but a regular file.

    Raises:
      OSError: The operating system refuses.
      RunError: Something else is in the place of the file.
    """
    # O_NONBLOCK: a named pipe must not make us wait before it can be refused.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise _not_a_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path)
    return descriptor


def _not_a_file(path: pathlib.Path) -> RunError:
    kind = "a symbolic link" if path.is_symlink() else "a special file or a directory"
    what = f"cannot lock {path}: it is {kind}, and luthier creates only regular files"
    return RunError(Problem(what, remedy="inspect it, and remove it"))


# `holder` takes a shared `flock` for a moment to see whether the file is free. A writer that tries
# in just that moment must not be refused, hence the patience.
def _flock(descriptor: int, patience_seconds: float) -> bool | None:
    """Try to lock for a while (`holder` may take a glance); None where the file system cannot."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return None
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def holder(path: str | os.PathLike[str]) -> Holder | None:
    """Return the live process that holds the lock file at `path`, or None; for showing it.

    Reads only, and therefore compares the heartbeat of another machine with the local clock: a
    wrong clock shows a wrong holder, and decides nothing.

    Args:
      path: The lock file; it may be missing.

    Returns:
      The machine and process, or None.

    Example:
      >>> from luthier import storage
      >>> print(storage.holder("missing.lock"))
      None
    """
    try:
        descriptor = _open(pathlib.Path(path), os.O_RDONLY)
    except (OSError, RunError):
        return None
    try:
        named = _read(descriptor)
        if named is None:
            return None
        if not named.here:
            quiet = time.time() - os.fstat(descriptor).st_mtime
            return named if quiet < _SHOWN_SECONDS else None
        if named.alive:
            # The named process lives, but the file may be a copy (`cp -r` of a run) that names the
            # holder of the original. Both signs are needed: another inode, and a file that nobody
            # has locked. An inode of 0 comes from a file that did not record it.
            is_copy = named.inode not in (0, os.fstat(descriptor).st_ino)
            return None if is_copy and _is_free(descriptor) else named
        # It has ended, but a child that inherited its descriptor may still hold the `flock`.
        return None if _is_free(descriptor) else named
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Return whether no process is known to have the `flock` of a lock file."""
    # Shared, so that several readers that look at once do not see each other as holders. Closing
    # the descriptor, which the caller does, lets go of it.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # Where the file system cannot lock, nobody has a `flock`: then what `holder` has seen in
        # the process table and of the inode decides alone.
        return error.errno in _UNSUPPORTED
    return True


class Lock:
    """The right to write a directory, held until `release` or the end of the process.

    Args:
      path: The lock file; its directory must exist.
      heartbeat_seconds: Interval of heartbeats of the holder; None for `HEARTBEAT_SECONDS`.
      patience_seconds: Time to wait for the holder to release it.

    Raises:
      RunError: Another process holds it; the message names it. Or the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        heartbeat_seconds: float | None = None,
        patience_seconds: float = 0.3,
    ):
        self.path = pathlib.Path(path)
        self.took_over: Holder | None = None
        self._place = self.path.absolute()  # the working directory may change
        self._heartbeat_seconds = (
            HEARTBEAT_SECONDS if heartbeat_seconds is None else heartbeat_seconds
        )
        self._patience_seconds = patience_seconds
        self._token = secrets.token_hex(8)
        self._lost = ""
        self._released = threading.Event()
        try:
            self._descriptor = self._acquire()
        except OSError as error:
            raise run_error("lock", self.path, error) from error
        _remember(self)
        self._thread = threading.Thread(target=self._beat, name="luthier-lock", daemon=True)
        self._thread.start()

    @property
    def notice(self) -> str:
        """One line about a dead writer's lock that was taken over, or empty."""
        if self.took_over is None:
            return ""
        return f"took over the lock of {self.took_over}, which ended without releasing it"

    def check(self) -> None:
        """Return where this process still holds the lock; called before every write that counts.

        Raises:
          LockLost: Another process has taken it over, or the lock file is gone.
          OSError: It cannot be known, because the disk refuses to be read.
        """
        if not self._lost:
            self._lost = self._find_loss()
        if self._lost:
            raise LockLost(self._lost)

    # The fence. Three things must hold: the path still leads to the file that we opened (it was not
    # moved, deleted or replaced), its text parses, and its token is ours. The pid would not do: the
    # process that took over may have the same one on another machine, and we ourselves may hold the
    # lock for the second time.
    def _find_loss(self) -> str:
        try:
            # Opened again, by its path: that is what others see, also on a network file system.
            descriptor = os.open(self._place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _GONE:
                return (
                    f"the lock file {self.path} is gone: it, or its directory, was moved or "
                    "deleted while it was in use; nothing more was written"
                )
            raise
        try:
            there, mine = os.fstat(descriptor), os.fstat(self._descriptor)
            named = _read(descriptor)
        finally:
            os.close(descriptor)
        is_same = (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
        if is_same and named is not None and named.token == self._token:
            return ""
        who = "another process" if named is None else f"another process ({named})"
        return f"{who} has taken over {self.path.parent}; nothing more was written"

    # Everything between opening the file and writing the name into it can be overtaken by another
    # process (a release, a take-over, a deletion). Rather than to handle each interleaving, `_take`
    # detects that anything changed and the loop starts over with the file that is at the path then.
    def _acquire(self) -> int:
        """Return the descriptor of the lock file, which names this process."""
        while True:
            descriptor = _open(self._place, os.O_RDWR | os.O_CREAT)
            try:
                if self._take(descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _take(self, descriptor: int) -> bool:
        """Become the holder; return False where something changed, so that it must start over."""
        locked = _flock(descriptor, self._patience_seconds)
        before = os.pread(descriptor, 4096, 0)
        named = _parse(before)
        # The order of proof: a `flock` that is refused means a living holder on a disk that shares
        # locks, whatever the file says. A `flock` that is granted proves nothing yet when the name
        # is of another machine, because network disks may grant it to both.
        if locked is False:
            raise self._refusal(named)
        if named is not None and not self._is_dead(descriptor, named, locked):
            raise self._refusal(named)
        # Two processes may both have found the holder dead, on a disk whose `flock` excludes
        # nobody. The claim serialises them, and the comparison below makes the second one start
        # over: the text is not what it judged.
        with _claim(self._place, self._heartbeat_seconds):
            # Since it was looked at, somebody else may have taken it, or removed it.
            if os.pread(descriptor, 4096, 0) != before or not self._is_at_the_path(descriptor):
                return False
            self.took_over = named
            self._write(descriptor)
        return True

    def _is_at_the_path(self, descriptor: int) -> bool:
        try:
            there, mine = os.lstat(self._place), os.fstat(descriptor)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    # In descending certainty: `flock` under the same kernel; else a heartbeat that is watched, for
    # other machines; else the process table, for this machine and this namespace of process ids. A
    # pid in another container means nothing here, so containers of one host count as other machines
    # where `flock` is missing.
    def _is_dead(self, descriptor: int, named: Holder, locked: bool | None) -> bool:
        if locked is True and named.same_kernel:
            return True  # whoever holds it would hold `flock`, too
        if not named.here:
            return self._is_silent(descriptor)
        if not named.alive:
            return True
        # The copy of a directory holds a copy of its lock, which nobody's heart beats for.
        is_copy = named.inode not in (0, os.fstat(descriptor).st_ino)
        return is_copy and self._is_silent(descriptor)

    def _is_silent(self, descriptor: int) -> bool:
        """Watch the heartbeat of a holder on another machine; no clock is compared with another."""
        # Comparing the time stamp with our clock would take over living locks where clocks differ
        # by hours. So we wait and see whether it changes: any change is a heartbeat, whatever time
        # it shows.
        before = os.fstat(descriptor).st_mtime_ns
        deadline = time.monotonic() + 3 * self._heartbeat_seconds
        while time.monotonic() < deadline:
            time.sleep(self._heartbeat_seconds / 10)
            # Opening it again makes network file systems look at the server's time stamp.
            try:
                with open(self._place, "rb") as file:
                    if os.fstat(file.fileno()).st_mtime_ns != before:
                        return False
            except FileNotFoundError:  # `_take` finds that, too, and starts over
                return True
        return True

    def _refusal(self, named: Holder | None) -> RunError:
        directory = self.path.parent
        if named is None:
            return RunError(
                Problem(f"{directory} is being written by another process", remedy="wait for it")
            )
        if named.here and named.pid == os.getpid():
            remedy = "end that run first: close its recorder, release its lock"
            return RunError(
                Problem(f"{directory} is already written by this process", remedy=remedy)
            )
        if named.here and not named.alive:
            what = f"{directory} is still held by a child of {named}, which itself has ended"
            return RunError(Problem(what, remedy="end that child process"))
        what = f"{directory} is being written by {named}"
        remedy = f"wait for it, or stop it with `kill {named.pid}` on {named.host}"
        return RunError(Problem(what, remedy=remedy))

    # In place and not by a rename: `flock` belongs to the inode, so that a replaced file would be
    # locked by nobody. A kill between truncating and writing leaves a file that `_parse` returns
    # None for, which is a lock that nobody holds.
    def _write(self, descriptor: int) -> None:
        mine = dataclasses.asdict(ProcessIdentity.current())
        inode = os.fstat(descriptor).st_ino
        named = Holder(**mine, since=time.time(), token=self._token, inode=inode)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(dataclasses.asdict(named)).encode(), 0)
        os.fsync(descriptor)

    # The heartbeat checks the fence first: a holder that wakes up after a take-over must not
    # refresh the time stamp of its successor's file. An OSError is a disk that is away for a
    # moment; only silence for three heartbeats costs the lock.
    def _beat(self) -> None:
        while not self._released.wait(self._heartbeat_seconds):
            try:
                self.check()
                os.utime(self._descriptor)
            except LockLost:
                return  # `check` raises it again, in the threads that write
            except OSError:
                continue

    def release(self) -> None:
        """Let others write; a second call does nothing. A lock that was lost is left alone."""
        if self._released.is_set():
            return
        self._released.set()
        # The thread may be in the middle of `utime`, whose descriptor is closed below and whose
        # number may be somebody else's then.
        self._thread.join()
        with contextlib.suppress(OSError, LockLost):
            self.check()
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    # A `flock` belongs to the open file description, which a forked child (a data worker, a
    # subprocess before exec) inherits: the lock would stay taken for as long as any child lives.
    def _forget(self) -> None:
        """In a forked child: close the copy, which would hold the lock beyond the parent's life."""
        if not self._released.is_set():
            self._released = threading.Event()
            self._released.set()
            os.close(self._descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


@contextlib.contextmanager
def _claim(path: pathlib.Path, heartbeat_seconds: float) -> Iterator[None]:
    """Hold `PATH.claim` for the moment in which a name is written into the lock file."""
    claim = path.with_name(f"{path.name}.claim")
    # O_EXCL is atomic on every POSIX disk, also on those without `flock`; the file is only there
    # for the milliseconds of a take-over, and so its own staleness can be judged more simply than
    # that of the lock.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # As long as `_is_silent` watches the holder of a lock, and for the same reason: an owner on
    # another machine can only be waited for.
    patience = _Patience(3 * heartbeat_seconds)
    while True:
        try:
            descriptor = os.open(claim, flags, 0o666)
            break
        except FileExistsError:
            if not patience.is_over(claim):
                time.sleep(min(0.02, heartbeat_seconds / 10))
            else:
                # Its owner died within these milliseconds. What is removed may be the claim of
                # one who did the same a moment before: then two write their names, the token in
                # the lock file says who came last, and the other's `check` raises `LockLost`.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(claim)
    try:
        try:
            # By name, so that a process of this machine sees at once whether the owner is alive
            # (`_Patience`).
            mine = dataclasses.asdict(ProcessIdentity.current())
            os.write(descriptor, json.dumps(mine).encode())
        finally:
            os.close(descriptor)
        yield
    finally:
        # Another's by now, where ours was taken for dead: then, too, the token in the lock decides.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim)


class _Patience:
    """The time to wait for a claim: none where its owner is dead."""

    def __init__(self, seconds: float):
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._seen = 0

    def is_over(self, claim: pathlib.Path) -> bool:
        try:
            with open(claim, "rb") as file:
                inode, owner = os.fstat(file.fileno()).st_ino, _parse(file.read(4096))
        except OSError:
            return False
        # An owner on this machine is looked up; one elsewhere, or one that was killed before it
        # wrote its name, is waited for.
        if owner is not None and owner.here:
            return not owner.alive
        if inode != self._seen:  # another one than a moment ago: somebody is alive
            self._seen, self._deadline = inode, time.monotonic() + self._seconds
        return time.monotonic() >= self._deadline


def fence(path: str | os.PathLike[str]) -> Callable[[], None]:
    """Return the check of the lock that this process holds at a path.

    Args:
      path: The lock file.

    Returns:
      `Lock.check`; where this process holds no such lock, a function that does nothing.
    """
    place = pathlib.Path(path).absolute()
    for lock in tuple(_held):
        if lock._place == place and not lock._released.is_set():
            return lock.check
    return unfenced


def unfenced() -> None:
    """Allow every write: nobody else can have taken over, or no lock is held, as in a notebook.

    Example:
      >>> from luthier import storage
      >>> storage.unfenced()
    """


def _forget_all() -> None:
    for lock in tuple(_held):
        lock._forget()


def _remember(lock: Lock) -> None:
    global _fork_hook_installed
    _held.add(lock)
    if not _fork_hook_installed:
        # Once per process: hooks cannot be unregistered, and one per lock would pile up in a long
        # sweep.
        os.register_at_fork(after_in_child=_forget_all)
        _fork_hook_installed = True
