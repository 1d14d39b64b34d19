"""Scaled dot-product attention: the product alone, without parameters, as swappable nodes.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from luthier.layers.attention.masks import Causal, Mask
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens

# Added to the score of a masked key: finite, so that a query that may see nothing makes no NaN.
_FLOOR = -1e30


class Core(Protocol):
    """Attends from queries to keys and values."""

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
    ) -> jax.Array:
        """Return the weighted values [B, L, H, K]; zero for queries that may see nothing."""


@dataclasses.dataclass(frozen=True)
class EinsumAttention:
    """`softmax(q k^T / sqrt(K)) v` as two products, with the softmax in float32.

    Args:
      mask: Which keys a query may look at.

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1; Ainslie et al. 2023,
      arXiv 2305.13245 (groups of query heads that share keys and values).
    """

    mask: Mask = Causal()

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
    ) -> jax.Array:
        """Attend.

        Args:
          query_BLHK: [B, L, H, K].
          key_BSGK: [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: [B, S, G, K].
          query: Positions and segments of the queries.
          key: Positions and segments of the keys.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.
        """
        B, L, H, K = query_BLHK.shape
        G, kind = key_BSGK.shape[2], wide(query_BLHK.dtype)
        # Heads first: the CPU backend is then spared some transposes, and others do not mind.
        query_BGRLK = query_BLHK.reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)
        key_BGSK, value_BGSK = key_BSGK.swapaxes(1, 2), value_BSGK.swapaxes(1, 2)
        scores_BGRLS = jnp.einsum(
            "BGRLK,BGSK->BGRLS", query_BGRLK, key_BGSK, preferred_element_type=kind
        )
        visible_BLS = self.mask(query, key)
        # Added and not selected, so that no mask is kept for the backward pass.
        bias_BLS = jnp.where(visible_BLS, jnp.zeros((), kind), jnp.array(_FLOOR, kind))
        weights_BGRLS = softmax(scores_BGRLS * K**-0.5 + bias_BLS[:, None, None])
        weights_BGRLS = weights_BGRLS.astype(value_BSGK.dtype)
        context_BGRLK = jnp.einsum("BGRLS,BGSK->BGRLK", weights_BGRLS, value_BGSK)
        context_BLHK = context_BGRLK.transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)
        return _clear_blind(context_BLHK, visible_BLS)


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """The same by `jax.nn.dot_product_attention`, which has fused kernels on some devices.

    Args:
      mask: Which keys a query may look at.

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    mask: Mask = Causal()

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
    ) -> jax.Array:
        """Attend; see `EinsumAttention`."""
        visible_BLS = self.mask(query, key)
        context_BLHK = jax.nn.dot_product_attention(
            query_BLHK, key_BSGK, value_BSGK, mask=visible_BLS[:, None]
        )
        return _clear_blind(context_BLHK, visible_BLS)


def _clear_blind(context_BLHK: jax.Array, visible_BLS: jax.Array) -> jax.Array:
    """Set to zero what was computed for queries that may see nothing."""
    sees_BL11 = visible_BLS.any(-1)[:, :, None, None]
    return jnp.where(sees_BL11, context_BLHK, jnp.zeros((), context_BLHK.dtype))


@jax.custom_jvp
def softmax(scores: jax.Array) -> jax.Array:
    """Softmax over the last dimension, which keeps only its result for the backward pass."""
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Any, Any]:
    (scores,), (change,) = primals, tangents
    weights = softmax(scores)
    return weights, weights * (change - (weights * change).sum(-1, keepdims=True))
