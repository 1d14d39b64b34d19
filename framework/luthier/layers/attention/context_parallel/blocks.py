"""Attention block by block: a softmax over keys that arrive one part after the other.

The softmax is computed online (Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3): after
some of the keys, `Seen` holds for each query the largest score m, the sum l = sum exp(s - m) and
the sum o = sum exp(s - m) v. A block with larger scores raises m to m', and what was summed before
is scaled by exp(m - m'). The result o / l does not depend on the order of the blocks, but for
rounding; everything is in float32.

Shapes: B rows, L queries, S keys of a block, G key and value heads, R query heads of each,
H = G R, K head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from luthier.layers.attention.cores import grouped, soft_cap, uniform_pairs
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens

MakeBias = Callable[[Any, Tokens, Tokens], jax.Array]


class ScoreSettings(NamedTuple):
    """Scalars that make weights of scores; float32 or wider.

    Args:
      scale: Factor of the scores.
      cap: Upper bound of the scores; None means no cap.
      keep: Probability of keeping a weight; None means no dropout.
    """

    scale: jax.Array
    cap: jax.Array | None
    keep: jax.Array | None


class Queries(NamedTuple):
    """Queries of a block, with their tokens.

    Args:
      query_BGRLK: Queries by groups.
      tokens: Their positions and segments.
      dropout: Keys of their tokens; None means no dropout.
    """

    query_BGRLK: jax.Array
    tokens: Tokens
    dropout: DropoutKeys | None

    def piece(self, start: int, stop: int) -> Queries:
        """Return the queries of some of the tokens."""
        tokens, dropout = _cut((self.tokens, self.dropout), start, stop)
        return Queries(self.query_BGRLK[:, :, :, start:stop], tokens, dropout)


class Keys(NamedTuple):
    """Keys and values of a block, with their tokens.

    Args:
      key_BGSK: Keys.
      value_BGSK: Values.
      tokens: Their positions and segments.
    """

    key_BGSK: jax.Array
    value_BGSK: jax.Array
    tokens: Tokens

    def piece(self, start: int, stop: int) -> Keys:
        """Return the keys of some of the tokens."""
        key_BGSK, value_BGSK = self.key_BGSK[:, :, start:stop], self.value_BGSK[:, :, start:stop]
        return Keys(key_BGSK, value_BGSK, _cut(self.tokens, start, stop))


class ScoreBlock(NamedTuple):
    """Some queries and some keys.

    Args:
      queries: The queries.
      keys: The keys.
      visible_BLS: The mask: the keys that each query may look at.
    """

    queries: Queries
    keys: Keys
    visible_BLS: jax.Array


class Seen(NamedTuple):
    """The state of a softmax after some of the keys.

    Args:
      total_BGRLK: Sum of the values, weighted by exp(score - largest).
      largest_BGRL: Largest score; -inf before the first visible key.
      weight_BGRL: Sum of exp(score - largest).
    """

    total_BGRLK: jax.Array
    largest_BGRL: jax.Array
    weight_BGRL: jax.Array

    def piece(self, start: int, stop: int) -> Seen:
        """Return the state of some of the queries."""
        return Seen(*(x[:, :, :, start:stop] for x in self))


class Flow(NamedTuple):
    """The cotangents of queries, and what the backward pass needs of their forward pass.

    Args:
      change_BGRLK: Cotangent of the weighted values.
      product_BGRL: Its product with them, summed over K.
      log_weight_BGRL: Logarithm of the sum of exp(score).
    """

    change_BGRLK: jax.Array
    product_BGRL: jax.Array
    log_weight_BGRL: jax.Array

    def piece(self, start: int, stop: int) -> Flow:
        """Return the part of some of the queries."""
        return Flow(*(x[:, :, :, start:stop] for x in self))


def nothing_seen(query_BGRLK: jax.Array, kind: Any) -> Seen:
    """Return the state of a softmax before the first key, in `kind`, a floating type."""
    total = jnp.zeros(query_BGRLK.shape, kind)
    return Seen(total, jnp.full(total.shape[:-1], -jnp.inf, kind), total[..., 0])


def see(
    seen: Seen, block: ScoreBlock, settings: ScoreSettings, make_bias: MakeBias | None, bias: Any
) -> Seen:
    """Continue the softmax with the keys of one more block.

    Args:
      seen: The state of its queries so far.
      block: Queries and keys.
      settings: Scalars.
      make_bias: Makes the bias of scores from (its parameters, queries, keys); None without one.
      bias: Its parameters; None means no bias.
    """
    # Masked scores are -inf, and not a large negative number: before its first visible key a query
    # has the largest score -inf, and must be told apart from one with small scores. `finite` stands
    # in for -inf in the differences, so that exp(-inf - 0) = 0 and never exp(-inf + inf) = NaN.
    keys = block.keys
    scores = _scores(block, settings, make_bias)(block.queries.query_BGRLK, keys.key_BGSK, bias)
    scores = jnp.where(block.visible_BLS[:, None, None], scores, -jnp.inf)
    largest = jnp.maximum(seen.largest_BGRL, scores.max(-1))
    finite = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = jnp.exp(scores - finite[..., None])
    shrink = jnp.exp(seen.largest_BGRL - finite)
    # Dropout acts on the weights that the values get, not on their sum: as after a softmax.
    kept = _kept(block, settings, weights).astype(keys.value_BGSK.dtype)
    values = jnp.einsum(
        "BGRLS,BGSK->BGRLK", kept, keys.value_BGSK, preferred_element_type=weights.dtype
    )
    total = seen.total_BGRLK * shrink[..., None] + values
    return Seen(total, largest, seen.weight_BGRL * shrink + weights.sum(-1))


def join(pieces: Sequence[Seen]) -> Seen:
    """Return the state of several pieces of the queries together."""
    return Seen(*(jnp.concatenate(each, 3) for each in zip(*pieces, strict=True)))


def finish(seen: Seen) -> tuple[jax.Array, jax.Array]:
    """Return the weighted values, and the logarithm of the sum of exp(score).

    Both are zero for queries that have seen nothing.
    """
    blind = seen.weight_BGRL == 0
    weight = jnp.where(blind, 1, seen.weight_BGRL)
    largest = jnp.where(blind, 0, seen.largest_BGRL)
    return seen.total_BGRLK / weight[..., None], largest + jnp.log(weight)


def see_backward(
    flow: Flow, block: ScoreBlock, settings: ScoreSettings, make_bias: MakeBias | None, bias: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], Any]:
    """Return the summands of a block in the cotangents.

    Args:
      flow: The cotangents of its queries.
      block: Queries and keys.
      settings: Scalars.
      make_bias: As for `see`.
      bias: Its parameters; None means no bias.

    Returns:
      Cotangents of the queries, of (keys, values), and of the bias's parameters.

    Source: Dao et al. 2022, arXiv 2205.14135, algorithm 4.
    """
    # With P = exp(S - logsumexp) the weights, O = P V and dO the cotangent of the result:
    #   dV = P^T dO,  dP = dO V^T,  dS = P (dP - D),  D = sum_k dO O = sum_s P dP.
    # D and the logsumexp are of whole rows and were computed once, so each block needs nothing of
    # the others, and no scores are kept: they are computed again here, with their pull-back to
    # queries, keys and bias. With dropout, O is of the dropped weights and so is D; dP is dropped
    # and scaled like the weights, by the same draws.
    keys, kind = block.keys, settings.scale.dtype
    scores, pull = jax.vjp(
        _scores(block, settings, make_bias), block.queries.query_BGRLK, keys.key_BGSK, bias
    )
    weights = jnp.exp(scores - flow.log_weight_BGRL[..., None])
    weights = jnp.where(block.visible_BLS[:, None, None], weights, 0)
    of_weights = jnp.einsum(
        "BGRLK,BGSK->BGRLS", flow.change_BGRLK, keys.value_BGSK, preferred_element_type=kind
    )
    of_weights = _kept(block, settings, of_weights)
    kept = _kept(block, settings, weights).astype(flow.change_BGRLK.dtype)
    of_values = jnp.einsum(
        "BGRLS,BGRLK->BGSK", kept, flow.change_BGRLK, preferred_element_type=kind
    )
    of_query, of_key, of_bias = pull(weights * (of_weights - flow.product_BGRL[..., None]))
    return of_query, (of_key, of_values), of_bias


def _scores(
    block: ScoreBlock, settings: ScoreSettings, make_bias: MakeBias | None
) -> Callable[..., jax.Array]:
    kind = settings.scale.dtype

    def scores(query_BGRLK: jax.Array, key_BGSK: jax.Array, bias: Any) -> jax.Array:
        scores_BGRLS = settings.scale * jnp.einsum(
            "BGRLK,BGSK->BGRLS", query_BGRLK, key_BGSK, preferred_element_type=kind
        )
        if settings.cap is not None:
            scores_BGRLS = soft_cap(scores_BGRLS, settings.cap)
        if make_bias is None:
            return scores_BGRLS
        bias_BHLS = make_bias(bias, block.queries.tokens, block.keys.tokens)
        return scores_BGRLS + grouped(bias_BHLS, key_BGSK.shape[1]).astype(kind)

    return scores


def _cut(of_tokens: Any, start: int, stop: int) -> Any:
    return jax.tree.map(lambda x: x[:, start:stop], of_tokens)


def _kept(block: ScoreBlock, settings: ScoreSettings, x_BGRLS: jax.Array) -> jax.Array:
    """Drop weights, or their cotangents, and scale the others."""
    dropout = block.queries.dropout
    if settings.keep is None or dropout is None:
        return x_BGRLS
    _, G, R, _, _ = x_BGRLS.shape
    draws_BHLS = uniform_pairs(dropout, block.keys.tokens, G * R)
    kept = grouped(draws_BHLS, G) < settings.keep
    return jnp.where(kept, x_BGRLS / settings.keep, 0)
