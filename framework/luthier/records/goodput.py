"""Where the time of a run went: exclusive seconds by kind of work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

INIT = "init"
COMPILE = "compile"
TRAIN = "train"
DATA_WAIT = "data_wait"
EVALUATE = "evaluate"
SAVE = "save"


class Goodput:
    """A stopwatch with one hand per kind of work.

    Spans may nest; the time of an inner span is not counted in the outer one, so that the seconds
    add up to the time spent inside any span.

    Args:
      clock: Returns seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Count the time inside the `with` block as `kind`."""
        self._turn()
        self._open.append(kind)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._clock()
        if self._open:
            kind = self._open[-1]
            self._seconds[kind] = self._seconds.get(kind, 0.0) + now - self._since
        self._since = now

    def add(self, kind: str, seconds: float) -> None:
        """Count `seconds`, measured elsewhere, as `kind` (not as the span that is open, if any)."""
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        if self._open:
            outer = self._open[-1]
            self._seconds[outer] = self._seconds.get(outer, 0.0) - seconds

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of earlier processes of the same run."""
        for kind, value in seconds.items():
            self._seconds[kind] = self._seconds.get(kind, 0.0) + float(value)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every kind; open spans count up to where an inner one began."""
        return dict(self._seconds)

    def summary(self) -> dict[str, float]:
        """Return `goodput/<kind>_seconds`, and as `goodput/fraction` the share that trained."""
        if not self._seconds:
            return {}
        result = {f"goodput/{kind}_seconds": value for kind, value in self._seconds.items()}
        total = sum(self._seconds.values())
        result["goodput/fraction"] = self._seconds.get(TRAIN, 0.0) / total if total > 0 else 0.0
        return result
