"""What may end a run before its last step: signals, or whoever watches it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, ClassVar

INTERRUPTED = "interrupted"
PREEMPTED = "preempted"
PRUNED = "pruned"


class Watcher:
    """Looks on while a run trains, within a `with` block, and may end it; this one never does."""

    samples: ClassVar[bool] = False
    """Whether a language model writes a text at the end of the run."""

    requested: str | None = None
    """Why the run is to be saved and left at its next step: `interrupted`, `preempted`, or None."""

    def evaluated(self, step: int, metrics: Mapping[str, float], last: bool) -> str | None:
        """Take note of an evaluation.

        Args:
          step: Optimizer steps done.
          metrics: What was measured, by `evaluation/metric`.
          last: Whether it is the evaluation at the end of the run, which nothing follows.

        Returns:
          Why the run is to be saved and left now, such as `pruned`; None to go on.
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
        """Hear no more."""


class StopSignals(Watcher):
    """Within the `with` block the first SIGINT or SIGTERM only sets `requested`.

    A second SIGINT raises KeyboardInterrupt at once. Handlers are put back at the end, and none
    are set outside the main thread, so that a notebook's kernel keeps its own.
    """

    samples: ClassVar[bool] = True

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested == INTERRUPTED:
            raise KeyboardInterrupt
        self.requested = INTERRUPTED if number == signal.SIGINT else PREEMPTED
