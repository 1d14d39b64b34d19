"""Scaled dot-product attention: the product alone, without parameters, as swappable nodes.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from luthier.layers.attention.biases import Bias
from luthier.layers.attention.masks import AttentionMask, Causal, pair_share
from luthier.layers.declared import visible
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens
from luthier.parallel import constrain, is_explicit

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
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Return the weighted values [B, L, H, K]; zero for queries that may see nothing."""


class _Terms(NamedTuple):
    """What makes weights of scores."""

    visible_BLS: jax.Array
    scale: Any
    bias_BHLS: jax.Array | None
    key: Tokens
    dropout: DropoutKeys | None


@dataclasses.dataclass(frozen=True)
class _Masked(abc.ABC):
    """What all cores have in common: a mask, a scale, and zeros for queries that see nothing."""

    mask: AttentionMask = Causal()
    scale: float | None = None

    def __call__(
        self,
        query_BLHK: jax.Array,
        key_BSGK: jax.Array,
        value_BSGK: jax.Array,
        query: Tokens,
        key: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Attend.

        Args:
          query_BLHK: [B, L, H, K].
          key_BSGK: [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: [B, S, G, K].
          query: Positions and segments of the queries.
          key: Positions and segments of the keys.
          dropout: Keys of the queries at this site; None means no dropout.
          bias: Makes what is added to the scaled scores; None means nothing.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.
        """
        if is_explicit():  # every query looks at keys all along its row
            key_BSGK, value_BSGK, key = jax.tree.map(_whole_rows, (key_BSGK, value_BSGK, key))
        visible_BLS = self.mask(query, key)
        scale = query_BLHK.shape[-1] ** -0.5 if self.scale is None else self.scale
        bias_BHLS = None if bias is None else bias(query, key)
        terms = _Terms(visible_BLS, scale, bias_BHLS, key, dropout)
        with visible(pair_share(self.mask, query_BLHK.shape[1], key_BSGK.shape[1])):
            context_BLHK = self._attend(query_BLHK, key_BSGK, value_BSGK, terms)
        sees_BL11 = visible_BLS.any(-1)[:, :, None, None]
        return jnp.where(sees_BL11, context_BLHK, jnp.zeros((), context_BLHK.dtype))

    @abc.abstractmethod
    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        """Attend; what comes of queries that see nothing does not matter."""


@dataclasses.dataclass(frozen=True)
class EinsumAttention(_Masked):
    """`softmax(c tanh(q k^T s / c) + bias) v` as two products, with the softmax in float32.

    Args:
      mask: Which keys a query may look at.
      scale: s; None means 1 / sqrt(K).
      cap: c, which scores stay below; None means no cap: the tanh is left out.
      dropout: Probability of dropping a weight after the softmax, by (query, key); may be traced.
        None means no dropout.

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1; Ainslie et al. 2023,
      arXiv 2305.13245 (groups of query heads that share keys and values); Gemma Team 2024,
      arXiv 2408.00118, section 2 (caps).
    """

    RANGES: ClassVar[dict[str, str]] = {"cap": "0 < x", "dropout": "0 <= x < 1"}
    mask: AttentionMask = Causal()
    scale: float | None = None
    cap: float | None = None
    dropout: float | None = None

    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        B, L, H, K = query_BLHK.shape
        G, kind = key_BSGK.shape[2], wide(query_BLHK.dtype)
        # Heads first: the CPU backend is then spared some transposes, and others do not mind.
        query_BGRLK = query_BLHK.reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)
        key_BGSK, value_BGSK = key_BSGK.swapaxes(1, 2), value_BSGK.swapaxes(1, 2)
        scores_BGRLS = terms.scale * jnp.einsum(
            "BGRLK,BGSK->BGRLS", query_BGRLK, key_BGSK, preferred_element_type=kind
        )
        if self.cap is not None:
            scores_BGRLS = soft_cap(scores_BGRLS, self.cap)
        # Added and not selected, so that no mask is kept for the backward pass.
        hidden_BLS = jnp.where(terms.visible_BLS, jnp.zeros((), kind), _FLOOR)
        scores_BGRLS = scores_BGRLS + hidden_BLS[:, None, None]
        if terms.bias_BHLS is not None:
            scores_BGRLS = scores_BGRLS + grouped(terms.bias_BHLS, G)
        weights_BGRLS = softmax(scores_BGRLS).astype(value_BSGK.dtype)
        if self.dropout is not None and terms.dropout is not None:
            keep = jnp.asarray(1.0 - self.dropout, jnp.float32)
            kept_BHLS = uniform_pairs(terms.dropout, terms.key, H) < keep
            weights_BGRLS = weights_BGRLS * (1.0 / keep).astype(weights_BGRLS.dtype)
            weights_BGRLS = jnp.where(grouped(kept_BHLS, G), weights_BGRLS, 0)
        context_BGRLK = jnp.einsum("BGRLS,BGSK->BGRLK", weights_BGRLS, value_BGSK)
        return context_BGRLK.transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


@dataclasses.dataclass(frozen=True)
class FusedAttention(_Masked):
    """The same by `jax.nn.dot_product_attention`, which has fused kernels on some devices.

    It has neither cap nor dropout.

    Args:
      mask: Which keys a query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    mask: AttentionMask = Causal()
    scale: float | None = None

    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        return jax.nn.dot_product_attention(
            query_BLHK,
            key_BSGK,
            value_BSGK,
            bias=terms.bias_BHLS,
            mask=terms.visible_BLS[:, None],
            scale=terms.scale,
        )


def soft_cap(x: jax.Array, cap: Any) -> jax.Array:
    """Return `cap tanh(x / cap)`: nearly x where it is small, never beyond the cap.

    Args:
      x: Scores or logits, any shape.
      cap: The bound; may be traced.

    Source: Bello et al. 2016, arXiv 1611.09940, section 3; Gemma Team 2024, arXiv 2408.00118,
      section 2.
    """
    return cap * jnp.tanh(x / cap)


def _whole_rows(x: jax.Array) -> jax.Array:
    axes = ("batch", "length", "kv_heads", "head_dim")[: x.ndim]
    return constrain(x, axes, {"length": ()})


def grouped(x_BHLS: jax.Array, num_kv_heads: int) -> jax.Array:
    """Split the heads: [B, G, R, L, S]."""
    B, H, L, S = x_BHLS.shape
    return x_BHLS.reshape(B, num_kv_heads, H // num_kv_heads, L, S)


def uniform_pairs(keys: DropoutKeys, key: Tokens, num_heads: int) -> jax.Array:
    """Draw from [0, 1) for every query token, key position and head: [B, H, L, S].

    A draw depends on the query's token and on the key's position in the same document, and on
    nothing else: not on the row that both stand in.
    """

    def draw(token_key: jax.Array, position: jax.Array) -> jax.Array:
        pair = jax.random.fold_in(token_key, position)
        return jax.random.uniform(pair, (num_heads,), jnp.float32)

    of_row = jax.vmap(jax.vmap(draw, (None, 0)), (0, None))
    return jax.vmap(of_row)(keys.token_keys_BL, key.positions_BL).transpose(0, 3, 1, 2)


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
