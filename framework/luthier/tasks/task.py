"""The interface between trainer and domain: sums of losses, and metrics by typed key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from luthier.metrics import Metric, Ratio

Batch = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Additive:
    """The loss of a batch is the sum over its rows: it may be split in any way."""


@dataclasses.dataclass(frozen=True)
class BatchCoupled:
    """Rows of a batch see each other in the loss, so splitting the batch changes the gradient.

    A task that is a `CoupledTask` can be split all the same; others are rejected.

    Args:
      reason: The coupling (`in-batch negatives`), for the message.
    """

    reason: str


@dataclasses.dataclass(frozen=True)
class CountCoupled(BatchCoupled):
    """As `BatchCoupled`, by statistics without a derivative, such as counts.

    Given them, the loss is a sum over rows, so that a step that is cut costs one more forward pass,
    not two more and a backward pass.

    Args:
      reason: As for `BatchCoupled`.
    """


Reduction = Additive | BatchCoupled


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossSums:
    """The loss of part of a batch, undivided; `+` merges the parts exactly.

    Args:
      loss: Sum of the losses over the sum of the weights. The trainer alone divides.
      metrics: Metrics that are reported beside it.
      updates: New values of the model's variables that are not parameters, by name: running
        statistics, teachers. They are in force after the step, if it is accepted; every part of a
        batch sees the old ones. Of several parts the mean holds, weighted by the loss's weights:
        exact where the new value is affine in a weighted mean over the rows, and where it does not
        depend on the rows. Of integers the last part's value holds.
    """

    loss: Ratio
    metrics: dict[Metric, Ratio]
    updates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __add__(self, other: LossSums) -> LossSums:
        # Updates of several parts are merged as a running weighted mean, m <- m + (w_b / W) (u_b -
        # m) with W the weight so far, and never one after the other: each part saw the old values,
        # and a chain of updates would depend on how the batch is cut.
        loss = self.loss + other.loss
        weight = loss.denominator
        if not self.updates:
            share = None
        else:
            # The zeros that a scan starts from have weight 0, so the first part has share 1, and a
            # part without weight, after others, share 0.
            safe = jnp.where(weight != 0, weight, 1)
            share = jnp.where(weight != 0, other.loss.denominator / safe, 1)
        return LossSums(
            loss,
            {metric: ratio + other.metrics[metric] for metric, ratio in self.metrics.items()},
            {name: _mixed(old, other.updates[name], share) for name, old in self.updates.items()},
        )


def _mixed(old: Any, new: Any, share: Any) -> Any:
    """Return `old + share (new - old)`; nothing of `new`, finite or not, where the share is 0."""
    new = jnp.asarray(new)
    if not jnp.issubdtype(new.dtype, jnp.inexact):
        return new  # a count or a key has no mean
    # The select keeps a NaN of a part without weight out: 0 times NaN would be NaN.
    mixed = old + share.astype(new.dtype) * (new - old)
    return jnp.where(share == 0, old, mixed).astype(new.dtype)


# A task returns sums and the weights to divide them by, and never means. Sums of parts of a batch
# add up exactly, so microbatches, devices and evaluation batches of any size give the same result.
class Task(Protocol):
    """The loss and the metrics of a domain's batches. Any object with these members is a task."""

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

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return the metrics of a batch without randomness; rows of weight 0 count nothing.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of targets that count, an integer scalar of the batch's array type.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """


@runtime_checkable
class CoupledTask(Protocol):
    """A task with a `BatchCoupled` loss that may be split, since it exposes what couples the rows.

    The loss of a part, given the statistics of all parts, must be a sum over the part's rows. Its
    gradient may pass through the statistics: the step makes sure that the result is that of the
    whole batch (`program.accumulation`).
    """

    def statistics(self, model: Any, batch: Batch, key: jax.Array | None) -> Any:
        """Return the statistics that other rows depend on, a pytree of floating point arrays.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.
          key: Key of this step's randomness; None for no randomness.

        Returns:
          Arrays of the sums or rows that the loss needs of all parts.
        """

    def loss(
        self, model: Any, batch: Batch, key: jax.Array | None, statistics: Any = None
    ) -> LossSums:
        """Return the sums whose quotient is the training loss.

        Args:
          model: As for `Task.loss`.
          batch: As for `Task.loss`.
          key: As for `Task.loss`.
          statistics: Those of all parts of the batch, stacked along a new leading dimension; None
            where `batch` is the whole, so that they are its own.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
