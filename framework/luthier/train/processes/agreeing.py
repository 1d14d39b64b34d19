"""What all processes decide alike at every batch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from luthier.parallel import distributed
from luthier.train.processes.times import Times

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What all processes know alike at a batch, so that they take the same decisions after it.

    Args:
      tokens: Targets that count, over all hosts.
      seconds: Seconds that the run has trained, by the clock of the primary.
      stop: Why the run is to be saved and left after this batch, or None.
    """

    tokens: int
    seconds: float
    stop: str | None


class Agreeing:
    """Agrees with the other processes on every batch, beside the steps.

    Args:
      requested: Returns why this process wants to stop, or None.
      times: Measures how long this process takes.
    """

    def __init__(self, requested: Callable[[], str | None], times: Times):
        self.times = times
        self._requested = requested
        # The same processes may train one run after another, as a worker of a sweep does.
        number = distributed.from_primary(lambda: next(_numbers))
        self._rounds = distributed.Rounds(f"batches/{number}")
        self.seconds = 0.0
        self.batches = 0

    def __call__(
        self, tokens: int, give_up: Callable[[], bool], batch_seconds: float = 0.0
    ) -> Agreed:
        """Return what holds for the next batch. Raises as `luthier.parallel.distributed.Rounds`.

        Args:
          tokens: Targets that count in the rows of this process.
          give_up: Whether nobody waits for the batch any more.
          batch_seconds: What it took to make these rows.
        """

        def decide(
            said: Sequence[tuple[int, str | None, dict[str, Any] | None]],
        ) -> tuple[int, float, str | None]:
            stop = next((reason for _, reason, _ in said if reason), None)
            if times := [own for *_, own in said if own is not None]:
                self.times.take_in(times)
            return sum(count for count, *_ in said), self.seconds, stop

        self.batches += 1
        mine = (tokens, self._requested(), self.times.mine(batch_seconds))
        return Agreed(*self._rounds.exchange(mine, decide, give_up))
