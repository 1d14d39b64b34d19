"""Scaled dot-product attention: the product alone, without parameters, as swappable nodes.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from luthier.errors import BadInput, Problem
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.masks import AttentionMask, Causal, pair_share
from luthier.layers.declared import visible
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens
from luthier.layers.products import stored_product
from luthier.parallel import constrain, is_explicit

# Added to the score of a masked key. Finite, because for a query that may see nothing the softmax
# would subtract -inf from -inf, and its NaN would reach the gradients of all parameters, even where
# the result is not selected. Far below any score: exp of the difference is exactly zero.
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
        """Return the weighted values.

        A core for layers with sinks also takes the keyword `sinks_H`: for each head one more score
        in its softmax, [H] in float32 or wider, with the value zero.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BSGK: Keys [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: Values [B, S, G, K].
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].
          dropout: Keys of the tokens at this site; None means no dropout.
          bias: Makes the bias that is added to the scores; None means no bias.

        Returns:
          [B, L, H, K]; zero for queries that may see nothing.
        """


class _Terms(NamedTuple):
    """The terms that turn scores into weights."""

    visible_BLS: jax.Array
    scale: Any
    bias_BHLS: jax.Array | None
    key: Tokens
    dropout: DropoutKeys | None
    sinks_H: jax.Array | None


@dataclasses.dataclass(frozen=True)
class _Masked(abc.ABC):
    """Base of the cores: a mask, a scale, and zeros for queries that see nothing."""

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
        *,
        sinks_H: jax.Array | None = None,
    ) -> jax.Array:
        """Attend.

        Args:
          query_BLHK: [B, L, H, K].
          key_BSGK: [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: [B, S, G, K].
          query: Positions and segments of the queries.
          key: Positions and segments of the keys.
          dropout: Keys of the queries at this site; None means no dropout.
          bias: Makes the bias that is added to the scaled scores; None means no bias.
          sinks_H: The scores of the heads' sinks [H], float32 or wider; None means no sinks.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.
        """
        # Every query looks at keys all along its row. With explicit axes the gather over a split
        # length must be asked for; with automatic ones the compiler inserts it.
        if is_explicit():
            key_BSGK, value_BSGK, key = jax.tree.map(_whole_rows, (key_BSGK, value_BSGK, key))
        visible_BLS = self.mask(query, key)
        scale = query_BLHK.shape[-1] ** -0.5 if self.scale is None else self.scale
        bias_BHLS = None if bias is None else bias(query, key)
        terms = _Terms(visible_BLS, scale, bias_BHLS, key, dropout, sinks_H)
        with visible(pair_share(self.mask, query_BLHK.shape[1], key_BSGK.shape[1])):
            context_BLHK = self._attend(query_BLHK, key_BSGK, value_BSGK, terms)
        # With all keys masked alike, the softmax weights them all alike: padding would get the mean
        # of its row, and cores would differ in what they return there.
        sees_BL11 = visible_BLS.any(-1)[:, :, None, None]
        return jnp.where(sees_BL11, context_BLHK, jnp.zeros((), context_BLHK.dtype))

    @abc.abstractmethod
    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        """Attend; the result for queries that see nothing is not used."""


@dataclasses.dataclass(frozen=True)
class EinsumAttention(_Masked):
    """`softmax(c tanh(q k^T s / c) + bias) v` as two products, with the softmax in float32.

    With sinks, the softmax is over one more score for each head, whose value is zero.

    Args:
      mask: The attention mask: the keys that each query may look at.
      scale: s; None means 1 / sqrt(K).
      cap: c, which scores stay below; None means no cap: the tanh is left out.
      dropout: Probability of dropping a weight after the softmax, by (query, key); may be traced.
        None means no dropout.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> query_BLHK, key_BSGK = jnp.ones((1, 3, 4, 8)), jnp.ones((1, 3, 2, 8))
      >>> layers.EinsumAttention()(query_BLHK, key_BSGK, key_BSGK, tokens, tokens).shape
      (1, 3, 4, 8)

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1; Ainslie et al. 2023,
      arXiv 2305.13245 (groups of query heads that share keys and values); Gemma Team 2024,
      arXiv 2408.00118, section 2 (caps); OpenAI 2025, arXiv 2508.10925, section 2.3 (sinks).
    """

    RANGES: ClassVar[dict[str, str]] = {"cap": "0 < x", "dropout": "0 <= x < 1"}
    mask: AttentionMask = Causal()
    scale: float | None = None
    cap: float | None = None
    dropout: float | None = None

    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        # Scores are products of bfloat16 factors, accumulated and kept in float32, up to the
        # softmax: exp turns an absolute error of a score into a relative error of a weight. The
        # weights are then rounded to the values' type for the second product.
        #
        # The cap comes before the mask: after it, it would bring masked scores back to -c.
        B, L, H, K = query_BLHK.shape
        G, kind = key_BSGK.shape[2], wide(query_BLHK.dtype)
        # Query heads by groups, so that keys and values of grouped-query attention are never
        # repeated in memory. Heads first: that spares the CPU backend some transposes, and others
        # do not mind.
        query_BGRLK = query_BLHK.reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)
        key_BGSK, value_BGSK = key_BSGK.swapaxes(1, 2), value_BSGK.swapaxes(1, 2)
        scores_BGRLS = terms.scale * stored_product(
            "BGRLK,BGSK->BGRLS", query_BGRLK, key_BGSK, kind
        )
        if self.cap is not None:
            scores_BGRLS = soft_cap(scores_BGRLS, self.cap)
        # Added and not selected: the derivative of a sum needs nothing, that of a select needs the
        # mask, which would be kept for the backward pass at the size of the scores.
        hidden_BLS = jnp.where(terms.visible_BLS, jnp.zeros((), kind), _FLOOR)
        scores_BGRLS = scores_BGRLS + hidden_BLS[:, None, None]
        if terms.bias_BHLS is not None:
            scores_BGRLS = scores_BGRLS + grouped(terms.bias_BHLS, G)
        sinks_GR11 = None
        if terms.sinks_H is not None:
            sinks_GR11 = terms.sinks_H.astype(kind).reshape(G, H // G, 1, 1)
        weights_BGRLS = softmax(scores_BGRLS, sinks_GR11).astype(value_BSGK.dtype)
        if self.dropout is not None and terms.dropout is not None:
            keep = jnp.asarray(1.0 - self.dropout, jnp.float32)
            is_kept_BHLS = uniform_pairs(terms.dropout, terms.key, H) < keep
            weights_BGRLS = weights_BGRLS * (1.0 / keep).astype(weights_BGRLS.dtype)
            weights_BGRLS = jnp.where(grouped(is_kept_BHLS, G), weights_BGRLS, 0)
        context_BGRLK = jnp.einsum("BGRLS,BGSK->BGRLK", weights_BGRLS, value_BGSK)
        return context_BGRLK.transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


@dataclasses.dataclass(frozen=True)
class FusedAttention(_Masked):
    """The attention of `EinsumAttention` by `jax.nn.dot_product_attention`.

    It has neither cap nor dropout. JAX chooses the implementation: in jax 0.10, two products on
    every device.

    Args:
      mask: The attention mask: the keys that each query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    mask: AttentionMask = Causal()
    scale: float | None = None

    def _attend(
        self, query_BLHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, terms: _Terms
    ) -> jax.Array:
        if terms.sinks_H is not None:
            remedy = "use AutoAttention, or drop the sinks"
            raise BadInput(Problem("FusedAttention has no sinks", remedy=remedy))
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

    Returns:
      The capped values, of the shape of `x`.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from luthier import layers
      >>> print(np.asarray(layers.soft_cap(jnp.array([0.1, 50.0]), 10.0)).round(2))
      [ 0.1 10. ]

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
    nothing else: not on the row that holds both.
    """

    # The key's document need not be folded in: the query's token key contains it, and pairs of
    # different documents are masked. This is what lets a ring draw the same numbers block by block.
    def draw(token_key: jax.Array, position: jax.Array) -> jax.Array:
        pair = jax.random.fold_in(token_key, position)
        return jax.random.uniform(pair, (num_heads,), jnp.float32)

    of_row = jax.vmap(jax.vmap(draw, (None, 0)), (0, None))
    return jax.vmap(of_row)(keys.token_keys_BL, key.positions_BL).transpose(0, 3, 1, 2)


def softmax(scores: jax.Array, sinks: jax.Array | None = None) -> jax.Array:
    """Softmax over the last dimension, which keeps little but its result for the backward pass.

    Args:
      scores: Scores; the keys are the last dimension.
      sinks: One more score for each of the other dimensions, which takes its share of the weight;
        it broadcasts against the scores, with 1 as last dimension. None means none.

    Returns:
      Weights of the shape of `scores`; with sinks, they sum up to less than one.
    """
    return _softmax(scores) if sinks is None else _softmax_beside(scores, sinks)


@jax.custom_jvp
def _softmax(scores: jax.Array) -> jax.Array:
    # Autodiff of these lines would keep exp(s - max) and its sum, or a division by it, beside the
    # result. The derivative in terms of the result p alone is dp = p (ds - sum(p ds)), and p is
    # kept anyway, as a factor of the product with the values. The maximum takes no derivative: the
    # softmax does not depend on what is subtracted.
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@_softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Any, Any]:
    (scores,), (change,) = primals, tangents
    weights = _softmax(scores)
    return weights, weights * (change - (weights * change).sum(-1, keepdims=True))


@jax.custom_jvp
def _softmax_beside(scores: jax.Array, sinks: jax.Array) -> jax.Array:
    return _weights_beside(scores, sinks)[0]


def _weights_beside(scores: jax.Array, sinks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the weights of the keys and those of the sinks."""
    largest = jnp.maximum(scores.max(-1, keepdims=True), sinks)
    weights, of_sinks = jnp.exp(scores - largest), jnp.exp(sinks - largest)
    total = weights.sum(-1, keepdims=True) + of_sinks
    return weights / total, of_sinks / total


@_softmax_beside.defjvp
def _softmax_beside_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # The same with one more weight p' and its score s': dp = p (ds - sum(p ds) - p' ds').
    (scores, sinks), (change, of_sinks) = primals, tangents
    weights, of_sink = _weights_beside(scores, sinks)
    mean = (weights * change).sum(-1, keepdims=True) + of_sink * of_sinks
    return weights, weights * (change - mean)
