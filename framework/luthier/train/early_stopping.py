"""Whether a metric still improves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from luthier.program import EarlyStopping


@dataclasses.dataclass
class Patience:
    """Counts evaluations without improvement; its fields are saved with the checkpoint.

    Args:
      best: Best value so far; NaN before the first.
      best_step: Step of the best value.
      waited: Evaluations since then.
    """

    best: float = math.nan
    best_step: int = 0
    waited: int = 0

    def observe(self, rule: EarlyStopping, value: float, step: int) -> bool:
        """Take in one evaluation.

        Args:
          rule: What counts as an improvement, and how long to wait for one.
          value: The metric.
          step: When it was measured.

        Returns:
          Whether the patience is over.
        """
        margin = rule.min_delta if rule.metric.direction == "lower" else -rule.min_delta
        if math.isnan(self.best) or rule.metric.better(value + margin, self.best):
            self.best, self.best_step, self.waited = value, step, 0
        else:
            self.waited += 1
        return self.waited >= rule.patience

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None."""
        best = None if math.isnan(self.best) else self.best
        return {"best": best, "best_step": self.best_step, "waited": self.waited}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Patience:
        """Return what `to_dict` was called on."""
        best = math.nan if fields["best"] is None else fields["best"]
        return cls(best, fields["best_step"], fields["waited"])
