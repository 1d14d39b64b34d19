"""Dispatch that drops nothing: tokens sorted by expert, products of groups of any size.

Shapes: B rows, L length, D embed, E experts, K choices of a token, T tokens, N = T K.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from luthier.layers.experts.grouped import grouped
from luthier.layers.experts.movement import collect, spread
from luthier.layers.experts.routing import Choice
from luthier.layers.experts.stacked import EXPERTS, counted
from luthier.parallel.activations import Layout, current_layout


@dataclasses.dataclass(frozen=True)
class Dropless:
    """Every expert computes just the tokens that chose it, however many, by `jax.lax.ragged_dot`.

    Over a mesh, every device sorts its own tokens. Over an `expert` axis, devices that share out
    the experts gather each other's tokens, compute those of their own experts, and add up the
    results: exact whatever the load, for the memory and the traffic of all tokens of the group.

    Experts must be made of `Linear` maps and functions of single numbers.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4 (grouped products for any load).
    Deviation: Over an `expert` axis an all-gather and a reduce-scatter, not an all-to-all: what a
      device sends does not depend on the router, so that shapes are known beforehand.
    """

    def __call__(
        self, experts: nnx.Module, x_BLD: jax.Array, choice: Choice
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the chosen experts; see `Dispatch`."""
        experts_BLK, weights_BLK = choice.experts_BLK, choice.weights_BLK
        layout, dropped = current_layout(), jnp.zeros((), weights_BLK.dtype)
        if layout is None or layout.mesh.size == 1:
            return _apply(experts, x_BLD, experts_BLK, weights_BLK), dropped
        return _shared_out(layout, experts, x_BLD, experts_BLK, weights_BLK), dropped


def _apply(
    experts: nnx.Module, x_BLD: jax.Array, experts_BLK: jax.Array, weights_BLK: jax.Array
) -> jax.Array:
    """Apply the experts that are here to the tokens that are here; number E means none of them."""
    K, D = experts_BLK.shape[-1], x_BLD.shape[-1]
    E = jax.tree.leaves(nnx.state(experts))[0].shape[0]
    experts_N = experts_BLK.reshape(-1)
    N = experts_N.size
    order_N = jnp.argsort(experts_N, stable=True).astype(jnp.int32)
    rank_N = jnp.zeros_like(order_N).at[order_N].set(jnp.arange(N, dtype=jnp.int32))
    sizes_E = jnp.sum(experts_N[:, None] == jnp.arange(E), 0, dtype=jnp.int32)
    sources_N = jnp.where(experts_N[order_N] < E, order_N, N)
    places_TK = jnp.where(experts_N < E, rank_N, N).reshape(-1, K)
    x_ND = spread(x_BLD.reshape(-1, D), sources_N, places_TK)
    y_ND = grouped(experts, sizes_E)(x_ND[None])[0]
    y_TKD = collect(y_ND, sources_N, places_TK)
    weights_TK = weights_BLK.reshape(-1, K)
    with counted(0, 1):
        y_TD = jnp.einsum("tkd,tk->td", y_TKD.astype(weights_TK.dtype), weights_TK)
    return y_TD.reshape(x_BLD.shape)


def _shared_out(
    layout: Layout,
    experts: nnx.Module,
    x_BLD: jax.Array,
    experts_BLK: jax.Array,
    weights_BLK: jax.Array,
) -> jax.Array:
    rows = _fitting(layout, "batch", x_BLD.shape[0])
    length = _fitting(layout, "length", x_BLD.shape[1])
    owners = layout.mesh_axes(EXPERTS)
    gathered = tuple(axis for axis in rows if axis in owners)
    repeated = tuple(axis for axis in owners if axis not in gathered)
    graphdef, state = nnx.split(experts)
    leaves, treedef = jax.tree.flatten(state)

    def on_device(leaves: Any, x_BLD: Any, experts_BLK: Any, weights_BLK: Any) -> jax.Array:
        own = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        num_own = leaves[0].shape[0]
        if gathered:
            x_BLD, experts_BLK, weights_BLK = (
                jax.lax.all_gather(x, gathered, axis=0, tiled=True)
                for x in (x_BLD, experts_BLK, weights_BLK)
            )
        first = jax.lax.axis_index(owners) * num_own if owners else 0
        here_BLK = (experts_BLK >= first) & (experts_BLK < first + num_own)
        experts_BLK = jnp.where(here_BLK, experts_BLK - first, num_own)
        y_BLD = _apply(own, x_BLD, experts_BLK, weights_BLK)
        if gathered:
            y_BLD = jax.lax.psum_scatter(y_BLD, gathered, scatter_dimension=0, tiled=True)
        return jax.lax.psum(y_BLD, repeated) if repeated else y_BLD

    manual = tuple(dict.fromkeys((*rows, *length, *owners)))
    if not manual:
        return on_device(leaves, x_BLD, experts_BLK, weights_BLK)
    spec = PartitionSpec(rows or None, length or None, None)
    run = layout.shard_map(
        on_device, manual, ([PartitionSpec(owners or None)] * len(leaves), spec, spec, spec), spec
    )
    return run(leaves, x_BLD, experts_BLK, weights_BLK)


def _fitting(layout: Layout, logical: str, size: int) -> tuple[str, ...]:
    """Return the mesh axes that share out a dimension; none where they do not divide it."""
    axes = layout.mesh_axes(logical)
    return () if size % math.prod(layout.sizes[axis] for axis in axes) else axes
