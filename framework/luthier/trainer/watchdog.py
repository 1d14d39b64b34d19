"""The watchdog: records where a run that hangs is, names who is behind, and ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO

from luthier import environment
from luthier.errors import EXIT_BUG, LuthierError
from luthier.parallel import distributed
from luthier.parallel.distributed import Heartbeats, Liveness
from luthier.records import RunDirectory, Watchdog, crash

# What is left to do where no Python can run: a crash of native code, or a held interpreter lock.
#
# `faulthandler` writes the stacks of all threads when native code fails (SIGSEGV, SIGBUS, ...),
# into a file of the run. The same file takes them when the process hangs with the interpreter's
# lock held: no thread of Python's runs then, not even the watchdog's.
# `faulthandler.dump_traceback_later` could end such a process, but counts the time in which the
# process was stopped as a whole (SIGSTOP, a suspended job): a run that is continued after a pause
# would be killed. So a guard, a process of its own that looks whether it is stopped, waits for the
# heartbeats of the watchdog's thread.

# A signal that nobody uses: SLURM and users have SIGUSR1 and SIGUSR2 for their own ends.
_DUMP = signal.SIGRTMIN + 9 if sys.platform == "linux" else signal.SIGUSR2

_STDERR = 2
# The guard process: a program without imports of ours, so that it starts in milliseconds and holds
# little memory. It reads heartbeats (a limit and the line to print) and counts only the time in
# which the run could have sent one: not while the run is stopped (SIGSTOP, a debugger), and at most
# two polls for each look, since a guard that was itself not scheduled saw the whole machine stop.
# It dumps the stacks by a signal, which faulthandler handles in C without the interpreter's lock,
# and then kills: a thread that holds the lock in native code cannot be interrupted.
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
        """Write stacks to the standard error until there is a file."""
        # `faulthandler` has one file for the whole process. The command line enables it before
        # imports; anybody else's (pytest, a notebook's kernel) is left as it is.
        self._is_ours = environment.reports_native_crashes() or not faulthandler.is_enabled()
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no standard error
            if self._is_ours:
                faulthandler.enable(_STDERR)
            # The guard asks for stacks by this signal: the handler is C code that runs without the
            # interpreter's lock.
            faulthandler.register(_DUMP, _STDERR, all_threads=True)

    def open(self, directory: pathlib.Path, process: int) -> None:
        """Write stacks to a file from now on.

        Args:
          directory: The run's directory.
          process: Index of this process among those of the run.
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


class WatchdogProcess:
    """The process that ends this one when it hangs with the interpreter's lock held."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; a failure to start a process is ignored."""
        # Isolated (`-I -S`): no site-packages, no variables, nothing of the user's that could fail.
        # A session of its own, so that Ctrl-C and a killed process group leave it alive until its
        # parent is gone, which it sees by `getppid`.
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(int(_DUMP))]
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def heartbeat(self, limit: float, line: str) -> None:
        """Send a heartbeat of the watchdog's thread.

        Args:
          limit: Seconds for which nothing has to be heard before this process counts as hanging.
          line: The line to print then.
        """
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):
            # Unbuffered and small enough to be written whole. The guard empties the pipe at each
            # look; where it is gone, the write fails and is passed over.
            os.write(self._process.stdin.fileno(), json.dumps([limit, line]).encode() + b"\n")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                # Closes the pipe, which the guard reads as the end, and waits for it: no zombie is
                # left.
                self._process.communicate()
            self._process = None


# The watchdog: writes down where a run that hangs is, names who is behind, and ends it.

POLL_SECONDS = 1.0
LINGER_SECONDS = 3.0
"""The time for the other processes of the run to write down where they are."""


