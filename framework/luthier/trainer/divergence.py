"""Detects divergence: a loss that stays far above its best, or is not finite for many steps."""

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
      nonfinite: Steps since the loss and the gradient were last finite.
    """

    smoothed: float = math.nan
    best: float = math.nan
    best_step: int = 0
    above: int = 0
    nonfinite: int = 0

    def observe(self, rule: Divergence, step: int, loss: float, is_harmed: bool = False) -> bool:
        """Take in the loss of a step.

        Args:
          rule: The definition of divergence.
          step: Optimizer steps done.
          loss: Its loss.
          is_harmed: Whether its loss or gradient was not finite, and no guard left the step out.

        Returns:
          Whether the loss has diverged.
        """
        # Two rules. A parameter that is NaN stays so, and every later step with it: a few in a row
        # are proof. A guard leaves such steps out, and its own limit counts them.
        #
        # A finite loss that has risen is judged by its average, above the best average so far:
        # restarts of a schedule and hard batches raise single losses.
        self.nonfinite = self.nonfinite + 1 if is_harmed else 0
        if self.nonfinite >= rule.max_nonfinite_steps:
            return True
        # A NaN must not enter the average, which would never be finite again.
        if rule.rise is None or not math.isfinite(loss):
            return False
        # An exponential average over about `patience_steps` steps: single spikes move it little.
        share = 1 / rule.patience_steps
        before = loss if math.isnan(self.smoothed) else self.smoothed
        self.smoothed = before + share * (loss - before)
        if math.isnan(self.best) or self.smoothed < self.best:
            self.best, self.best_step = self.smoothed, step
        self.above = self.above + 1 if self.smoothed > self.best + rule.rise else 0
        return self.above >= rule.patience_steps

    def describe(self, rule: Divergence, step: int) -> str:
        """Return the line about a loss that has diverged.

        Args:
          rule: The rule.
          step: The step.

        Returns:
          One line.
        """
        if self.nonfinite or rule.rise is None:
            steps = "step" if self.nonfinite == 1 else "steps"
            return (
                f"step {step}: the loss or the gradient was not finite in the last "
                f"{self.nonfinite} {steps}, and training.guard is None. Continue from a checkpoint "
                "of before them with the guard, a lower optimizer.learning_rate or other data"
            )
        return (
            f"step {step}: the loss ({self.smoothed:.4g}, smoothed) has been more than "
            f"{rule.rise:g} above its best ({self.best:.4g} at step {self.best_step}) for "
            f"{rule.patience_steps} steps. Go back to a checkpoint of before step "
            f"{step - rule.patience_steps}, with a lower optimizer.learning_rate"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None.

        Returns:
          JSON values by name.
        """
        fields = dataclasses.asdict(self)
        return {k: None if v != v else v for k, v in fields.items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Rise:
        """Return the object whose `to_dict` gave these fields.

        Args:
          fields: What `to_dict` returned.

        Returns:
          The object.
        """
        names = {field.name for field in dataclasses.fields(cls)}  # a later version may have more
        known: dict[str, Any] = {
            k: math.nan if v is None else v for k, v in fields.items() if k in names
        }
        return cls(**known)
