"""The identity of a process beyond its process id, which the kernel soon gives to another one."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """A process, among all that have or had its id on any machine.

    Args:
      pid: Process id.
      host: Name of the machine.
      boot: Identifies the running kernel; empty where it is unknown.
      started: When the process started, in the kernel's own count; empty where it is unknown.
      namespace: The namespace of process ids (containers have their own); empty where unknown.
    """

    pid: int
    host: str
    boot: str = ""
    started: str = ""
    namespace: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of a process of this machine that runs now.

        Args:
          pid: Its process id.

        Returns:
          The identity, which no later process of the same id has.
        """
        return cls(pid, socket.gethostname(), _boot(), _started(pid), _namespace())

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process.

        Returns:
          The identity.
        """
        return cls.of(os.getpid())

    @property
    def same_kernel(self) -> bool:
        """Whether it runs (or ran) under this very kernel, perhaps in another container."""
        # The boot id is the same in all containers of a host and changes with every boot; a host
        # name can be shared by several containers or machines. The name decides only where /proc is
        # missing.
        return self.boot == _boot() if self.boot else self.host == socket.gethostname()

    @property
    def here(self) -> bool:
        """Whether its id means the same process here: the same kernel, the same namespace."""
        return self.same_kernel and self.namespace in ("", _namespace())

    @property
    def alive(self) -> bool:
        """Whether the process exists; only meaningful when it is `here`.

        A process that was stopped (SIGSTOP) is alive; one that has ended and that nobody has
        waited for is not.
        """
        if self.pid <= 0:
            return False
        try:
            # Signal 0 only asks. EPERM (a process of another user) also means that it exists, hence
            # every OSError but ESRCH passes on to /proc.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        fields = _stat(self.pid)
        if not fields:
            return True
        # Field 3 of proc(5) is the state, and Z and X are processes that have ended. Field 22 is
        # the start time: a recycled pid has another one.
        return fields[0] not in ("Z", "X") and self.started in ("", fields[19])


def _boot() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty where they cannot be known."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # Field 2 is the program's name in parentheses and may itself hold spaces and parentheses, so
    # the fields are counted from the last one.
    return stat.rpartition(")")[2].split()


def _started(pid: int) -> str:
    """Return the process's start time in clock ticks since boot, or "" where it cannot be known."""
    fields = _stat(pid)
    return fields[19] if fields else ""
