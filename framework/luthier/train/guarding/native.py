"""What is left to do where no Python can run: a crash of native code, or a held interpreter lock.

`faulthandler` writes the stacks of all threads when native code fails (SIGSEGV, SIGBUS, ...), into
a file of the run. The same file takes them when the process hangs with the interpreter's lock held:
no thread of Python's runs then, not even the watchdog's. `faulthandler.dump_traceback_later` could
end such a process, but counts the time in which the process was stopped as a whole (SIGSTOP, a
suspended job): a run that is continued after a pause would be killed. So a guard, a process of its
own that looks whether it is stopped, waits for the heartbeats of the watchdog's thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import IO

from luthier import environment
from luthier.records import crash

# A signal that nobody uses: SLURM and users have SIGUSR1 and SIGUSR2 for their own ends.
_DUMP = signal.SIGRTMIN + 9 if sys.platform == "linux" else signal.SIGUSR2

_STDERR = 2
_GUARD = """
import json, os, select, signal, sys, time
pid, dump = int(sys.argv[1]), int(sys.argv[2])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.set_blocking(0, False)

def is_stopped():
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False

limit, line, quiet, rest = 0.0, "", 0.0, b""
poll = 1.0
before = time.monotonic()
while os.getppid() == pid:
    ready, _, _ = select.select([0], [], [], poll)
    now = time.monotonic()
    # Where this process did not run either, the machine or the whole job was stopped.
    quiet += 0.0 if is_stopped() else min(now - before, 2 * poll)
    before = now
    if ready:
        read = os.read(0, 1 << 16)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\\n")
        if lines:
            limit, line = json.loads(lines[-1])
            quiet, poll = 0.0, min(1.0, limit / 4)
    elif limit and quiet > 1.25 * limit + 2 * poll and os.getppid() == pid:
        os.write(2, f"luthier: {line}\\n".encode())
        os.kill(pid, dump)
        time.sleep(1.0)
        if os.getppid() == pid:
            os.kill(pid, signal.SIGKILL)
        break
"""


class NativeStacks:
    """Sends the stacks of native crashes to a file of the run, once it is open.

    Where someone else has enabled faulthandler, as pytest or a notebook's kernel, that stays.
    """

    def __init__(self) -> None:
        self.path: pathlib.Path | None = None
        self._file: IO[str] | None = None
        self._is_ours = False

    def enable(self) -> None:
        """Have stacks written to the standard error, until there is a file."""
        self._is_ours = environment.reports_native_crashes() or not faulthandler.is_enabled()
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error
            if self._is_ours:
                faulthandler.enable(_STDERR)
            faulthandler.register(_DUMP, _STDERR, all_threads=True)

    def open(self, directory: pathlib.Path, process: int) -> None:
        """Have stacks written to a file from now on.

        Args:
          directory: The run's directory.
          process: Which of the run's processes this is.
        """
        path = crash.native_path(directory, process)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            # Kept open for good: a handler in native code cannot open it.
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
            self.path = path
            if self._is_ours:
                faulthandler.enable(self._file)
            faulthandler.register(_DUMP, self._file, all_threads=True)

    def close(self) -> None:
        """Put things back, and remove a file that nothing was written to."""
        faulthandler.unregister(_DUMP)
        if self._file is None:
            return
        if self._is_ours:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                faulthandler.enable(_STDERR)
        self._file.close()
        self._file = None
        with contextlib.suppress(OSError):
            if self.path is not None and not self.path.stat().st_size:
                self.path.unlink()
                self.path.parent.rmdir()  # fails where there is a report


class Guard:
    """The process that ends this one when it hangs with the interpreter's lock held."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; where no process can be started, there is none."""
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(int(_DUMP))]
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def heartbeat(self, limit: float, line: str) -> None:
        """Tell it that the watchdog's thread is alive.

        Args:
          limit: Seconds for which nothing has to be heard before this process counts as hanging.
          line: What is said then.
        """
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), json.dumps([limit, line]).encode() + b"\n")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.communicate()
            self._process = None
