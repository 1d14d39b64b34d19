"""Ring attention: every device holds a part of each row, and keys and values go round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.errors import BadInput, Problem
from luthier.layers.attention import blocks
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.cores import EinsumAttention
from luthier.layers.attention.masks import AttentionMask, Window
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import ActivationLayout, current_layout, current_platform, varying

# Ring orders: the part of each row that a place of the ring holds, and the number of rounds.
#
# Shapes: L tokens of a row at each place, P pieces that a place attends to and from one by one.

Axes = tuple[str, ...]


class RingOrder(Protocol):
    """Splits the tokens of rows among the places of a ring; used inside of `shard_map`."""

    @property
    def num_pieces(self) -> int:
        """P; places hold a multiple of this many tokens of each row."""

    def num_rounds(self, mask: AttentionMask, length: int, places: int) -> int:
        """Return the number of places, its own included, whose keys a place has to see.

        Args:
          mask: The attention mask.
          length: Tokens of a row, L.
          places: Places of the ring.

        Returns:
          From 1 to `places`.
        """

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return this place's tokens.

        Args:
          x: Tokens as they follow in the row [B, L, ...].
          axes: The mesh axes of the ring.
          places: Places of the ring.

        Returns:
          This place's tokens [B, L, ...].
        """

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Undo `spread`.

        Args:
          x: The result of `spread`.
          axes: The mesh axes of the ring.
          places: Places of the ring.

        Returns:
          Tokens as they follow in the row [B, L, ...].
        """


@dataclasses.dataclass(frozen=True)
class Contiguous:
    """Each place holds tokens that follow one another.

    The work is even where every token sees as many others: with no mask but the documents, and
    with windows, which need the keys of the nearest places only. With a causal mask the last
    place has most of it.
    """

    @property
    def num_pieces(self) -> int:
        """One."""
        return 1

    def num_rounds(self, mask: AttentionMask, length: int, places: int) -> int:
        """Return the number of places whose keys a place has to see: with a window, the nearest.

        Args:
          mask: The attention mask: the keys that each query may look at.
          length: L.
          places: Places of the ring.

        Returns:
          From 1 to `places`.
        """
        # The number of rounds is the length of a scan, so it must be static: a window whose size
        # is traced (hoisted) goes all the way round, and its blocks are skipped one by one. The
        # first token of a place reaches back `size - 1` tokens, into ceil((size - 1) / L) places.
        if not isinstance(mask, Window) or not isinstance(mask.size, int):
            return places
        return min(places, 1 + -(-(mask.size - 1) // length))

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return `x`.

        Args:
          x: Tokens [B, L, ...].
          axes: The mesh axes of the ring.
          places: Places of the ring.

        Returns:
          `x` [B, L, ...].
        """
        return x

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return `x`.

        Args:
          x: Tokens [B, L, ...].
          axes: The mesh axes of the ring.
          places: Places of the ring.

        Returns:
          `x` [B, L, ...].
        """
        return x


@dataclasses.dataclass(frozen=True)
class Zigzag:
    """Each place holds one piece from the front of a row and one from its end.

    Of 2N pieces, place i holds i and 2N - 1 - i: with a causal mask, every place does the same
    work in every round, half of that without a mask. Tokens are exchanged on the way in and out.

    Source: Zhu 2024, "ring-flash-attention", zigzag scheme; Brandon et al. 2023, arXiv 2311.09431
      (the imbalance, and another remedy).
    """

    @property
    def num_pieces(self) -> int:
        """Two."""
        return 2

    def num_rounds(self, mask: AttentionMask, length: int, places: int) -> int:
        """Return the number of places: nearest pieces come from both sides.

        Args:
          mask: The attention mask.
          length: Tokens of a row, L.
          places: Places of the ring.

        Returns:
          `places`.
        """
        return places

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Exchange pieces.

        Args:
          x: Tokens 2 i L / 2 ... of the row, [B, L, ...].
          axes: The mesh axes of the ring.
          places: N.

        Returns:
          Pieces i and 2N - 1 - i, one after the other, [B, L, ...].
        """
        # Place i comes with the pieces 2i and 2i + 1, and goes with i and 2N - 1 - i. A `ppermute`
        # sends one array from each place to one other, so the pieces travel in two of them: the
        # even ones and the odd ones. Of i and 2N - 1 - i exactly one is even, so that each of the
        # two is a permutation.
        even, odd = jnp.split(x, 2, axis=1)
        even = jax.lax.ppermute(even, axes, [(c // 2, _place(c, places)) for c in _evens(places)])
        odd = jax.lax.ppermute(odd, axes, [(c // 2, _place(c, places)) for c in _odds(places)])
        return _by_parity(even, odd, axes)

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Exchange pieces back; see `spread`.

        Args:
          x: The result of `spread`.
          axes: The mesh axes of the ring.
          places: Places of the ring.

        Returns:
          Tokens as they follow in the row [B, L, ...].
        """
        first, last = jnp.split(x, 2, axis=1)
        # A place holds one even piece and one odd one; the even one is first at even places.
        even, odd = jnp.split(_by_parity(first, last, axes), 2, axis=1)
        even = jax.lax.ppermute(even, axes, [(_place(c, places), c // 2) for c in _evens(places)])
        odd = jax.lax.ppermute(odd, axes, [(_place(c, places), c // 2) for c in _odds(places)])
        return jnp.concatenate([even, odd], axis=1)


def _place(piece: int, places: int) -> int:
    return min(piece, 2 * places - 1 - piece)


def _evens(places: int) -> range:
    return range(0, 2 * places, 2)


def _odds(places: int) -> range:
    return range(1, 2 * places, 2)


def _by_parity(one: jax.Array, other: jax.Array, axes: Axes) -> jax.Array:
    """Put two pieces one after the other, at odd places the other way round."""
    is_even = jax.lax.axis_index(axes) % 2 == 0
    first, last = jnp.where(is_even, one, other), jnp.where(is_even, other, one)
    return jnp.concatenate([first, last], axis=1)


# The rounds of a ring, forward and back.
#
# Shapes: B rows, L queries and S keys of one place, G key and value heads, R query heads of each, K
# head_dim.
#
# Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv 2310.01889, algorithm
# 1.

T = TypeVar("T")
U = TypeVar("U")
_WHOLE = PartitionSpec()


class RingRows(NamedTuple):
    """Everything with a length: [B, L, ...] or [B, S, ...].

    Args:
      query_BLGRK: Queries by groups.
      key_BSGK: Keys.
      value_BSGK: Values.
      query: Positions and segments of the queries.
      key: The same of the keys.
      dropout: Data of the queries' dropout keys, uint32 [B, L, ...]; None means no dropout.
    """

    query_BLGRK: Any
    key_BSGK: Any
    value_BSGK: Any
    query: Tokens
    key: Tokens
    dropout: Any

    def sides(self) -> tuple[blocks.Queries, blocks.Keys]:
        """Return queries and keys, heads first."""
        # Dropout keys cross `shard_map` and `custom_vjp` as uint32 data, and are wrapped here.
        dropout = self.dropout
        if dropout is not None:
            dropout = DropoutKeys(jax.random.wrap_key_data(dropout))
        queries = blocks.Queries(self.query_BLGRK.transpose(0, 2, 3, 1, 4), self.query, dropout)
        key_BGSK, value_BGSK = self.key_BSGK.swapaxes(1, 2), self.value_BSGK.swapaxes(1, 2)
        return queries, blocks.Keys(key_BGSK, value_BGSK, self.key)


@dataclasses.dataclass(frozen=True)
class Ring:
    """Attention over a ring; the backward pass goes round once more, and no scores are kept.

    Args:
      layout: The mesh.
      axes: Its axes that make the ring.
      batch: Its axes that split the rows.
      places: Devices along the ring, N.
      mask: The attention mask: the keys that each query may look at.
      order: The assignment of tokens to places.
      block_size: Most queries, and most keys, whose scores are computed at a time.
      make_bias: Makes the bias of the scores, if there is one; see `blocks.see`.
    """

    layout: ActivationLayout
    axes: tuple[str, ...]
    batch: tuple[str, ...]
    places: int
    mask: AttentionMask
    order: RingOrder
    block_size: int
    make_bias: blocks.MakeBias | None

    def __call__(
        self,
        rows: RingRows,
        bias: Any,
        settings: blocks.ScoreSettings,
        sinks_GR: jax.Array | None = None,
    ) -> jax.Array:
        """Attend.

        Args:
          rows: Queries, keys and values of all places.
          bias: Parameters of the bias; None means no bias.
          settings: Scalars.
          sinks_GR: The scores of the heads' sinks; None means no sinks.

        Returns:
          The weighted values [B, L, G, R, K] in the type of the queries.
        """

        # The derivative is written by hand, because that of a scan would keep the scores of each
        # round: all of them, which is what a ring is to avoid. What is kept is the result, queries,
        # keys and values of each place, and one logsumexp for each query.
        #
        # `own` is differentiated: queries, keys, values, and what is the same on all places, the
        # parameters of the bias and the sinks. `others` are tokens, dropout keys and settings,
        # whose cotangent is None.
        @jax.custom_vjp
        def attend(own: Any, others: Any) -> Any:
            return forward(own, others)[0]

        def forward(own: Any, others: Any) -> Any:
            (rows, same), (tokens, settings) = own, others
            context, *kept = self._forward(RingRows(*rows, *tokens), same, settings)
            return context, (context, *kept, same, settings)

        def backward(kept: Any, change: Any) -> Any:
            return self._backward(change, *kept), None

        attend.defvjp(forward, backward)
        # Within another `shard_map`, rows vary over its axes, and parameters of the bias need not.
        # The cotangents that `backward` returns vary as the rows do, and JAX requires that they
        # vary as their primals do.
        same = bias, sinks_GR
        own = jax.tree.map(lambda x: varying(x, rows, same), (rows[:3], same))
        context: jax.Array = attend(own, (rows[3:], settings))
        return context

    def _forward(self, rows: RingRows, same: Any, settings: blocks.ScoreSettings) -> Any:
        """Return the values, the rows in the order of the ring, and log weights [B, L, G, R]."""

        # Runs on each place with its own tokens, [B, L / N, ...]. Carried round after round: the
        # softmax states of the own queries, which stay, and the keys that are passing through.
        def attend(rows: RingRows, same: Any, settings: blocks.ScoreSettings) -> Any:
            rows, (bias, sinks_GR) = self._spread(rows), same
            queries, keys = rows.sides()

            def look(seen: list[blocks.Seen], _: None, keys: blocks.Keys) -> Any:
                seen = list(seen)
                for i, _j, pairs in self._pairs(queries, keys, settings, bias):
                    seen[i] = blocks.see_tiles(seen[i], pairs)
                return seen, None

            # Zeros are the same on all places, but what the loop carries afterwards is not: JAX
            # wants a carry that varies at the end to vary at the start.
            start = blocks.nothing_seen(queries.query_BGRLK, settings.scale.dtype, sinks_GR)
            start = jax.tree.map(lambda x: varying(x, rows, same), start)
            seen = [start.piece(*cut) for cut in self._cuts(queries.tokens)]
            seen, _ = self._go_round(look, seen, None, keys)
            context, log_weight = blocks.finish(blocks.join(seen))
            # The result goes back to the order of the tokens. Rows and log weights stay in that of
            # the ring, in which the backward pass reads them; their length is dimension 1 again, as
            # it is what the places split.
            context_BLGRK = context.transpose(0, 3, 1, 2, 4).astype(rows.query_BLGRK.dtype)
            return self._gather(context_BLGRK), rows, log_weight.transpose(0, 3, 1, 2)

        along = self._along
        return self._run(attend, (along, _WHOLE, _WHOLE), (along,) * 3)(rows, same, settings)

    def _backward(
        self,
        change_BLGRK: jax.Array,
        context_BLGRK: jax.Array,
        rows: RingRows,
        log_weight_BLGR: jax.Array,
        same: Any,
        settings: blocks.ScoreSettings,
    ) -> Any:
        """Return the cotangents of (query, key, value), and of the bias's parameters and sinks."""
        kind = settings.scale.dtype

        def attend(change: Any, context: Any, rows: RingRows, log_weight: Any, rest: Any) -> Any:
            same, settings = rest
            # Otherwise JAX would sum the bias's cotangent over the places in each block, a
            # collective inside of a `cond` that some places skip: it would hang. Marked as varying,
            # it stays local, and one `psum` at the end sums it.
            bias, sinks_GR = jax.tree.map(lambda x: varying(x, rows), same)
            # D of `blocks.see_backward`, in float32, before anything is exchanged: D is smaller
            # than the context by a factor of K, and the context itself need not be exchanged then.
            product = jnp.einsum("BLGRK,BLGRK->BLGR", change, context, preferred_element_type=kind)
            change, product = self._spread((change, product))
            flow = blocks.Flow(
                change.transpose(0, 2, 3, 1, 4),
                product.transpose(0, 2, 3, 1),
                log_weight.transpose(0, 2, 3, 1),
            )
            queries, keys = rows.sides()
            cuts = self._cuts(queries.tokens), self._cuts(keys.tokens)
            flows = [flow.piece(*cut) for cut in cuts[0]]

            def look(own: Any, back: Any, keys: blocks.Keys) -> Any:
                (of_queries, of_bias), of_keys = (list(own[0]), own[1]), list(back)
                for i, j, pairs in self._pairs(queries, keys, settings, bias):
                    totals = of_queries[i], of_keys[j], of_bias
                    totals = blocks.see_tiles_backward(totals, flows[i], pairs)
                    of_queries[i], of_keys[j], of_bias = totals
                return (of_queries, of_bias), of_keys

            def zeros(tree: Any) -> Any:
                empty = jax.tree.map(
                    lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, kind)), tree
                )
                return jax.tree.map(lambda x: varying(x, change, rows, bias), empty)

            # Cotangents of queries stay, in `own`. Those of keys and values go round with the keys
            # that they belong to, in `back`, and each place adds its part; all are summed in
            # float32 over the rounds, and cast once, at the end.
            pairs = (keys.key_BGSK, keys.value_BGSK)
            own = zeros([queries.query_BGRLK[:, :, :, a:b] for a, b in cuts[0]]), zeros(bias)
            back = [zeros(tuple(x[:, :, a:b] for x in pairs)) for a, b in cuts[1]]
            (of_queries, of_bias), of_keys = self._go_round(look, own, back, keys)
            of_query = jnp.concatenate(of_queries, 3).transpose(0, 3, 1, 2, 4)
            of_key, of_value = (
                jnp.concatenate(x, 2).swapaxes(1, 2) for x in zip(*of_keys, strict=True)
            )
            found = self._gather((of_query, of_key, of_value))
            of_sinks = None if sinks_GR is None else blocks.change_of_sinks(flow, sinks_GR)
            return found, jax.tree.map(
                lambda x: jax.lax.psum(x, (*self.batch, *self.axes)), (of_bias, of_sinks)
            )

        along = self._along
        run = self._run(attend, (along, along, along, along, _WHOLE), (along, _WHOLE))
        found = run(change_BLGRK, context_BLGRK, rows, log_weight_BLGR, (same, settings))
        own = rows[:3], same
        return jax.tree.map(lambda x, like: x.astype(like.dtype), found, own)

    @property
    def _along(self) -> PartitionSpec:
        return PartitionSpec(self.batch or None, self.axes)

    def _run(self, attend: Any, given: Any, found: Any) -> Any:
        # Nothing is exchanged over the axes of the batch, but blocks are skipped by a branch on
        # what their tokens are: left to the compiler, each block would be one all-reduce of its
        # condition. Heads stay with the compiler: no branch depends on them.
        return self.layout.shard_map(attend, (*self.batch, *self.axes), given, found)

    def _go_round(
        self, look: Callable[[T, U, blocks.Keys], tuple[T, U]], own: T, back: U, keys: blocks.Keys
    ) -> tuple[T, U]:
        """Look at the keys of all places that matter, the own ones first.

        `own` stays here; `back` travels with the keys, and returns to its place in the end.
        """
        length = keys.key_BGSK.shape[2]
        passes = self.order.num_rounds(self.mask, length, self.places) - 1

        def step(carry: tuple[T, U, blocks.Keys], _: None) -> Any:
            own, back, keys = carry
            # The keys are sent before they are looked at: neither needs the other, so the compiler
            # can overlap the transfer with the products. `back` needs the products first.
            sent = self._pass_on(keys, 1)
            own, back = look(own, back, keys)
            return (own, self._pass_on(back, 1), sent), None

        # One look more than passes, so the last one is outside of the loop; then `back` has
        # travelled `passes` places and goes the rest of the way in one step.
        (own, back, keys), _ = jax.lax.scan(step, (own, back, keys), None, length=passes)
        own, back = look(own, back, keys)
        return own, self._pass_on(back, self.places - passes)

    def _pairs(
        self,
        queries: blocks.Queries,
        keys: blocks.Keys,
        settings: blocks.ScoreSettings,
        bias: Any,
    ) -> Iterator[tuple[int, int, blocks.Pairs]]:
        """Yield every piece of the queries with every piece of the keys, and their numbers."""
        # Piece by piece, because a place of a zigzag holds two pieces that are far apart: of a
        # causal mask, whole blocks of pieces are invisible, and are skipped, which a block over
        # both pieces would never be.
        rest = self.mask, self.block_size, settings, self.make_bias, bias
        for i, cut in enumerate(self._cuts(queries.tokens)):
            for j, other in enumerate(self._cuts(keys.tokens)):
                yield i, j, blocks.Pairs(queries.piece(*cut), keys.piece(*other), *rest)

    def _cuts(self, tokens: Tokens) -> list[tuple[int, int]]:
        count = self.order.num_pieces
        size = tokens.positions_BL.shape[1] // count
        return [(i * size, (i + 1) * size) for i in range(count)]

    def _spread(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: self.order.spread(x, self.axes, self.places), tree)

    def _gather(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: self.order.gather(x, self.axes, self.places), tree)

    def _pass_on(self, tree: T, by: int) -> T:
        """Send arrays to the place that is `by` places further."""
        to = [(i, (i + by) % self.places) for i in range(self.places)]
        if by % self.places == 0:
            return tree
        passed: T = jax.tree.map(lambda x: jax.lax.ppermute(x, self.axes, to), tree)
        return passed


# Ring attention: every place holds a part of each row, and keys and values go round.
#
# Shapes: B rows, L queries, S keys, H heads, G key and value heads, R = H / G, K head_dim. Inside
# of the ring L and S count the tokens of one place.


@dataclasses.dataclass(frozen=True)
class RingAttention(EinsumAttention):
    """The attention of `EinsumAttention` over rows that are split along their length.

    No place sees whole rows: keys and values go round the ring of the mesh axes that split
    `length`, and each place attends to one part of them at a time. Blocks in which no query sees a
    key are skipped, be it for a causal mask, a window or documents. Where nothing splits the
    length, or it does not divide the rows (a decoder's new tokens), this is `EinsumAttention`.

    A row holds one document after the other, never interleaved.

    Args:
      mask: The attention mask: the keys that each query may look at.
      scale: Factor of the scores; None means 1 / sqrt(K).
      cap: Upper bound of the scores; None means no cap.
      dropout: Probability of dropping a weight; None means no dropout.
      order: The assignment of tokens to places.
      block_size: Most queries, and most keys, whose scores a place computes at a time; None means
        256 on CPUs and 1,024 elsewhere.

    Source: Liu, Zaharia and Abbeel 2023, arXiv 2310.01889, algorithm 1.
    """

    EXECUTION: ClassVar[tuple[str, ...]] = ("order", "block_size")
    RANGES: ClassVar[dict[str, str]] = {**EinsumAttention.RANGES, "block_size": "1 <= x"}
    order: RingOrder = Zigzag()
    block_size: int | None = None

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
        """Attend; see `EinsumAttention`.

        Args:
          query_BLHK: Queries [B, L, H, K].
          key_BSGK: Keys [B, S, G, K]; query head h uses key head h // (H / G).
          value_BSGK: Values [B, S, G, K].
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].
          dropout: Keys of the tokens at this site; None means no dropout.
          bias: Makes the bias that is added to the scores; None means no bias.
          sinks_H: The scores of the heads' sinks [H], float32 or wider; None means no sinks.

        Returns:
          [B, L, H, K] in the type of the queries; zero for queries that may see nothing.

        Raises:
          BadInput: A place's part of the rows cannot be cut into the pieces of the order, the
            bias is not made of positions alone, or the layer is in a pipeline.
        """
        layout = current_layout()
        axes = () if layout is None else layout.mesh_axes("length")
        lengths = query_BLHK.shape[1], key_BSGK.shape[1]
        places = 1 if layout is None else math.prod(layout.sizes[axis] for axis in axes)
        # As in `AllToAllAttention`: a length that the places do not divide (a decoder's new tokens)
        # is not split.
        if layout is None or places == 1 or any(length % places for length in lengths):
            return super().__call__(
                query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias, sinks_H=sinks_H
            )
        if jax.sharding.get_abstract_mesh().manual_axes:
            # JAX cannot lower the residuals of a `shard_map` within another one.
            what = "RingAttention cannot run inside of a pipeline"
            raise BadInput(Problem(what, remedy="use all_to_all or sequence with pipelines"))
        _check_pieces(lengths, places, axes, self.order)
        # Everything that may be traced (scale, cap, rate of dropout, the bias's parameters) goes in
        # as an argument: a custom VJP may not close over tracers.
        make_bias, parameters = blocks.open_bias(bias, "RingAttention")
        # Rows that the axes do not divide (one row in evaluation) are left to the compiler, and so
        # are heads, which need not be divisible, unlike in `AllToAllAttention`.
        batch = tuple(axis for axis in layout.mesh_axes("batch") if axis not in axes)
        if query_BLHK.shape[0] % math.prod(layout.sizes[axis] for axis in batch):
            batch = ()
        block_size = self.block_size or blocks.size_for(current_platform())
        ring = Ring(layout, axes, batch, places, self.mask, self.order, block_size, make_bias)
        data = None
        if self.dropout is not None and dropout is not None:
            data = jax.random.key_data(dropout.token_keys_BL)
        B, L, H, K = query_BLHK.shape
        query_BLGRK = query_BLHK.reshape(B, L, key_BSGK.shape[2], -1, K)
        rows = RingRows(query_BLGRK, key_BSGK, value_BSGK, query, key, data)
        settings = blocks.ScoreSettings.of(self, query_BLHK, drops=data is not None)
        sinks_GR = None if sinks_H is None else sinks_H.reshape(query_BLGRK.shape[2:4])
        return ring(rows, parameters, settings, sinks_GR).reshape(B, L, H, K)


def _check_pieces(
    lengths: Sequence[int], places: int, axes: tuple[str, ...], order: RingOrder
) -> None:
    # One length is enough for the message: the remedy is the same for queries and keys.
    pieces = places * order.num_pieces
    uneven = [length for length in lengths if length % pieces]
    if uneven:
        what = f"rows of {uneven[0]} tokens cannot be cut into {pieces} equal pieces, "
        what += f"{order.num_pieces} for each place on {', '.join(axes)}"
        remedy = f"use rows of a multiple of {pieces} tokens, or order=Contiguous()"
        raise BadInput(Problem(f"{type(order).__name__}: {what}", remedy=remedy))
