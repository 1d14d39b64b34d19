"""How far the clock of a host is from that of process 0."""

from __future__ import annotations

import dataclasses
import time

from luthier.parallel.distributed.messages import answer, ask, process_count, process_index

_NUM_ASKED = 8


@dataclasses.dataclass(frozen=True)
class Skew:
    """How a clock differs from that of process 0.

    Args:
      seconds: By how much it is ahead.
      uncertainty_seconds: The difference may be off by so much.
    """

    seconds: float
    uncertainty_seconds: float


def clock_skew() -> Skew:
    """Return how the clock of this process differs from that of process 0; all of them call this.

    Process 0 is asked for its time again and again; the fastest answer tells most.

    Source: D. L. Mills, 1991, "Internet Time Synchronization: The Network Time Protocol".

    Raises:
      ProcessLost: Another process has ended.
    """
    if process_index():
        return min((_asked(number) for number in range(_NUM_ASKED)), key=_uncertainty)
    for process in range(1, process_count()):
        for number in range(_NUM_ASKED):
            answer(f"clock/{number}", process, time.time)
    return Skew(0.0, 0.0)


def _asked(number: int) -> Skew:
    before = time.time()
    theirs = ask(f"clock/{number}")
    after = time.time()
    return Skew((before + after) / 2 - theirs, (after - before) / 2)


def _uncertainty(skew: Skew) -> float:
    return skew.uncertainty_seconds
