"""Signals that ask training to stop, heard at the next step boundary."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED = "interrupted"
PREEMPTED = "preempted"


class StopSignals:
    """Within the `with` block the first SIGINT or SIGTERM only sets `requested`.

    A second SIGINT raises KeyboardInterrupt at once. Handlers are put back at the end, and none
    are set outside the main thread, so that a notebook's kernel keeps its own.
    """

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
