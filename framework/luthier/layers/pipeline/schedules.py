"""Pipeline schedules: what each stage works on at each tick of a pipeline.

The layers are cut into `stages x repeats` equal blocks of consecutive layers; block `repeat x
stages + stage` lives on its stage. A microbatch visits the stages in turn, and comes round to the
first one again for the next repeat.

Shapes: S stages, M microbatches, R repeats.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol


class Schedule(Protocol):
    """Decides what the first stage works on; stage s does the same s ticks later.

    Fresh microbatches start in their order, and a microbatch comes round again after S ticks.
    """

    @property
    def repeats(self) -> int:
        """How many times a microbatch visits each stage."""

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick.

        Args:
          tick: Number of the tick, or an array of such.
          stages: S.
        """


@dataclasses.dataclass(frozen=True)
class GPipe:
    """Every microbatch goes through once: a stage has one block of consecutive layers.

    Source: Huang et al. 2018, arXiv 1811.06965, section 2.3.
    """

    @property
    def repeats(self) -> int:
        """How many times a microbatch visits each stage: once."""
        return 1

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick."""
        return tick, tick * 0


@dataclasses.dataclass(frozen=True)
class Circular:
    """Microbatches go round several times: a smaller bubble for more communication.

    Groups of S microbatches go through all repeats before the next group starts, so that a
    microbatch is back at the first stage just when its turn comes, and none is ever stored.

    Args:
      repeats: How many times a microbatch visits each stage, R.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (interleaved schedule).
    """

    RANGES: ClassVar[dict[str, str]] = {"repeats": "1 <= x"}
    repeats: int = 2

    def work(self, tick: Any, stages: int) -> tuple[Any, Any]:
        """Return the microbatch and the repeat that the first stage works on at a tick."""
        turn, place = tick // stages, tick % stages
        return (turn // self.repeats) * stages + place, turn % self.repeats


def num_ticks(schedule: Schedule, stages: int, microbatches: int) -> int:
    """Return how many ticks a pipeline takes: `M R + S - 1`.

    Args:
      schedule: The schedule.
      stages: S.
      microbatches: M.
    """
    return microbatches * schedule.repeats + stages - 1


def bubble_fraction(schedule: Schedule, stages: int, microbatches: int) -> float:
    """Return the share of the ticks in which a stage has nothing to do: `(S-1) / (M R + S - 1)`.

    Args:
      schedule: The schedule.
      stages: S.
      microbatches: M.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2, there over the ticks with work.
    """
    return (stages - 1) / num_ticks(schedule, stages, microbatches)
