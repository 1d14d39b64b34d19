"""One writer per directory: a lock that is fenced, because a holder may be paused for any time.

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

HEARTBEAT_SECONDS = 10.0
"""How often a holder shows that it lives; it is taken over after three times that."""

_SHOWN_SECONDS = 60.0
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
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
        # A later version may tell more.
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
    kind = "a symbolic link" if path.is_symlink() else "no regular file"
    what = f"cannot lock {path}: it is {kind}, which luthier never makes"
    return RunError(Problem(what, remedy="look at what it is, and remove it"))


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
            is_copy = named.inode not in (0, os.fstat(descriptor).st_ino)
            return None if is_copy and _is_free(descriptor) else named
        return None if _is_free(descriptor) else named
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


class Lock:
    """The right to write a directory, held until `release` or the end of the process.

    Args:
      path: The lock file; its directory must exist.
      pulse_seconds: How often the holder shows that it lives; None for `HEARTBEAT_SECONDS`.
      patience_seconds: How long to wait for a holder to let go.

    Raises:
      RunError: Another process holds it; the message names it. Or the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pulse_seconds: float | None = None,
        patience_seconds: float = 0.3,
    ):
        self.path = pathlib.Path(path)
        self.took_over: Holder | None = None
        self._place = self.path.absolute()  # the working directory may change
        self._pulse_seconds = HEARTBEAT_SECONDS if pulse_seconds is None else pulse_seconds
        self._patience_seconds = patience_seconds
        self._token = secrets.token_hex(8)
        self._lost = ""
        self._released = threading.Event()
        try:
            self._descriptor = self._acquire()
        except OSError as error:
            raise run_error("lock", self.path, error) from error
        _remember(self)
        self._thread = threading.Thread(target=self._pulse, name="luthier-lock", daemon=True)
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

    def _find_loss(self) -> str:
        try:
            # By its path, and anew: that is what others see, also on a network file system.
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
        """Become the holder; return False where something changed, so that it must begin anew."""
        locked = _flock(descriptor, self._patience_seconds)
        before = os.pread(descriptor, 4096, 0)
        named = _parse(before)
        if locked is False:
            raise self._refusal(named)
        if named is not None and not self._is_dead(descriptor, named, locked):
            raise self._refusal(named)
        with _claim(self._place, self._pulse_seconds):
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
        before = os.fstat(descriptor).st_mtime_ns
        deadline = time.monotonic() + 3 * self._pulse_seconds
        while time.monotonic() < deadline:
            time.sleep(self._pulse_seconds / 10)
            # Opening anew makes network file systems look at the server's time stamp.
            try:
                with open(self._place, "rb") as file:
                    if os.fstat(file.fileno()).st_mtime_ns != before:
                        return False
            except FileNotFoundError:  # `_take` finds that, too, and begins anew
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

    def _write(self, descriptor: int) -> None:
        mine = dataclasses.asdict(ProcessIdentity.current())
        inode = os.fstat(descriptor).st_ino
        named = Holder(**mine, since=time.time(), token=self._token, inode=inode)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(dataclasses.asdict(named)).encode(), 0)
        os.fsync(descriptor)

    def _pulse(self) -> None:
        while not self._released.wait(self._pulse_seconds):
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
        self._thread.join()
        with contextlib.suppress(OSError, LockLost):
            self.check()
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

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
def _claim(path: pathlib.Path, pulse_seconds: float) -> Iterator[None]:
    """Hold `PATH.claim` for the moment in which a name is written into the lock file."""
    claim = path.with_name(f"{path.name}.claim")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    patience = _Patience(3 * pulse_seconds)
    while True:
        try:
            descriptor = os.open(claim, flags, 0o666)
            break
        except FileExistsError:
            if not patience.is_over(claim):
                time.sleep(min(0.02, pulse_seconds / 10))
            else:
                # Its owner died within these milliseconds. What is removed may be the claim of
                # one who did the same a moment before: then the token tells who came last.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(claim)
    try:
        try:
            mine = dataclasses.asdict(ProcessIdentity.current())
            os.write(descriptor, json.dumps(mine).encode())
        finally:
            os.close(descriptor)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim)


class _Patience:
    """How long a claim is waited for: not at all where its owner is dead."""

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
    """Allow every write: nobody else can have taken over, or no lock is held, as in a notebook."""


def _forget_all() -> None:
    for lock in tuple(_held):
        lock._forget()


def _remember(lock: Lock) -> None:
    global _fork_hook_installed
    _held.add(lock)
    if not _fork_hook_installed:
        os.register_at_fork(after_in_child=_forget_all)
        _fork_hook_installed = True
