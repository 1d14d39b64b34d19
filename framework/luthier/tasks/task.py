"""What the trainer knows of a domain: sums of losses, and metrics by typed key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from luthier.metrics import Metric, Ratio

Batch = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Additive:
    """The loss of a batch is the sum over its rows: it may be split in any way."""


@dataclasses.dataclass(frozen=True)
class BatchCoupled:
    """Rows of a batch see each other in the loss, so splitting the batch changes the gradient.

    Args:
      reason: What couples them (`in-batch negatives`), for the message that refuses to split.
    """

    reason: str


Reduction = Additive | BatchCoupled


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossSums:
    """The loss of part of a batch, undivided; `+` merges the parts exactly.

    Args:
      loss: Sum of the losses over the sum of the weights. The trainer alone divides.
      metrics: What is reported beside it.
    """

    loss: Ratio
    metrics: dict[Metric, Ratio]

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.loss + other.loss,
            {metric: ratio + other.metrics[metric] for metric, ratio in self.metrics.items()},
        )


class Task(Protocol):
    """A domain: gives batches their meaning. Anything with these members is a task."""

    @property
    def reduction(self) -> Reduction:
        """Whether the loss is a sum over rows."""

    @property
    def loss_metrics(self) -> Sequence[Metric]:
        """The keys of `loss(...).metrics`."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """The keys of what `evaluate` returns."""

    @property
    def batch_axes(self) -> Mapping[str, tuple[str, ...]]:
        """The logical axes of every entry of a batch; the first is `batch`."""

    def loss(self, model: Any, batch: Batch, key: jax.Array | None) -> LossSums:
        """Return the sums whose quotient is the training loss.

        Args:
          model: The model, under the trace.
          batch: Arrays by name; the leading axis is rows.
          key: Key of this step's randomness, the same for every part of the batch, so that masks
            depend on the token and not on how the batch is split; None for no randomness.
        """

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return the metrics of a batch without randomness; rows of weight 0 count nothing."""

    def count_tokens(self, batch: Batch) -> Any:
        """Return how many targets count, as an integer scalar of the batch's own array kind."""
