"""Contrast of pairs with the other rows of a batch. Shapes: B rows, N rows of the batch, D dim."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContrastiveLosses:
    """What one pair costs, per row.

    Args:
      loss_B: Mean of both directions, float32: what is trained on.
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
        """
        own_B = (left_BD * right_BD).sum(-1) / self.temperature
        to_right_BN = self._logits(left_BD, all_right_ND, all_weights_N)
        to_left_BN = self._logits(right_BD, all_left_ND, all_weights_N)
        loss_B = 0.5 * (_log_sum(to_right_BN) + _log_sum(to_left_BN)) - own_B
        # Rounding differs between the product of vectors and that of matrices.
        slack_B = 1e-5 * (jnp.abs(own_B) + 1)
        rivals_B = (to_right_BN >= (own_B - slack_B)[:, None]).sum(-1)
        return ContrastiveLosses(loss_B, (rivals_B <= 1).astype(own_B.dtype))

    def _logits(self, some_BD: jax.Array, all_ND: jax.Array, weights_N: jax.Array) -> jax.Array:
        logits_BN = some_BD @ all_ND.T / self.temperature
        return jnp.where(weights_N != 0, logits_BN, -jnp.inf)


def _log_sum(logits_BN: jax.Array) -> jax.Array:
    """Return log sum exp over the last dimension; 0 and no gradient where all is -inf."""
    largest_B1 = jax.lax.stop_gradient(logits_BN.max(-1, keepdims=True))
    largest_B1 = jnp.where(jnp.isfinite(largest_B1), largest_B1, 0)
    total_B = jnp.exp(logits_BN - largest_B1).sum(-1)
    return jnp.log(jnp.where(total_B > 0, total_B, 1)) + largest_B1[:, 0]


def unit(vectors_BD: jax.Array) -> jax.Array:
    """Return vectors at unit length, in float32 or wider.

    Args:
      vectors_BD: Any vectors [B, D]; zero stays zero.
    """
    vectors_BD = vectors_BD.astype(jnp.promote_types(vectors_BD.dtype, jnp.float32))
    square_B1 = jnp.square(vectors_BD).sum(-1, keepdims=True)
    return vectors_BD * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-12))
