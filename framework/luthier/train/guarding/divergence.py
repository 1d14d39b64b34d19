"""Whether the loss has left for good."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from luthier.program import Divergence


@dataclasses.dataclass
class Rise:
    """Follows the smoothed loss of a run; its fields are saved with the checkpoint.

    Args:
      smoothed: The moving average of the loss; NaN before the first.
      best: Its smallest value so far; NaN before the first.
      best_step: Step of the smallest value.
      above: Steps since it was last within the rise that is allowed.
    """

    smoothed: float = math.nan
    best: float = math.nan
    best_step: int = 0
    above: int = 0

    def observe(self, rule: Divergence, step: int, loss: float) -> bool:
        """Take in the loss of a step; one that is not finite is the guard's affair.

        Args:
          rule: What counts as divergence.
          step: Optimizer steps done.
          loss: Its loss.

        Returns:
          Whether the loss has diverged.
        """
        if not math.isfinite(loss):
            return False
        share = 1 / rule.patience_steps
        before = loss if math.isnan(self.smoothed) else self.smoothed
        self.smoothed = before + share * (loss - before)
        if math.isnan(self.best) or self.smoothed < self.best:
            self.best, self.best_step = self.smoothed, step
        self.above = self.above + 1 if self.smoothed > self.best + rule.rise else 0
        return self.above >= rule.patience_steps

    def told(self, rule: Divergence, step: int) -> str:
        """Return the line about a loss that has diverged."""
        return (
            f"step {step}: the loss ({self.smoothed:.4g}, smoothed) has been more than "
            f"{rule.rise:g} above its best ({self.best:.4g} at step {self.best_step}) for "
            f"{rule.patience_steps} steps. Go back to a checkpoint of before step "
            f"{step - rule.patience_steps}, with a lower optimizer.learning_rate"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None."""
        fields = dataclasses.asdict(self)
        return {k: None if v != v else v for k, v in fields.items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Rise:
        """Return what `to_dict` was called on."""
        known: dict[str, Any] = {k: math.nan if v is None else v for k, v in fields.items()}
        return cls(**known)
