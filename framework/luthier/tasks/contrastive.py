"""Telling pairs from other pairs of the batch. Shapes: B rows, A parts, N = A B rows, D dim."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys, fold
from luthier.losses import InfoNCE, unit
from luthier.metrics import LOSS, RETRIEVAL_ACCURACY, Metric, Ratio
from luthier.tasks.classification import row_keys
from luthier.tasks.task import Batch, BatchCoupled, LossSums
from luthier.tasks.token_ratios import weighted_sum


def model_output(model: Any, inputs: jax.Array, dropout: DropoutKeys | None) -> jax.Array:
    """Return what a classifier gives, taken as an embedding [B, D].

    Args:
      model: Called as `model(inputs, dropout=...)`.
      inputs: One view of the rows [B, ...].
      dropout: Keys of the rows; None means no dropout.
    """
    return model(inputs, dropout=dropout)


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """Brings the two views of an example together, and apart from those of the other examples.

    A batch holds the two views, float32 [B, ...], int32 [B] `examples` (0 for padding), and float32
    [B] `weights`. All pairs of the global batch contrast with each other, also where a step is cut
    into microbatches: the trainer collects the vectors of all of them first.

    Args:
      objective: The loss of a pair, given all pairs.
      views: The entries of the batch that are the two views. The same entry twice gives views that
        differ by dropout only (Gao et al. 2021, arXiv:2104.08821).
      embed: From (model, view, dropout) to vectors [B, D]; by default the model's output.
      input_axes: Logical axis names of a view's dimensions after the rows.

    Source: van den Oord et al. 2018, arXiv:1807.03748; Chen et al. 2020, arXiv:2002.05709.
    """

    reduction: ClassVar[BatchCoupled] = BatchCoupled("in-batch negatives")
    loss_metrics: ClassVar[tuple[Metric, ...]] = (RETRIEVAL_ACCURACY,)
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, RETRIEVAL_ACCURACY)

    objective: InfoNCE = InfoNCE()
    views: Sequence[str] = ("inputs", "others")
    embed: Callable[[Any, jax.Array, DropoutKeys | None], jax.Array] = model_output
    input_axes: Sequence[str | None] = (None, None, None)

    @property
    def batch_axes(self) -> dict[str, tuple[str | None, ...]]:
        """The logical axes of every entry of a batch."""
        rows = dict.fromkeys(("weights", "examples"), ("batch",))
        return {**dict.fromkeys(self.views, ("batch", *self.input_axes)), **rows}

    def statistics(self, model: Any, batch: Batch, key: jax.Array | None) -> dict[str, jax.Array]:
        """Return what other rows need to know of these: their vectors and weights.

        Args:
          model: As for `loss`.
          batch: As for `loss`.
          key: As for `loss`.

        Returns:
          `left` and `right`, vectors of unit length, float32 [B, D], and `weights`, float32 [B].
        """
        keys = row_keys(key, batch)
        left, right = self.views
        return {
            "left": unit(self.embed(model, batch[left], fold(keys, 0))),
            "right": unit(self.embed(model, batch[right], fold(keys, 1))),
            "weights": jnp.asarray(batch["weights"]),
        }

    def loss(
        self, model: Any, batch: Batch, key: jax.Array | None, statistics: Any = None
    ) -> LossSums:
        """Return the summed loss of these pairs among all, over their summed weights.

        Args:
          model: What `embed` takes, under the trace.
          batch: As above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.
          statistics: Those of all parts of the batch, with a leading dimension A; None where this
            is the whole batch.
        """
        ratios = self._ratios(model, batch, key, statistics)
        return LossSums(ratios[LOSS], {metric: ratios[metric] for metric in self.loss_metrics})

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric within this batch, without dropout: it depends on the batch size."""
        return self._ratios(model, batch, None, None)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of pairs with non-zero weight."""
        return (batch["weights"] != 0).sum()

    def _ratios(
        self, model: Any, batch: Batch, key: jax.Array | None, statistics: Any
    ) -> dict[Metric, Ratio]:
        own = self.statistics(model, batch, key)
        if statistics is None:
            every = own
        else:
            every = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), statistics)
        losses = self.objective(
            own["left"], own["right"], every["left"], every["right"], every["weights"]
        )
        weights_B = own["weights"]
        pairs = jnp.sum(weights_B)
        return {
            LOSS: Ratio(weighted_sum(losses.loss_B, weights_B), pairs),
            RETRIEVAL_ACCURACY: Ratio(weighted_sum(losses.correct_B, weights_B), pairs),
        }
