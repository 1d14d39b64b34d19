"""A lease that gives a copy one writer: an object with the writer's name, which it renews.

Object stores have no locks, but conditional writes: an object is replaced only where it is still
the version that was read. Of several processes that find a lapsed lease, the store lets one win.

The time since the last renewal counts as silence, so that a restart after a crash need not wait for
the whole lease. A wrong clock can therefore take over too early. That costs the former writer its
copy and nothing else: its next renewal finds another name in the object, and it stops writing.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import socket
import threading
import time

from luthier.errors import Problem, RunError
from luthier.storage import ProcessIdentity
from luthier.storage.bucket import Bucket, Object
from luthier.storage.transfer import STALL_SECONDS

KEY = "writer.json"
# Renewed every third of it (`keep`), so that a renewal may stall for its whole time limit.
LEASE_SECONDS = 90.0
"""A writer that was not heard of for so long has ended."""

_LOOK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class LeaseWriter:
    """The process that writes a copy.

    Args:
      host: The name of its machine.
      directory: The run's directory there.
      renewed: When it was heard of last, in seconds since 1970; 0 where it has let go.
      process: Its process; None for the writer of a mirror, which the lock of its directory names.
      token: Random; no two writers that are processes have the same.
    """

    host: str
    directory: str
    renewed: float
    process: ProcessIdentity | None = None
    token: str = ""

    @property
    def seems_alive(self) -> bool:
        """Whether it writes now, as far as the clocks of two machines agree; for showing it."""
        if self.process is not None and self.process.here:
            return self.renewed > 0 and self.process.alive
        return time.time() - self.renewed < LEASE_SECONDS


class TakenOver(RunError):
    """Another process has taken the lease over."""


class Lease:
    """The right to write a copy.

    The holder of the lock of the run's directory may take over its copy at once. On another
    machine, or in another directory, the former writer must have released it; one that did not is
    waited for, until it was silent for `LEASE_SECONDS`. Of two that take it at one time one wins.

    Where the store is the run's home, and not a copy of it, the directory proves nothing: the
    working copy has the same path on every machine, and host names of containers repeat. Then the
    former writer may be taken over at once only if it is a process of this machine that has ended.

    Args:
      bucket: The folder of the run.
      directory: The run's directory here.
      process: This process, where the store is the run's home.
      remedy: What to do about another process that writes there.

    Raises:
      RunError: Another process writes there, or the store refuses.
    """

    def __init__(
        self,
        bucket: Bucket,
        directory: str,
        process: ProcessIdentity | None = None,
        remedy: str = "end it, or start a separate run with --new",
    ):
        self._bucket = bucket
        token = "" if process is None else secrets.token_hex(8)
        self._me = LeaseWriter(socket.gethostname(), directory, 0.0, process, token)
        self._writing, self._renewed, self._sent = threading.Lock(), 0.0, b""
        found = first = bucket.read(KEY)
        self.former = former = read_writer(found)
        """The writer before this one, as the lease named it; None for the first."""
        self.token = token
        """Random; names this writer in the object."""
        if former is not None and (process := former.process) and _writes_here(former, directory):
            what = f"{bucket.url} is written by process {process.pid} of this machine"
            raise RunError(Problem(what, remedy=remedy))
        if former is not None and not self._is_mine(former) and not _has_ended(former, directory):
            # Clamped, because the two clocks may differ by anything: at worst the whole lease is
            # waited for once more, or a live writer is taken over and stops at its next renewal.
            silent = min(max(0.0, time.time() - former.renewed), LEASE_SECONDS)
            deadline = time.monotonic() + LEASE_SECONDS - silent
            # Any new version is a sign of life, whatever time is in it.
            while found.version == first.version and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_SECONDS))
                found = bucket.read(KEY)
            if found.version != first.version:
                where = f"on {former.host} in {former.directory}"
                what = f"{bucket.url} is written by another process, {where}"
                raise RunError(Problem(what, remedy=remedy))
        self.found = found
        """The object of the lease as it was found."""
        # Only where the object still is what was read: of two that waited for the same lapsed lease
        # one is refused here.
        if not self._write(found, time.time()):
            raise RunError(Problem(f"{bucket.url} was taken by another process just now"))

    def renew(self) -> None:
        """Renew the lease; may be called from any thread.

        Raises:
          RunError: Another process has taken over, or the store refuses.
        """
        with self._writing:
            self._renew()

    def keep(self) -> None:
        """Renew where a third of `LEASE_SECONDS` has passed since; callable from any thread.

        Raises:
          RunError: Another process has taken over, or the store refuses.
        """
        with self._writing:
            if time.monotonic() - self._renewed >= LEASE_SECONDS / 3:
                self._renew()

    def _renew(self) -> None:
        found = self._bucket.read(KEY)
        former = read_writer(found)
        # Read before it is written, although a conditional write alone would do: a process of the
        # same run on this machine may have renewed it, which is no take-over. Neither is the
        # beginning of our own renewal, where a store has kept no more of it.
        is_mine = bool(found.data) and self._sent.startswith(found.data or b"")
        is_mine = is_mine or (former is not None and self._is_mine(former))
        if not is_mine or not self._write(found, time.time()):
            what = f"{self._bucket.url} was taken over by another process"
            raise TakenOver(Problem(what + (f" on {former.host}" if former else "")))

    def release(self) -> None:
        """Release the lease, so that another machine can take over at once.

        Raises:
          RunError: The store refuses.
        """
        with self._writing:
            found = self._bucket.read(KEY)
            former = read_writer(found)
            if former is not None and self._is_mine(former):
                self._write(found, 0.0)

    def _is_mine(self, writer: LeaseWriter) -> bool:
        # Not the process: a restart in the same directory holds the lock of that directory, and
        # with it the right to its copy.
        if self._me.token:
            return writer.token == self._me.token
        return (writer.host, writer.directory) == (self._me.host, self._me.directory)

    def _write(self, over: Object, renewed: float) -> bool:
        lease = dataclasses.replace(self._me, renewed=renewed)
        data = json.dumps(dataclasses.asdict(lease)).encode()
        # The lease runs from before the write began: the time that the store took for it must not
        # make it longer.
        start, self._sent = time.monotonic(), data
        written = self._bucket.write(KEY, data, over)
        if written:
            self._renewed = start
        return written


# Every change renews the lease first if it is due: a writer that was paused for longer than the
# lease finds out before it writes, not after.
class Leased(Bucket):
    """A folder of an object store that is changed only while a lease of it is held.

    Args:
      url: As of `Bucket`.
      lease: Is kept before each object that is written or deleted.
      stall_seconds: As of `Bucket`.
    """

    def __init__(self, url: str, lease: Lease, stall_seconds: float = STALL_SECONDS):
        super().__init__(url, stall_seconds)
        self._lease = lease

    def write(self, key: str, data: bytes, over: Object | None = None) -> bool:
        """Write an object as `Bucket` does.

        Raises:
          RunError: Another process has taken over, or the store refuses.
        """
        self._lease.keep()
        return super().write(key, data, over)

    def delete(self, key: str) -> None:
        """Delete an object as `Bucket` does.

        Raises:
          RunError: Another process has taken over, or the store refuses.
        """
        self._lease.keep()
        super().delete(key)


def read_writer(found: Object) -> LeaseWriter | None:
    """Return whom the object of a lease names; None where there is none, or it is damaged.

    Args:
      found: The object `KEY`.
    """
    if found.data is None:
        return None
    try:
        fields = json.loads(found.data)
        process = fields.pop("process", None)
        return LeaseWriter(**fields, process=ProcessIdentity(**process) if process else None)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


# Of a process of this machine the kernel knows whether it lives. In this very directory it does not
# write any more even then, because this process holds the lock of it.
def _has_ended(writer: LeaseWriter, directory: str) -> bool:
    if writer.process is None or not writer.process.here:
        return False
    return writer.directory == directory or not writer.process.alive


def _writes_here(writer: LeaseWriter, directory: str) -> bool:
    is_here = writer.process is not None and writer.process.here
    return is_here and writer.renewed > 0 and not _has_ended(writer, directory)
