"""One writer per run directory.

The lock is `flock` on a file that also says who holds it. Where the kernel is the same, `flock`
alone decides, and the lock of a process that was killed is free at once. For a holder on another
machine (shared disks, of which not all share `flock`), the file's time stamp is the holder's pulse:
the lock is taken over when it has not moved for a while.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import weakref
from typing import Any

from luthier.errors import Problem, RunError
from luthier.records.files import run_error

PULSE_SECONDS = 10.0
_held: weakref.WeakSet[Lock] = weakref.WeakSet()
_fork_hook_installed = False


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Args:
      pid: Process id.
      host: Name of the machine.
      boot: Identifies the running kernel; empty where it is unknown.
      started: When the process started, in the kernel's own count; empty where it is unknown.
      since: When the lock was taken, in seconds since 1970.
    """

    pid: int
    host: str
    boot: str = ""
    started: str = ""
    since: float = 0.0

    @property
    def here(self) -> bool:
        """Whether the holder runs (or ran) under this very kernel."""
        return self.boot == _boot() if self.boot else self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether the process exists; only meaningful when it is `here`."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return not self.started or _started(self.pid) in ("", self.started)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} (since {since})"


def _boot() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the process's start time in clock ticks since boot, or "" where it cannot be known."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _myself() -> Holder:
    pid = os.getpid()
    return Holder(pid, socket.gethostname(), _boot(), _started(pid), time.time())


def _read(descriptor: int) -> Holder | None:
    """Return whom the lock file names, or None when it was released (or is torn)."""
    text = os.pread(descriptor, 4096, 0)
    try:
        fields: dict[str, Any] = json.loads(text)
        return Holder(**fields)
    except (ValueError, TypeError, RecursionError):
        return None


def _flock(descriptor: int, patience_seconds: float) -> bool | None:
    """Try to lock for a while (`holder` may take a glance); None where the file system cannot."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
                return None
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def holder(path: str | os.PathLike[str]) -> Holder | None:
    """Return the live process that holds the lock file at `path`, or None.

    Args:
      path: The lock file; it may be missing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        named = _read(descriptor)
        if named is None:
            return None
        if not named.here:
            quiet = time.time() - os.fstat(descriptor).st_mtime
            return named if quiet < 6 * PULSE_SECONDS else None
        if named.alive:
            return named
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        return named
    finally:
        os.close(descriptor)


class Lock:
    """The right to write a run directory, held until `release` or the end of the process.

    Args:
      path: The lock file; its directory must exist.
      pulse_seconds: How often the holder shows that it lives.
      patience_seconds: How long to wait for a holder to let go.

    Raises:
      RunError: Another process holds it; the message names it. Or the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pulse_seconds: float = PULSE_SECONDS,
        patience_seconds: float = 0.3,
    ):
        self.path = pathlib.Path(path)
        self.took_over: Holder | None = None
        self._pulse_seconds = pulse_seconds
        self._patience_seconds = patience_seconds
        self._released = threading.Event()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise run_error("lock", self.path, error) from error
        try:
            self._acquire()
        except OSError as error:
            os.close(self._descriptor)
            raise run_error("lock", self.path, error) from error
        except BaseException:
            os.close(self._descriptor)
            raise
        _remember(self)
        self._thread = threading.Thread(target=self._pulse, name="luthier-lock", daemon=True)
        self._thread.start()

    @property
    def notice(self) -> str:
        """One line about a dead writer's lock that was taken over, or empty."""
        if self.took_over is None:
            return ""
        return f"took over the lock of {self.took_over}, which ended without releasing it"

    def _acquire(self) -> None:
        locked = _flock(self._descriptor, self._patience_seconds)
        named = _read(self._descriptor)
        if locked is False:
            raise self._refusal(named)
        if named is not None:
            if named.here:
                dead = locked is True or not named.alive
            else:
                dead = self._silent()
            if not dead:
                raise self._refusal(named)
            self.took_over = named
        self._write(json.dumps(dataclasses.asdict(_myself())))

    def _silent(self) -> bool:
        """Watch the pulse of a holder on another machine; clocks need not agree for that."""
        before = os.fstat(self._descriptor).st_mtime_ns
        if time.time() - before / 1e9 > 3600:
            return True
        deadline = time.monotonic() + 3 * self._pulse_seconds
        while time.monotonic() < deadline:
            time.sleep(self._pulse_seconds / 10)
            # Opening anew makes network file systems look at the server's time stamp.
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_mtime_ns != before:
                    return False
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

    def _write(self, text: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)
        os.fsync(self._descriptor)

    def _pulse(self) -> None:
        while not self._released.wait(self._pulse_seconds):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):
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


def _forget_all() -> None:
    for lock in tuple(_held):
        lock._forget()


def _remember(lock: Lock) -> None:
    global _fork_hook_installed
    _held.add(lock)
    if not _fork_hook_installed:
        os.register_at_fork(after_in_child=_forget_all)
        _fork_hook_installed = True
