"""Requests to end a run before its last step: signals, or a watcher such as a sweep's."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, ClassVar

from luthier import environment
from luthier.errors import EXIT_INTERRUPTED, EXIT_REQUEUE

INTERRUPTED = "interrupted"
PREEMPTED = "preempted"
PRUNED = "pruned"
PAUSED = "paused"


_ABRUPT_SECONDS = 5.0
"""Time in which a process leaves by itself when it is preempted before its first step. Kubernetes
and SLURM kill after 30 s by default, and a compiler cannot be interrupted."""

_INTERRUPT_SECONDS = 2.0
"""The same for Ctrl-C, which somebody waits for."""


# A SystemExit, so that no `except Exception` on the way takes it for a failure, and a process that
# nobody catches it in ends with its code.
class Preempted(SystemExit):
    """The machine is taken away before the first step: there is nothing to save."""

    def __init__(self) -> None:
        super().__init__(EXIT_REQUEUE)

    def __str__(self) -> str:
        return "preempted before its first step"


class Watcher:
    """Watches a run within a `with` block and may end it; this base class never does."""

    samples: ClassVar[bool] = False
    """Whether a language model writes a text at the end of the run."""

    bounds_last: bool = False
    """Whether the evaluation at the end of the run is bounded by `num_batches`, as those before."""

    requested: str | None = None
    """Why the run is to be saved and left at its next step: `interrupted`, `preempted`, or None."""

    def ready(self) -> None:
        """Note that the first step is next: from now on a request ends the run in order."""

    def evaluated(
        self, step: int, metrics: Mapping[str, float], last: bool, fraction: float = 1.0
    ) -> str | None:
        """Note the results of an evaluation.

        Args:
          step: Optimizer steps done.
          metrics: The results, by `evaluation/metric`.
          last: Whether it is the evaluation at the end of the run, which nothing follows.
          fraction: The part of its full length that the run has trained, from 0 to 1.

        Returns:
          The reason to save and leave the run now, such as `pruned` or `paused`; None to continue.
        """
        return None

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching."""


class StopSignals(Watcher):
    """Within the `with` block the first SIGINT, SIGTERM or SIGHUP only sets `requested`.

    A second SIGINT raises KeyboardInterrupt at once, unless it follows within 0.5 s of the first:
    then both belong to one press of Ctrl-C, or to one `timeout -s INT`. Handlers are put back at
    the end, and none are set outside the main thread, so that a notebook's kernel keeps its own. A
    `with` block within another one of the same object changes nothing.

    Args:
      again: The command that starts the run again. With one, as in a process of the command line,
        SIGTERM and SIGHUP end the process with exit code 75, and SIGINT with 130, until `ready` is
        called: compiling and restoring take minutes, have nothing to save, and neither a machine
        that is taken away nor a person at a terminal waits for them.
    """

    samples: ClassVar[bool] = True

    def __init__(self, again: str = "") -> None:
        self.requested: str | None = None
        self._again = again
        self._is_starting = bool(again)
        self._key = environment.InterruptKey()
        self._depth = 0
        self._previous: dict[int, Any] = {}
        self._wakeup = -1
        self._read_end, self._write_end = -1, -1

    def ready(self) -> None:
        """Note that the first step is next: from now on a request ends the run in order."""
        self._is_starting = False

    def __enter__(self) -> StopSignals:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # `nohup` has SIGHUP ignored on purpose.
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._hear)
            if self._is_starting:
                self._listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        if self._write_end >= 0:
            # The previous descriptor goes back to its place first: a signal in between must not be
            # written into a closed pipe.
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._write_end)  # the thread reads the end of the pipe
            self._write_end = -1

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # The terminal is gone: whoever writes to it next would fail.
        if number == signal.SIGHUP:
            environment.forget_terminal()
        if number == signal.SIGINT and not self._key.is_pressed():
            return
        if number == signal.SIGINT and self._is_starting and self._depth == 1:
            # No loop is there to ask for what was requested.
            raise KeyboardInterrupt(self._line(INTERRUPTED))
        # The second Ctrl-C means now: the save that the first one asked for takes too long.
        if number == signal.SIGINT and self.requested == INTERRUPTED:
            raise KeyboardInterrupt
        self.requested = INTERRUPTED if number == signal.SIGINT else PREEMPTED
        # Before the first step nothing can be saved, and the grace period of a queue (30 s) is
        # shorter than a compilation. Raising ends the start at once, with locks released and files
        # closed on the way.
        if number != signal.SIGINT and self._is_starting:
            self._print(PREEMPTED)
            raise Preempted

    def _listen(self) -> None:
        """Also watch for signals in a thread: the handler has to wait for the compiler."""
        # Python runs handlers between bytecodes of the main thread, which may be inside XLA's
        # compiler for minutes. The C-level handler writes the number into this pipe at once
        # (`set_wakeup_fd`).
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._leave, name="luthier-signals", daemon=True).start()

    def _leave(self) -> None:
        """End the process where a signal has not ended it by itself."""
        with contextlib.closing(os.fdopen(self._read_end, "rb", buffering=0)) as pipe:
            while numbers := pipe.read(64):
                # The handler comes first, where it can: it raises, which closes things in order.
                if {signal.SIGTERM, signal.SIGHUP} & set(numbers):
                    time.sleep(_ABRUPT_SECONDS)
                    status, code = PREEMPTED, EXIT_REQUEUE
                elif signal.SIGINT in numbers:
                    time.sleep(_INTERRUPT_SECONDS)
                    status, code = INTERRUPTED, EXIT_INTERRUPTED
                else:
                    continue
                # After an interrupt that has left the block, `main` prints it and ends the process.
                if self._is_starting and (status == PREEMPTED or self._depth):
                    if self.requested is None or status == INTERRUPTED:
                        self._print(status)
                    # Not `sys.exit`, which would only end this thread. The main thread is in native
                    # code and cannot be interrupted; nothing is lost, since nothing was trained.
                    os._exit(code)

    def _line(self, status: str) -> str:
        return f"{status} before the first step; nothing is lost; again: {self._again}"

    def _print(self, status: str) -> None:
        # A terminal has a half-drawn line, and its cursor may be hidden.
        start = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""
        line = f"{start}luthier: {self._line(status)}\n"
        with contextlib.suppress(OSError):  # not `print`: a handler may interrupt another one
            os.write(2, line.encode())
