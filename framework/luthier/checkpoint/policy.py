"""Which checkpoints are made, and which of them are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from luthier.checkpoint.tiers.copying import Copying, HostCopy
from luthier.checkpoint.tiers.fast import FastTier
from luthier.checkpoint.tiers.storage import Storage
from luthier.durations import Duration, Seconds

LOSS = "loss"
"""Key of the training loss among the metrics of a checkpoint; no evaluation can have it."""


class Choice(Protocol):
    """What decides which checkpoint is best; `luthier.metrics.Selector` is one."""

    @property
    def name(self) -> str:
        """The key of the deciding value: `evaluation/metric`."""

    def better(self, value: float, other: float) -> bool:
        """Return whether `value` is strictly better than `other`."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A committed checkpoint, as far as the policy looks at it.

    Args:
      step: Optimizer steps done.
      metrics: What was known when it was saved, by `evaluation/metric`; and the training loss.
      is_known: Whether that could be read; what could not is kept.
    """

    step: int
    metrics: Mapping[str, float]
    is_known: bool = True


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """When to save, and what to keep. A checkpoint is kept for as long as any rule keeps it.

    The last one whose training loss was finite is always kept.

    Args:
      every: How long from one save to the next; None saves only when training ends or is
        interrupted.
      keep_latest: How many of the newest are kept. One more than 1 is a way back when the newest
        is damaged.
      keep_every: Also keep the first one saved at or after each multiple of so many steps, for
        good; None keeps none for good.
      keep_best: Also keep the one with the best value of this metric, of those saved with one.
      fast: Further checkpoints on a fast disk, made more often; None makes none.
      copying: How arrays are kept for a save from the steps that follow.
      storage: How arrays are written and read.
    """

    RANGES: ClassVar[dict[str, str]] = {"keep_latest": "1 <= x", "keep_every": "1 <= x"}

    every: Duration | None = Seconds(15 * 60)
    keep_latest: int = 2
    keep_every: int | None = None
    keep_best: Choice | None = None
    fast: FastTier | None = None
    copying: Copying = HostCopy()
    storage: Storage = Storage()

    def best(self, saved: Sequence[Saved]) -> int | None:
        """Return the step with the best metric; the earliest among equals, None without any."""
        best: tuple[int, float] | None = None
        for step, value in self._values(saved):
            if best is None or (self.keep_best and self.keep_best.better(value, best[1])):
                best = (step, value)
        return None if best is None else best[0]

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        """Return the steps to keep of those that are there."""
        steps = sorted(checkpoint.step for checkpoint in saved if checkpoint.is_known)
        latest = steps[-self.keep_latest :]
        finite = [c.step for c in saved if c.is_known and math.isfinite(c.metrics.get(LOSS, 0.0))]
        if finite and max(finite) < latest[0]:
            # A way back for a run that has diverged. It takes the place of one that is worth
            # nothing; the newest stays, because it says where the run is.
            latest = [max(finite), *latest[-max(self.keep_latest - 1, 1) :]]
        kept = {*latest, *(checkpoint.step for checkpoint in saved if not checkpoint.is_known)}
        if self.keep_every is not None:
            reached = 0
            for step in steps:
                if step // self.keep_every > reached:
                    kept.add(step)
                    reached = step // self.keep_every
        best = self.best(saved)
        return kept if best is None else kept | {best}

    def most_kept(self, steps: int | None = None) -> int:
        """Return how many checkpoints can be on the disk at once, with the one being written.

        Args:
          steps: Steps of the whole run, for what `keep_every` keeps.
        """
        for_good = (steps or 0) // self.keep_every if self.keep_every is not None else 0
        return self.keep_latest + for_good + (self.keep_best is not None) + 1

    def _values(self, saved: Sequence[Saved]) -> list[tuple[int, float]]:
        if self.keep_best is None:
            return []
        name = self.keep_best.name
        values = [
            (checkpoint.step, checkpoint.metrics[name])
            for checkpoint in sorted(saved, key=lambda checkpoint: checkpoint.step)
            if name in checkpoint.metrics
        ]
        return [(step, value) for step, value in values if not math.isnan(value)]
