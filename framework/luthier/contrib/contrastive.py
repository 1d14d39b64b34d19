"""Learning by contrast: symmetric noise contrastive estimation, and the task that trains by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from luthier.layers.dropout import DropoutKeys, fold
from luthier.metrics import LOSS, RETRIEVAL_ACCURACY, Metric, Ratio
from luthier.tasks.classification import row_keys
from luthier.tasks.task import Batch, BatchCoupled, LossSums
from luthier.tasks.token_ratios import weighted_sum

__all__ = ["Contrastive", "ContrastiveLosses", "InfoNCE", "model_output", "unit"]

# Contrast of pairs with the other rows of a batch. Shapes: B rows, N rows of the batch, D dim.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContrastiveLosses:
    """The losses of pairs, per row.

    Args:
      loss_B: Mean of both directions, float32: the training loss.
      correct_B: 1 where every other right vector is farther from the left one than its own is,
        float32.
    """

    loss_B: jax.Array
    correct_B: jax.Array


@dataclasses.dataclass(frozen=True)
class InfoNCE:
    r"""Symmetric noise contrastive estimation by the other pairs of the batch.

    With unit vectors $u_i, v_i$ of the pair $i$ and the temperature $\tau$, the mean over both
    directions of

    $$ -\frac{u_i \cdot v_i}{\tau} + \log \sum_j \exp \frac{u_i \cdot v_j}{\tau}. $$

    Args:
      temperature: $\tau$.

    Source: van den Oord et al. 2018, arXiv:1807.03748, equation 4; both directions: Radford et al.
      2021, arXiv:2103.00020, figure 3.
    """

    RANGES: ClassVar[dict[str, str]] = {"temperature": "0 < x"}
    temperature: float = 0.07

    def __call__(
        self,
        left_BD: jax.Array,
        right_BD: jax.Array,
        all_left_ND: jax.Array,
        all_right_ND: jax.Array,
        all_weights_N: jax.Array,
    ) -> ContrastiveLosses:
        """Return the loss of some pairs of a batch, given all.

        Args:
          left_BD: One side of the pairs, of unit length, float32 [B, D].
          right_BD: The other side, of unit length, float32 [B, D].
          all_left_ND: The one side of all pairs of the batch, these among them, [N, D].
          all_right_ND: The other side of all pairs, [N, D].
          all_weights_N: Weights of all pairs; those of weight 0 are no negatives, [N].

        Returns:
          Loss and correctness of each pair, float32 [B].
        """
        # The pair's own logit is computed by itself and not picked out of the matrix: the rows
        # given are some of all rows, and nothing says where among them they stand. Own pairs are
        # among the negatives, as the denominator of the softmax has them.
        own_B = (left_BD * right_BD).sum(-1) / self.temperature
        to_right_BN = self._logits(left_BD, all_right_ND, all_weights_N)
        to_left_BN = self._logits(right_BD, all_left_ND, all_weights_N)
        loss_B = 0.5 * (_log_sum(to_right_BN) + _log_sum(to_left_BN)) - own_B
        # A pair is retrieved if nothing but itself reaches its logit: at most one rival, itself.
        # The slack makes sure that it counts itself, as rounding differs between the product of
        # vectors above and that of matrices. So ties with others count as errors: a model that maps
        # all inputs to one vector retrieves nothing.
        slack_B = 1e-5 * (jnp.abs(own_B) + 1)
        rivals_B = (to_right_BN >= (own_B - slack_B)[:, None]).sum(-1)
        return ContrastiveLosses(loss_B, (rivals_B <= 1).astype(own_B.dtype))

    def _logits(self, some_BD: jax.Array, all_ND: jax.Array, weights_N: jax.Array) -> jax.Array:
        # Padding and rows of weight 0 are not negatives: -inf is no term of a sum of exponentials,
        # and its gradient is 0. Multiplying by the weight would leave exp(0) in the sum.
        logits_BN = some_BD @ all_ND.T / self.temperature
        return jnp.where(weights_N != 0, logits_BN, -jnp.inf)


def _log_sum(logits_BN: jax.Array) -> jax.Array:
    """Return log sum exp over the last dimension; 0 and no gradient where all is -inf."""
    # `jax.nn.logsumexp` gives -inf for a row of which everything is masked (a batch of padding),
    # and NaN as its gradient; weighted by 0, the NaN would stay. The maximum only keeps `exp` in
    # range: the value does not depend on it, so no gradient flows through it.
    largest_B1 = jax.lax.stop_gradient(logits_BN.max(-1, keepdims=True))
    largest_B1 = jnp.where(jnp.isfinite(largest_B1), largest_B1, 0)
    total_B = jnp.exp(logits_BN - largest_B1).sum(-1)
    return jnp.log(jnp.where(total_B > 0, total_B, 1)) + largest_B1[:, 0]


def unit(vectors_BD: jax.Array) -> jax.Array:
    """Return vectors at unit length, in float32 or wider.

    Args:
      vectors_BD: Any vectors [B, D]; zero stays zero.

    Returns:
      Float32 or wider [B, D].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import contrastive
      >>> print(contrastive.unit(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
      [[0.6 0.8]
       [0.  0. ]]
    """
    vectors_BD = vectors_BD.astype(jnp.promote_types(vectors_BD.dtype, jnp.float32))
    # The bound is under the root, where the derivative of the root at 0 would be infinite; the
    # gradient of padding, whose vector is zero, is 0 this way.
    square_B1 = jnp.square(vectors_BD).sum(-1, keepdims=True)
    return vectors_BD * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-12))


# The task of telling pairs from other pairs of the batch. Shapes: B rows, A parts, N = A B rows, D
# dim.


def model_output(
    model: Callable[..., jax.Array], inputs: jax.Array, dropout: DropoutKeys | None
) -> jax.Array:
    """Return the output of a classifier as an embedding [B, D].

    Args:
      model: Called as `model(inputs, dropout=...)`.
      inputs: One view of the rows [B, ...].
      dropout: Keys of the rows; None means no dropout.

    Returns:
      The output of the model [B, D].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier.contrib import contrastive
      >>> def model(inputs, dropout):
      ...     return inputs.mean(axis=1)
      >>> print(contrastive.model_output(model, jnp.ones((2, 3, 4)), None).shape)
      (2, 4)
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
      embed: Function from (model, view, dropout) to vectors [B, D]; by default the model's output.
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
        """Return the vectors and weights of these rows, which the losses of all other rows need.

        Args:
          model: The model, as in `loss`.
          batch: The batch, as in `loss`.
          key: The key, as in `loss`.

        Returns:
          `left` and `right`, vectors of unit length, float32 [B, D], and `weights`, float32 [B].
        """
        # Keys are of the row and not of its place in a microbatch, so that the vectors here are
        # those that `loss` computes again. Different folds for the two views: with the same entry
        # twice, dropout is the only difference between them (SimCSE).
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
          model: The model that `embed` takes, under the trace.
          batch: A batch, as described above.
          key: Key of this step's dropout, the same for every part of the batch; None for none.
          statistics: Those of all parts of the batch, with a leading dimension A; None where this
            is the whole batch.

        Returns:
          Numerator and weight of the loss, scalars, with the sums of the metrics of training.
        """
        ratios = self._ratios(model, batch, key, statistics)
        return LossSums(ratios[LOSS], {metric: ratios[metric] for metric in self.loss_metrics})

    def evaluate(self, model: Any, batch: Batch) -> dict[Metric, Ratio]:
        """Return every metric within this batch, without dropout: it depends on the batch size.

        Args:
          model: The model, under the trace.
          batch: A batch of the task.

        Returns:
          Sums of each metric over the batch, scalars.
        """
        return self._ratios(model, batch, None, None)

    def count_tokens(self, batch: Batch) -> Any:
        """Return the number of pairs with non-zero weight.

        Args:
          batch: A batch of the task.

        Returns:
          An integer scalar of the batch's array type.
        """
        return (batch["weights"] != 0).sum()

    def _ratios(
        self, model: Any, batch: Batch, key: jax.Array | None, statistics: Any
    ) -> dict[Metric, Ratio]:
        # Where a batch is cut, `coupled_gradient` (program/accumulation.py) makes three passes:
        # statistics of all parts, derivatives of each part's loss by parameters and by statistics,
        # and the latter pulled back to the parameters. So own vectors are computed again here,
        # where the gradient flows through them directly, and `every` is only an input.
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
