"""Attention block by block: a softmax over keys that arrive one part after the other.

The softmax is computed online (Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3): after
some of the keys, `Seen` holds for each query the largest score m, the sum l = sum exp(s - m) and
the sum o = sum exp(s - m) v. A block with larger scores raises m to m', and what was summed before
is scaled by exp(m - m'). The result o / l does not depend on the order of the blocks, but for
rounding; everything is in float32.

`see_tiles` and `see_tiles_backward` walk over all pairs of many queries and many keys, one tile at
a time, so that no more than a tile of scores is ever in memory. `BlockwiseAttention` attends by
them to whole rows, and each place of a `RingAttention` to the keys that pass through.

Shapes: B rows, L queries, S keys of a block, G key and value heads, R query heads of each,
H = G R, K head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.cores import EinsumAttention, grouped, soft_cap, uniform_pairs
from luthier.layers.attention.masks import AttentionMask
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import wide
from luthier.layers.positions import Tokens

T = TypeVar("T")
MakeBias = Callable[[Any, Tokens, Tokens], jax.Array]


# On a CPU, small blocks stay in its caches; elsewhere each block is a kernel or more.
_CPU_SIZE, _SIZE = 256, 1024


def size_for(platform: str) -> int:
    """Return the size of blocks, in tokens, that suits a platform.

    Args:
      platform: `cpu`, `gpu` or `tpu`; empty where there is no mesh.
    """
    return _CPU_SIZE if platform in ("", "cpu") else _SIZE


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

    @classmethod
    def of(cls, core: EinsumAttention, query_BLHK: jax.Array, *, drops: bool) -> ScoreSettings:
        """Return the scalars of a core as arrays, for a function that must not close over tracers.

        Args:
          core: Has scale, cap and dropout.
          query_BLHK: Queries, for their size and type.
          drops: Whether weights are dropped.
        """
        kind = wide(query_BLHK.dtype)
        scale = query_BLHK.shape[-1] ** -0.5 if core.scale is None else core.scale
        rate: Any = core.dropout if drops else None
        return cls(
            jnp.asarray(scale, kind),
            None if core.cap is None else jnp.asarray(core.cap, kind),
            None if rate is None else jnp.asarray(1.0 - rate, jnp.float32),
        )


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


def nothing_seen(query_BGRLK: jax.Array, kind: Any, sinks_GR: jax.Array | None = None) -> Seen:
    """Return the state of a softmax before the first key.

    Args:
      query_BGRLK: The queries, for their shape.
      kind: Type of the state, a floating type.
      sinks_GR: The scores of the heads' sinks; None means no sinks.
    """
    total = jnp.zeros(query_BGRLK.shape, kind)
    if sinks_GR is None:
        return Seen(total, jnp.full(total.shape[:-1], -jnp.inf, kind), total[..., 0])
    # A sink is a key that all queries have seen, with the value zero.
    largest = jnp.broadcast_to(sinks_GR.astype(kind)[..., None], total.shape[:-1])
    return Seen(total, largest, jnp.ones_like(largest))


def change_of_sinks(flow: Flow, sinks_GR: jax.Array) -> jax.Array:
    """Return the cotangent of sinks from those of all queries of some rows, [G, R].

    Args:
      flow: The cotangents of the queries.
      sinks_GR: The scores of the sinks.
    """
    # dS = P (dP - D) of `see_backward`, where dP is zero, as the value is.
    scores = sinks_GR.astype(flow.product_BGRL.dtype)[..., None]
    return -jnp.sum(jnp.exp(scores - flow.log_weight_BGRL) * flow.product_BGRL, (0, 3))


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
    # has the largest score -inf, which must differ from small scores. `finite` stands in for -inf
    # in the differences, so that exp(-inf - 0) = 0 and never exp(-inf + inf) = NaN.
    keys = block.keys
    scores = _scores(block, settings, make_bias)(_products(block, settings), bias)
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

    Both are zero for queries that have seen nothing, not even a sink.
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
    # products of queries and keys, and to the bias. With dropout, O is of the dropped weights and
    # so is D; dP is dropped and scaled like the weights, by the same draws.
    queries, keys, kind = block.queries.query_BGRLK, block.keys, settings.scale.dtype
    scores, pull = jax.vjp(_scores(block, settings, make_bias), _products(block, settings), bias)
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
    of_products, of_bias = pull(weights * (of_weights - flow.product_BGRL[..., None]))
    # Factors of products are in the type of the queries, sums over blocks in float32.
    of_products = of_products.astype(queries.dtype)
    of_query = jnp.einsum(
        "BGRLS,BGSK->BGRLK", of_products, keys.key_BGSK, preferred_element_type=kind
    )
    of_key = jnp.einsum("BGRLS,BGRLK->BGSK", of_products, queries, preferred_element_type=kind)
    return of_query, (of_key, of_values), of_bias


def _products(block: ScoreBlock, settings: ScoreSettings) -> jax.Array:
    """Return the products of queries and keys, [B, G, R, L, S]."""
    return jnp.einsum(
        "BGRLK,BGSK->BGRLS",
        block.queries.query_BGRLK,
        block.keys.key_BGSK,
        preferred_element_type=settings.scale.dtype,
    )


def _scores(
    block: ScoreBlock, settings: ScoreSettings, make_bias: MakeBias | None
) -> Callable[..., jax.Array]:
    """Return a function from products and the parameters of the bias to scores."""

    def scores(products_BGRLS: jax.Array, bias: Any) -> jax.Array:
        scores_BGRLS = settings.scale * products_BGRLS
        if settings.cap is not None:
            scores_BGRLS = soft_cap(scores_BGRLS, settings.cap)
        if make_bias is None:
            return scores_BGRLS
        bias_BHLS = make_bias(bias, block.queries.tokens, block.keys.tokens)
        return scores_BGRLS + grouped(bias_BHLS, products_BGRLS.shape[1]).astype(scores_BGRLS.dtype)

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


class Pairs(NamedTuple):
    """All pairs of some queries and some keys, and how their scores are made.

    Args:
      queries: The queries.
      keys: The keys.
      mask: The attention mask; it is evaluated tile by tile.
      tile: Most queries, and most keys, of a tile.
      settings: Scalars.
      make_bias: As for `see`.
      bias: Its parameters; None means no bias.
    """

    queries: Queries
    keys: Keys
    mask: AttentionMask
    tile: int
    settings: ScoreSettings
    make_bias: MakeBias | None
    bias: Any

    @property
    def counts(self) -> tuple[int, int]:
        """Number of tiles along the queries, and along the keys."""
        lengths = self.queries.query_BGRLK.shape[3], self.keys.key_BGSK.shape[2]
        rows, columns = (-(-length // self.tile) for length in lengths)
        return rows, columns

    def query_tiles(self) -> tuple[jax.Array, Queries]:
        """Return the tiles of the queries, and which of their tokens exist, [N, C]."""
        count, size = self.counts[0], self.queries.query_BGRLK.shape[3]
        x, tokens, dropout = self.queries
        of_tokens = _tiles((tokens, dropout), 1, count)
        return _exist(size, count), Queries(_tiles(x, 3, count), *of_tokens)

    def key_tiles(self) -> tuple[jax.Array, Keys]:
        """Return the tiles of the keys, and which of their tokens exist, [N, C]."""
        count, size = self.counts[1], self.keys.key_BGSK.shape[2]
        key, value = _tiles(self.keys[:2], 2, count)
        return _exist(size, count), Keys(key, value, _tiles(self.keys.tokens, 1, count))

    def block(self, query: tuple[jax.Array, Queries], key: tuple[jax.Array, Keys]) -> ScoreBlock:
        """Return a tile of the queries with one of the keys."""
        visible_BLS = self.mask(query[1].tokens, key[1].tokens)
        return ScoreBlock(query[1], key[1], visible_BLS & query[0][:, None] & key[0])


def _bound(pairs: Pairs) -> Pairs:
    """Return the same pairs, with tokens that depend on the queries.

    The mask follows from the tokens alone, which are the same for every layer of a scanned stack.
    What is the same in every turn of a loop, JAX and XLA compute before it: here the masks of all
    tiles, spread over the heads, as large as the scores that must not be in memory.
    """
    queries, keys = pairs.queries, pairs.keys
    query_BGRLK, query, key = jax.lax.optimization_barrier(
        (queries.query_BGRLK, queries.tokens, keys.tokens)
    )
    queries = queries._replace(query_BGRLK=query_BGRLK, tokens=query)
    return pairs._replace(queries=queries, keys=keys._replace(tokens=key))


def see_tiles(seen: Seen, pairs: Pairs) -> Seen:
    """Continue the softmax with many keys; see `see`.

    Args:
      seen: The state of the queries so far.
      pairs: The queries and the keys.

    Returns:
      The state of the queries after all keys.
    """
    pairs = _bound(pairs)
    _, _, _, _, settings, make_bias, bias = pairs
    key_tiles = pairs.key_tiles()

    def look(seen: Seen, query: Any, key: Any) -> Seen:
        block = pairs.block(query, key)

        def change(x: Seen) -> Seen:
            return see(x, block, settings, make_bias, bias)

        return where_any(block.visible_BLS, change, seen)

    def of_queries(part: Any) -> Seen:
        query, seen = part
        found: Seen = jax.lax.scan(lambda x, key: (look(x, query, key), None), seen, key_tiles)[0]
        return found

    length, count = seen.weight_BGRL.shape[3], pairs.counts[0]
    found = jax.lax.map(of_queries, (pairs.query_tiles(), _tiles(seen, 3, count)))
    return jax.tree.map(lambda x: _joined(x, 3, length), found)


def see_tiles_backward(totals: Any, flow: Flow, pairs: Pairs) -> Any:
    """Add the summands of many keys to the cotangents; see `see_backward`.

    Args:
      totals: Cotangents so far: of the queries, of (keys, values), of the bias's parameters.
      flow: The cotangents of the result.
      pairs: The queries and the keys.

    Returns:
      The cotangents, like `totals`.
    """
    # Queries are the outer loop. The cotangents of a tile of queries are summed in the inner loop
    # and done with after it; those of all keys go through both.
    pairs = _bound(pairs)
    _, _, _, _, settings, make_bias, bias = pairs
    rows, columns = pairs.counts
    of_queries, of_pair, of_bias = totals
    key_tiles = pairs.key_tiles()

    def look(query: Any, flow: Flow, carry: Any, part: Any) -> Any:
        (of_query, of_bias), (key, of_pair) = carry, part
        block = pairs.block(query, key)

        def add(x: Any) -> Any:
            found = see_backward(flow, block, settings, make_bias, bias)
            return jax.tree.map(jnp.add, x, found)

        totals = of_query, of_pair, of_bias
        of_query, of_pair, of_bias = where_any(block.visible_BLS, add, totals)
        return (of_query, of_bias), of_pair

    def of_query_tile(carry: Any, part: Any) -> Any:
        (of_pairs, of_bias), (query, flow, of_query) = carry, part
        (of_query, of_bias), of_pairs = jax.lax.scan(
            lambda carry, part: look(query, flow, carry, part),
            (of_query, of_bias),
            (key_tiles, of_pairs),
        )
        return (of_pairs, of_bias), of_query

    parts = pairs.query_tiles(), _tiles(flow, 3, rows), _tiles(of_queries, 3, rows)
    carry = _tiles(of_pair, 2, columns), of_bias
    (of_pairs, of_bias), found = jax.lax.scan(of_query_tile, carry, parts)
    lengths = pairs.queries.query_BGRLK.shape[3], pairs.keys.key_BGSK.shape[2]
    of_pair = jax.tree.map(lambda x: _joined(x, 2, lengths[1]), of_pairs)
    return _joined(found, 3, lengths[0]), of_pair, of_bias


def where_any(visible_BLS: jax.Array, change: Callable[[T], T], x: T) -> T:
    """Change something if any query sees any key."""
    # A branch on the device: half of the blocks of a causal mask cost nothing. It holds no
    # collective, so places may decide differently. No derivative passes through it.
    changed: T = jax.lax.cond(visible_BLS.any(), change, lambda x: x, x)
    return changed


def is_open(bias: Bias | None) -> bool:
    """Return whether there is no bias, or one that is made of positions (see `open_bias`)."""
    return bias is None or isinstance(bias, nnx.Module)


def open_bias(bias: Bias | None, core: str) -> tuple[MakeBias | None, Any]:
    """Return a bias as a function of its parameters and of tokens, and its parameters.

    Args:
      bias: The bias; None means no bias.
      core: The class of the core, for the message.

    Raises:
      BadInput: The bias is a function, and not a module that is made of positions.
    """
    # A custom VJP must not close over what is differentiated, so a module is split into its
    # structure, which is closed over, and its arrays, which are an argument. A plain function
    # cannot be split, and may hold arrays of whole rows.
    if bias is None:
        return None, None
    if not is_open(bias):
        what = f"{core} cannot use {type(bias).__name__}, made for whole rows"
        instead = "AllToAllAttention" if core == "RingAttention" else "EinsumAttention"
        remedy = f"use {instead}, or a bias that is made of positions, such as Alibi"
        raise BadInput(Problem(what, remedy=remedy))
    graphdef, state = nnx.split(bias)
    values, treedef = jax.tree.flatten(state)

    def make_bias(values: Any, query: Tokens, key: Tokens) -> jax.Array:
        merged: Any = nnx.merge(graphdef, jax.tree.unflatten(treedef, values))
        found: jax.Array = merged(query, key)
        return found

    return make_bias, tuple(values)


def _tiles(tree: Any, axis: int, count: int) -> Any:
    """Split the length of arrays into equal tiles, and put the number of the tile first."""

    def split(x: jax.Array) -> jax.Array:
        length = x.shape[axis]
        size = -(-length // count)
        # Tiles are as equal as they can be, so fewer tokens than tiles are missing at the end. They
        # are copies of the last one, which keeps all numbers finite; `_exist` hides them.
        if size * count != length:
            places = jnp.minimum(jnp.arange(size * count), length - 1)
            x = jnp.take(x, places, axis=axis)
        x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    return jax.tree.map(split, tree)


def _joined(x: jax.Array, axis: int, length: int) -> jax.Array:
    """Undo `_tiles`."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)


def _exist(length: int, count: int) -> jax.Array:
    size = -(-length // count)
    return (jnp.arange(count * size) < length).reshape(count, size)
