"""What all processes decide alike at every batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from luthier.parallel import distributed


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
    """

    def __init__(self, requested: Callable[[], str | None]):
        self._requested = requested
        self._rounds = distributed.Rounds("batches")
        self.seconds = 0.0

    def __call__(self, tokens: int, give_up: Callable[[], bool]) -> Agreed:
        """Return what holds for the next batch. Raises as `luthier.parallel.distributed.Rounds`.

        Args:
          tokens: Targets that count in the rows of this process.
          give_up: Whether nobody waits for the batch any more.
        """

        def decide(said: Sequence[tuple[int, str | None]]) -> tuple[int, float, str | None]:
            stop = next((reason for _, reason in said if reason), None)
            return sum(count for count, _ in said), self.seconds, stop

        return Agreed(*self._rounds.exchange((tokens, self._requested()), decide, give_up))