class Watch:
    """Watches a run from a thread of its own, within a `with` block.

    When nothing happens for too long, it writes the stacks of all threads to `stacks/` of the
    run's directory, says so in one line, and ends the process: a thread that waits for ever in a
    device or a network cannot be woken. Stacks are written as well when another process of the
    run is silent, which JAX is about to end the run for.

    A thread of Python's does not run while some C code holds the interpreter's lock. So a small
    process of its own watches this thread (`native.Guard`).

    Args:
      watchdog: When a run hangs; None watches nothing.
      again: The command that continues the run; where it is empty, as in a notebook or a sweep, the
        line is printed and nothing is ended.
      batches: Returns how many batches this process has brought to the others.
    """

    def __init__(
        self, watchdog: Watchdog | None, again: str, batches: Callable[[], int] = lambda: 0
    ):
        self._watchdog = watchdog
        self._directory: pathlib.Path | None = None
        self._again = again
        self._batches = batches
        # Written by the training thread without a lock: the watching thread only looks whether it
        # differs.
        self._beats = 0
        self._steps: int | None = None
        self._phase = "start"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luthier-watchdog", daemon=True)
        # How far this process is, for the others: batches that it has brought and steps that it has
        # taken tell a process that waits from the one that it waits for.
        self._pulses = Heartbeats(lambda: (self._batches(), self._steps or 0))
        self._guard = WatchdogProcess()
        self._native = NativeStacks()

    @property
    def phase(self) -> str:
        """The current phase, for reports: `opening data`, ..., and `step` since the first."""
        return self._phase

    def enter(self, phase: str) -> None:
        """Note that a phase beside the steps begins.

        Args:
          phase: Name of the phase, such as `restoring`, for reports.
        """
        self._phase = phase
        self._beats += 1

    def opened(self, directory: pathlib.Path, again: str, process: int = 0) -> None:
        """Write what there is to write into a directory, from now on.

        Args:
          directory: The run's directory.
          again: The command that continues this very run; empty as in a notebook.
          process: Index of this process among those of the run.
        """
        self._directory, self._again = directory, again
        if again:
            self._native.open(directory, process)
        self._beats += 1

    def count(self, batches: Callable[[], int]) -> None:
        """Report the number of batches of this process to the others from now on.

        Args:
          batches: Returns how many.
        """
        self._batches = batches

    def beat(self, steps: int) -> None:
        """Note that the run is alive.

        Args:
          steps: Optimizer steps done.
        """
        self._steps, self._phase = steps, "step"
        self._beats += 1

    @property
    def _limit(self) -> float:
        assert self._watchdog is not None
        watchdog = self._watchdog
        return watchdog.start_seconds if self._steps is None else watchdog.seconds

    def __enter__(self) -> Watch:
        if self._again:
            self._native.enable()
        if self._watchdog is not None:
            if self._again:
                self._guard.start()
            self._thread.start()
            if distributed.is_several():
                self._pulses.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        if self._watchdog is not None:
            self._thread.join()
            self._guard.close()
            if distributed.is_several():
                self._pulses.stop()
        self._native.close()

    def _run(self) -> None:
        assert self._watchdog is not None
        # Small limits, as tests have, need quicker looks.
        poll = min(POLL_SECONDS, self._watchdog.seconds / 4, self._watchdog.start_seconds / 4)
        quiet, seen = 0.0, 0
        reported: tuple[int, ...] = ()
        before = time.monotonic()
        while not self._stopped.wait(poll):
            now = time.monotonic()
            # Where this thread did not run either, the whole process was stopped: of a longer gap
            # only two polls count as quiet.
            quiet += min(now - before, 2 * poll)
            before = now
            # Any sign of life counts: a step, a batch of an evaluation, the next phase of a start.
            if self._beats != seen:
                quiet, seen = 0.0, self._beats
            # Each heartbeat brings the line that is to be printed, because the guard knows nothing
            # of the run. Where no guard was started (`_again` is empty) this does nothing.
            self._guard.heartbeat(self._limit, self._stuck())
            standing = self._pulses.standing() if distributed.is_several() else Liveness()
            # Written down when it is noticed: JAX's coordination service ends this process soon
            # after it misses another one, and gives no chance to say why.
            if standing.silent != reported:
                reported = standing.silent
                self._report_silent(reported)
            # It comes back from `_bark` only where no process is to be ended, as in a notebook: the
            # line is printed once.
            if quiet >= self._limit:
                self._bark(standing)
                return

    def _stuck(self) -> str:
        """Return the line that the guard prints when this process can print nothing any more."""
        where = self._native.path
        stacks = "" if where is None else f"; stacks: {where}"
        resume = f"; to resume: {self._again}"
        return f"the process has hung for {self._limit:g} s{self._when()}{stacks}{resume}"

    def _when(self) -> str:
        return f", {self._phase}" if self._steps is None else f", after step {self._steps}"

    def _report_silent(self, silent: Sequence[int]) -> None:
        """Report silent processes to the launcher now: JAX will end this process without a message.

        The report is withdrawn when they are heard from again.
        """
        if not silent:
            distributed.notify_parent(silent=None)
            return
        place = self._dump()
        verb = "is" if len(silent) == 1 else "are"
        line = f"{_named(silent)} ended, {verb} stopped, or cannot be reached; stacks: {place}"
        distributed.notify_parent(silent=line)

    def _bark(self, standing: Liveness) -> None:
        place = self._dump()
        line = f"nothing has happened for {self._limit:g} s{self._when()}"
        # In a collective all wait for one process. Those that are behind are the suspects; the
        # others hang because of them.
        if behind := standing.behind:
            verb = "is" if len(behind) == 1 else "are"
            line += f": {_named(behind)} {verb} behind the others"
        if place is not None:
            line += f"; stacks: {place}"
        message = f"{line}; to resume: {self._again}" if self._again else line
        if not distributed.is_several() or not self._again:
            print(f"luthier: {message}", file=sys.stderr, flush=True)
        else:
            # The parent prints how to resume.
            print(f"luthier: {line}", file=sys.stderr, flush=True)
        if not self._again:
            return
        if distributed.process_index() == 0:
            self._record(message)
        if distributed.is_several():
            time.sleep(LINGER_SECONDS)
        # Not `sys.exit`: this is not the main thread, and the main thread waits for a device.
        os._exit(EXIT_BUG)

    def _dump(self) -> pathlib.Path | None:
        """Write the stacks of all threads; return the folder that they are in.

        Before there is a directory they go to the standard error.
        """
        if self._directory is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
            return None
        folder = self._directory / "stacks"
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            # A file for each process, appended to: the stacks of all hosts side by side show who
            # waits for whom.
            path = folder / f"process-{distributed.process_index()}.txt"
            with open(path, "a", encoding="utf-8") as file:
                at = time.strftime("%Y-%m-%d %H:%M:%S")
                file.write(f"{at}, process {os.getpid()}{self._when()}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
        return folder

    def _record(self, line: str) -> None:
        if self._directory is None:
            return
        # The training thread hangs and cannot write its own end. The status is written without the
        # recorder, whose threads may hang on the same disk.
        run = RunDirectory(self._directory)
        with contextlib.suppress(LuthierError, OSError):
            run.write_status(dataclasses.replace(run.read_status(), status="failed", message=line))


def _named(processes: Sequence[int]) -> str:
    word = "process" if len(processes) == 1 else "processes"
    count = distributed.process_count()
    return f"{word} {', '.join(map(str, processes))} of {count}"
