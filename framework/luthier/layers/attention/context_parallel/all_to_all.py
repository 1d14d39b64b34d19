"""Attention by exchange: rows are split along their length, and meanwhile by heads.

Shapes: B rows, L queries, S keys, H heads, G key and value heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.errors import BadInput, Problem
from luthier.layers.attention.auto import AutoAttention
from luthier.layers.attention.biases import Bias
from luthier.layers.attention.cores import Core
from luthier.layers.dropout import DropoutKeys
from luthier.layers.positions import Tokens
from luthier.parallel import ActivationLayout, Rules, activation_rules, current_layout


@dataclasses.dataclass(frozen=True)
class AllToAllAttention:
    """The attention of another core, with whole rows and a part of the heads on each device.

    Queries, keys and values come in by parts of the rows and are exchanged for heads; the result
    is exchanged back. The core sees what it always sees, so its mask, caps, biases and dropout
    hold. Key and value heads that are fewer than the devices are repeated. Where no mesh axis
    splits the length, or it does not divide the rows (a decoder's new tokens), nothing is
    exchanged.

    Args:
      core: The attention that runs between the exchanges.

    Source: Jacobs et al. 2023, arXiv 2309.14509, section 3.1.
    """

    core: Core = AutoAttention()

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

        Raises:
          BadInput: The devices do not divide the heads.
        """
        # Only the exchanges are manual (`shard_map`); the core runs between them under the
        # compiler, with heads split over more axes than usual. Positions, segments, dropout keys
        # and biases go in whole: they are small, and a core needs those of all keys.
        sinks: dict[str, Any] = {} if sinks_H is None else {"sinks_H": sinks_H}
        layout = current_layout()
        axes = () if layout is None else layout.mesh_axes("length")
        places = 1 if layout is None else math.prod(layout.sizes[axis] for axis in axes)
        lengths = query_BLHK.shape[1], key_BSGK.shape[1]
        if layout is None or places == 1 or any(length % places for length in lengths):
            return self.core(query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias, **sinks)
        rows = layout.mesh_axes("batch")
        # A `shard_map` needs even parts, unlike the compiler: a batch that the axes do not divide
        # (one row in evaluation) is left to the compiler. Heads have no such way out: they are the
        # parts that are exchanged, so uneven query heads are an error. Key and value heads are
        # repeated until they divide, and need no check.
        if query_BLHK.shape[0] % math.prod(layout.sizes[axis] for axis in rows):
            rows = ()
        exchange = _Exchange(layout, rows, axes, layout.mesh_axes("heads"), places)
        exchange.check(query_BLHK.shape[2])
        query_BLHK, key_BSGK, value_BSGK = (
            exchange.for_heads(x) for x in (query_BLHK, key_BSGK, value_BSGK)
        )
        # Meanwhile the rules are those of the exchanged arrays: a core that asks which axes split
        # the length (`BlockwiseAttention`) would undo the exchange otherwise.
        with activation_rules(layout.mesh, exchange.rules()):
            context_BLHK = self.core(
                query_BLHK, key_BSGK, value_BSGK, query, key, dropout, bias, **sinks
            )
        return exchange.for_length(context_BLHK)


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """Parts of rows for heads, and back, among the `places` devices of the mesh axes `axes`.

    `rows` and `heads` are the mesh axes that split rows and heads all the time. They are
    mapped, too: the compiler would gather what it splits itself before an exchange.
    """

    layout: ActivationLayout
    rows: tuple[str, ...]
    axes: tuple[str, ...]
    heads: tuple[str, ...]
    places: int

    def check(self, num_heads: int) -> None:
        """Reject heads that the devices do not divide."""
        sizes = {axis: self.layout.sizes[axis] for axis in (*self.heads, *self.axes)}
        shards = math.prod(sizes.values())
        if num_heads % shards:
            mesh = " x ".join(f"{axis}={size}" for axis, size in sizes.items())
            what = f"AllToAllAttention: {num_heads} heads cannot be exchanged over {mesh}"
            what += f" = {shards} devices" if len(sizes) > 1 else ""
            remedy = f"make num_heads a multiple of {shards}, or use RingAttention"
            raise BadInput(Problem(what, remedy=remedy))

    def rules(self) -> Rules:
        """Return the rules by which whole rows and a part of the heads are on each device."""
        heads = (*self.heads, *self.axes)
        changed = {"length": (), "heads": heads, "kv_heads": heads}
        return Rules(activations={**dict(self.layout.table), **changed})

    def for_heads(self, x_BLHK: jax.Array) -> jax.Array:
        """Give away parts of the rows; heads are repeated until there is one for each device."""
        # Repeated in two steps: first up to what the axes of `heads` need, outside, where an array
        # is still whole; then, within each of their shards, up to one for each place. Each head is
        # repeated in place, so that query head h still meets key head h // (H / G).
        shared = math.prod(self.layout.sizes[axis] for axis in self.heads)
        x_BLHK = _repeated(x_BLHK, shared)

        def exchange(x_BLHK: jax.Array) -> jax.Array:
            x_BLHK = _repeated(x_BLHK, self.places)
            return jax.lax.all_to_all(x_BLHK, self.axes, split_axis=2, concat_axis=1, tiled=True)

        return self._run(exchange, *self._specs)(x_BLHK)

    def for_length(self, x_BLHK: jax.Array) -> jax.Array:
        """Give away heads."""

        def exchange(x_BLHK: jax.Array) -> jax.Array:
            return jax.lax.all_to_all(x_BLHK, self.axes, split_axis=1, concat_axis=2, tiled=True)

        return self._run(exchange, *reversed(self._specs))(x_BLHK)

    def _run(self, exchange: Any, given: PartitionSpec, found: PartitionSpec) -> Any:
        # The batch and head axes are manual, too, although nothing is exchanged over them: left to
        # the compiler, what they split would be gathered at the boundary.
        return self.layout.shard_map(exchange, (*self.rows, *self.heads, *self.axes), given, found)

    @property
    def _specs(self) -> tuple[PartitionSpec, PartitionSpec]:
        by_length = PartitionSpec(self.rows or None, self.axes, self.heads or None)
        return by_length, PartitionSpec(self.rows or None, None, (*self.heads, *self.axes))


def _repeated(x_BLHK: jax.Array, shards: int) -> jax.Array:
    """Repeat heads, each as often, so that shards divide them."""
    num_heads = x_BLHK.shape[2]
    # The least multiple, so that groups stay equal: 3 heads over 2 devices become 6, not 4.
    times = math.lcm(num_heads, shards) // num_heads
    return x_BLHK if times == 1 else jnp.repeat(x_BLHK, times, axis=2)
