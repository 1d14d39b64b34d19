"""The rounds of a ring, forward and back.

Shapes: B rows, L queries and S keys of one place, G key and value heads, R query heads of each,
K head_dim.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv 2310.01889, algorithm 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.layers.attention.context_parallel import blocks
from luthier.layers.attention.context_parallel.orders import Order
from luthier.layers.attention.masks import Mask
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import Layout, varying

T = TypeVar("T")
U = TypeVar("U")
_WHOLE = PartitionSpec()


class Rows(NamedTuple):
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
      places: Devices along them, N.
      mask: Which keys a query may look at.
      order: Which tokens each place holds.
      make_bias: Makes what is added to the scores; see `blocks.see`.
    """

    layout: Layout
    axes: tuple[str, ...]
    places: int
    mask: Mask
    order: Order
    make_bias: blocks.MakeBias

    def __call__(self, rows: Rows, bias: Any, settings: blocks.Settings) -> jax.Array:
        """Attend.

        Args:
          rows: Queries, keys and values of all places.
          bias: Parameters of the bias; None means no bias.
          settings: Scalars.

        Returns:
          The weighted values [B, L, G, R, K] in the type of the queries.
        """

        @jax.custom_vjp
        def attend(own: Any, others: Any) -> Any:
            return forward(own, others)[0]

        def forward(own: Any, others: Any) -> Any:
            (rows, bias), (tokens, settings) = own, others
            context, *kept = self._forward(Rows(*rows, *tokens), bias, settings)
            return context, (context, *kept, bias, settings)

        def backward(kept: Any, change: Any) -> Any:
            return self._backward(change, *kept), None

        attend.defvjp(forward, backward)
        own = jax.tree.map(lambda x: varying(x, rows, bias), (rows[:3], bias))
        context: jax.Array = attend(own, (rows[3:], settings))
        return context

    def _forward(self, rows: Rows, bias: Any, settings: blocks.Settings) -> Any:
        """Return the values, the rows in the order of the ring, and log weights [B, L, G, R]."""

        def attend(rows: Rows, bias: Any, settings: blocks.Settings) -> Any:
            rows = self._spread(rows)
            queries, keys = rows.sides()

            def look(seen: list[blocks.Seen], _: None, keys: blocks.Keys) -> Any:
                seen = list(seen)
                for i, _j, block in self._blocks(queries, keys):

                    def see(x: blocks.Seen, block: blocks.Block = block) -> blocks.Seen:
                        return blocks.see(x, block, settings, self.make_bias, bias)

                    seen[i] = _where_any(block.visible_BLS, see, seen[i])
                return seen, None

            start = blocks.nothing_seen(queries.query_BGRLK, settings.scale.dtype)
            start = jax.tree.map(lambda x: varying(x, rows, bias), start)
            seen = [start.piece(*cut) for cut in self._cuts(queries.tokens)]
            seen, _ = self._go_round(look, seen, None, keys)
            context, log_weight = blocks.finish(blocks.join(seen))
            context_BLGRK = context.transpose(0, 3, 1, 2, 4).astype(rows.query_BLGRK.dtype)
            return self._gather(context_BLGRK), rows, log_weight.transpose(0, 3, 1, 2)

        along = PartitionSpec(None, self.axes)
        run = self.layout.shard_map(attend, self.axes, (along, _WHOLE, _WHOLE), (along,) * 3)
        return run(rows, bias, settings)

    def _backward(
        self,
        change_BLGRK: jax.Array,
        context_BLGRK: jax.Array,
        rows: Rows,
        log_weight_BLGR: jax.Array,
        bias: Any,
        settings: blocks.Settings,
    ) -> Any:
        """Return the cotangents of (query, key, value) and of the bias's parameters."""
        kind = settings.scale.dtype

        def attend(change: Any, context: Any, rows: Rows, log_weight: Any, rest: Any) -> Any:
            bias, settings = rest
            # Else the sum over the places would be taken in each block, which some places skip.
            bias = jax.tree.map(lambda x: varying(x, rows), bias)
            # Else the sum over the places would be taken in each block, which some places skip.
            bias = jax.tree.map(lambda x: varying(x, rows), bias)
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
                for i, j, block in self._blocks(queries, keys):

                    def add(x: Any, block: Any = block, flow: Any = flows[i]) -> Any:
                        found = blocks.see_backward(flow, block, settings, self.make_bias, bias)
                        return jax.tree.map(jnp.add, x, found)

                    part = of_queries[i], of_keys[j], of_bias
                    part = _where_any(block.visible_BLS, add, part)
                    of_queries[i], of_keys[j], of_bias = part
                return (of_queries, of_bias), of_keys

            def zeros(tree: Any) -> Any:
                made = jax.tree.map(
                    lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, kind)), tree
                )
                return jax.tree.map(lambda x: varying(x, change, rows, bias), made)

            pairs = (keys.key_BGSK, keys.value_BGSK)
            own = zeros([queries.query_BGRLK[:, :, :, a:b] for a, b in cuts[0]]), zeros(bias)
            back = [zeros(tuple(x[:, :, a:b] for x in pairs)) for a, b in cuts[1]]
            (of_queries, of_bias), of_keys = self._go_round(look, own, back, keys)
            of_query = jnp.concatenate(of_queries, 3).transpose(0, 3, 1, 2, 4)
            of_key, of_value = (
                jnp.concatenate(x, 2).swapaxes(1, 2) for x in zip(*of_keys, strict=True)
            )
            found = self._gather((of_query, of_key, of_value))
            return found, jax.tree.map(lambda x: jax.lax.psum(x, self.axes), of_bias)

        along = PartitionSpec(None, self.axes)
        run = self.layout.shard_map(
            attend, self.axes, (along, along, along, along, _WHOLE), (along, _WHOLE)
        )
        found = run(change_BLGRK, context_BLGRK, rows, log_weight_BLGR, (bias, settings))
        own = rows[:3], bias
        return jax.tree.map(lambda x, like: x.astype(like.dtype), found, own)

    def _go_round(
        self, look: Callable[[T, U, blocks.Keys], tuple[T, U]], own: T, back: U, keys: blocks.Keys
    ) -> tuple[T, U]:
        """Look at the keys of all places that matter, the own ones first.

        `own` stays here; `back` goes round with the keys, and comes home in the end.
        """
        length = keys.key_BGSK.shape[2]
        passes = self.order.num_rounds(self.mask, length, self.places) - 1

        def step(carry: tuple[T, U, blocks.Keys], _: None) -> Any:
            own, back, keys = carry
            # Sent before they are looked at, so that both can go on at the same time.
            sent = self._pass_on(keys, 1)
            own, back = look(own, back, keys)
            return (own, self._pass_on(back, 1), sent), None

        (own, back, keys), _ = jax.lax.scan(step, (own, back, keys), None, length=passes)
        own, back = look(own, back, keys)
        return own, self._pass_on(back, self.places - passes)

    def _blocks(
        self, queries: blocks.Queries, keys: blocks.Keys
    ) -> Iterator[tuple[int, int, blocks.Block]]:
        """Yield every piece of the queries with every piece of the keys, and their numbers."""
        for i, cut in enumerate(self._cuts(queries.tokens)):
            piece = queries.piece(*cut)
            for j, other in enumerate(self._cuts(keys.tokens)):
                seen = keys.piece(*other)
                yield i, j, blocks.Block(piece, seen, self.mask(piece.tokens, seen.tokens))

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


def _where_any(visible_BLS: jax.Array, change: Callable[[T], T], x: T) -> T:
    """Change something if any query sees any key."""
    changed: T = jax.lax.cond(visible_BLS.any(), change, lambda x: x, x)
    return changed
