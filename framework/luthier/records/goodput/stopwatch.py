"""The stopwatch of a process: exclusive seconds by kind of work, cut into pieces."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping

INIT = "init"
COMPILE = "compile"
STEP = "step"
DATA_WAIT = "data_wait"
EVALUATE = "evaluate"
SAVE = "save"
SHOW = "show"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of time of one process, and what it was spent on.

    Args:
      start: When it began, by the clock of the stopwatch.
      end: When it ended.
      first: Optimizer steps done at its beginning.
      last: Optimizer steps done at its end.
      seconds: Exclusive seconds by kind of work.
    """

    start: float
    end: float
    first: int
    last: int
    seconds: Mapping[str, float]


class Goodput:
    """A stopwatch with one hand per kind of work.

    Spans may nest; the time of an inner span is not counted in the outer one, so that the seconds
    add up to the time spent inside any span. Another thread may call `pieces` at any time.

    Args:
      clock: Returns seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0
        self._step = 0
        self._pieces: list[Piece] = []
        self._piece: dict[str, float] = {}
        self._piece_start = 0.0
        self._piece_step = 0

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the time inside the `with` block as `kind`, in a piece of its own."""
        self._border(kind)
        try:
            yield
        finally:
            self._border(None)

    def _border(self, opened: str | None) -> None:
        """Begin a span, or end the innermost one; a piece ends here in either case."""
        with self._lock:
            self._cut(self._turn())
            if opened is None:
                self._open.pop()
            else:
                self._open.append(opened)

    def _turn(self) -> float:
        """Count the time up to now."""
        now = self.clock()
        if self._open:
            self._count(self._open[-1], now - self._since)
        self._since = now
        return now

    def _count(self, kind: str, seconds: float) -> None:
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self._piece[kind] = self._piece.get(kind, 0.0) + seconds

    def _cut(self, now: float) -> None:
        """End the piece that is open, and begin the next."""
        seconds = {kind: value for kind, value in self._piece.items() if value}
        if seconds:
            start = self._piece_start
            self._pieces.append(Piece(start, now, self._piece_step, self._step, seconds))
        self._piece, self._piece_start, self._piece_step = {}, now, self._step

    def add(self, kind: str, seconds: float) -> None:
        """Count `seconds`, which have just passed, as `kind`: not as the span that is open."""
        with self._lock:
            if self._open:
                self._count(kind, seconds)
                self._count(self._open[-1], -seconds)
                return
            now = self.clock()
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
            piece = Piece(now - seconds, now, self._step, self._step, {kind: seconds})
            self._pieces.append(piece)

    def reached(self, step: int) -> None:
        """Take note that so many optimizer steps are done."""
        with self._lock:
            self._step = step
            if not self._open:
                self._piece_step = step

    def pieces(self) -> list[Piece]:
        """Return the pieces since the last call; what is open is cut here."""
        with self._lock:
            self._cut(self._turn())
            pieces, self._pieces = self._pieces, []
        return pieces

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every kind; open spans count up to where an inner one began."""
        with self._lock:
            return dict(self._seconds)

    def summary(self) -> dict[str, float]:
        """Return `goodput/<kind>_seconds`, and as `goodput/fraction` the share of steps."""
        seconds = self.seconds()
        if not seconds:
            return {}
        result = {f"goodput/{kind}_seconds": value for kind, value in seconds.items()}
        total = sum(seconds.values())
        result["goodput/fraction"] = seconds.get(STEP, 0.0) / total if total > 0 else 0.0
        return result
