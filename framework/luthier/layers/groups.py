"""Products of groups of rows, each group with a kernel of its own.

TPUs have a kernel for them, which `jax.lax.ragged_dot` compiles to. On other devices XLA multiplies
every row with every kernel and masks, in memory as well: E times the work, and rows as long as all
kernels together. There, dispatch gives every group whole tiles of rows, and products are of tiles.

Shapes: N rows sorted by group, E groups, T tiles of M rows, C tiles of a block, I inputs, O
outputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from luthier.layers.declared import counted
from luthier.layers.parameters import DType, wide
from luthier.parallel import current_platform, varying

# Rows of a tile, at least and at most. A product of more rows uses the device better; smaller tiles
# waste less, as the last one of every group is not full. Groups have four tiles on average, and
# those of few rows two, so that a fifth or a third of the rows is empty. On CPUs 64 rows are
# enough: 4,096 rows of 8 groups, 256 x 512 in float32, forward and backward on two cores, take 34
# ms in tiles of 64, 46 in those of 128 (`ragged_dot`: 283; one kernel for all rows: 20). Numbers of
# GPUs, here and below, are by arithmetic: a tile of 512 rows takes as long as to copy its kernel.
_TILE_ROWS = {"cpu": (64, 64), "gpu": (256, 1024)}
_SMALLEST = 8

# Bytes of the kernels of a block at most. A block is one batched product; the kernels of its tiles
# are copied for it, those of an expert as often as it has tiles. Few tiles do not fill a GPU, many
# need memory. On CPUs what is copied should stay in the cache: in the example above blocks of 8
# tiles take 46 ms, of 40 tiles 79, of one tile 49.
_BLOCK_BYTES = {"cpu": 4 * 2**20, "gpu": 128 * 2**20}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["sizes_E"],
    meta_fields=["active", "tile", "elsewhere"],
)
@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of sorted rows.

    Args:
      sizes_E: Rows of each group, int32 [E]; rows after those of the last group belong to none. A
        product gives anything for them, and their cotangents must be zero.
      active: Rows that do work where the load is balanced: neither padding nor of another device.
      tile: Sizes are multiples of it, and the number of rows is; 0 where sizes may be any.
      elsewhere: Whether other devices have some of the groups, so that many rows are of none here.
    """

    sizes_E: jax.Array
    active: int
    tile: int = 0
    elsewhere: bool = False


def tile_size(num_rows: int, num_groups: int) -> int:
    """Return the rows of a tile on the device of the current trace.

    Args:
      num_rows: Rows of all groups.
      num_groups: E.

    Returns:
      A power of two; 0 where sizes of groups may be any.
    """
    if _platform() == "tpu":
        return 0
    mean = num_rows // num_groups
    least, most = _TILE_ROWS[_platform()]
    size = min(max(mean // 4, least), most, mean // 2)
    return max(_SMALLEST, 2 ** (size.bit_length() - 1)) if size else _SMALLEST


def num_tiles(num_rows: int, num_groups: int, tile: int) -> int:
    """Return how many tiles hold the rows, whatever the sizes of their groups.

    Args:
      num_rows: Rows of all groups.
      num_groups: E.
      tile: Rows of a tile.

    Returns:
      The number of tiles; there may be a few more than needed.
    """
    # Each group may leave all but one row of its last tile empty; no tile is wholly empty. Blocks
    # have a divisor of the number of tiles, so many tiles are rounded up to have some.
    tiles = min(num_rows, (num_rows + num_groups * (tile - 1)) // tile)
    return tiles if tiles < 32 else -(-tiles // 8) * 8


def group_of_tiles(sizes_E: jax.Array, tile: int, tiles: int) -> jax.Array:
    """Return the group of each tile; E for tiles after the last group.

    Args:
      sizes_E: Rows of each group, multiples of `tile`, int32 [E].
      tile: Rows of a tile.
      tiles: T.

    Returns:
      int32 [T].
    """
    starts_T = tile * jnp.arange(tiles, dtype=jnp.int32)
    return jnp.sum(starts_T[:, None] >= jnp.cumsum(sizes_E), 1, dtype=jnp.int32)


def multiply(x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups) -> jax.Array:
    """Return the products of rows with the kernels of their groups.

    Args:
      x_NI: [N, I], sorted by group.
      kernel_EIO: [E, I, O], of the same type.
      groups: The groups.

    Returns:
      [N, O] in the type of the factors.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4 (tiles of rows of one expert).
    """
    if not groups.tile:
        return jax.lax.ragged_dot(x_NI, kernel_EIO, groups.sizes_E)
    return _of_tiles(x_NI, kernel_EIO, groups)


def _platform() -> str:
    name = current_platform() or jax.default_backend()
    return name if name in ("cpu", "tpu") else "gpu"


# A custom VJP, because the derivative of a kernel's copies is a sum of copies in the type of the
# kernel, by a scatter: rounded for every tile, and on GPUs in any order. Here it is a sum in
# float32, tile by tile.
@jax.custom_vjp
def _of_tiles(x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups) -> jax.Array:
    return rows_by_kernels(functools.partial(jnp.einsum, "cmi,cio->cmo"), x_NI, kernel_EIO, groups)


def _of_tiles_forward(
    x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups
) -> tuple[jax.Array, Any]:
    return _of_tiles(x_NI, kernel_EIO, groups), (x_NI, kernel_EIO, groups)


def _of_tiles_backward(kept: Any, gradient_NO: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_NI, kernel_EIO, groups = kept
    back = functools.partial(jnp.einsum, "cmo,cio->cmi")
    sums = functools.partial(jnp.einsum, "mi,mo->io", preferred_element_type=wide(x_NI.dtype))
    to_x = rows_by_kernels(back, gradient_NO, kernel_EIO, groups)
    return to_x, rows_by_rows(sums, x_NI, gradient_NO, groups, kernel_EIO.dtype), None


_of_tiles.defvjp(_of_tiles_forward, _of_tiles_backward)


def rows_by_kernels(
    product: Callable[[Any, Any], jax.Array], rows: Any, kernels: Any, groups: Groups
) -> jax.Array:
    """Return a product of tiles of rows with the kernels of their groups, in blocks of tiles.

    Args:
      product: Maps tiles [C, M, *] and as many kernels [C, *, *] to [C, M, O].
      rows: Arrays with a leading dimension N.
      kernels: Arrays with a leading dimension E.
      groups: The groups, with tiles.

    Returns:
      [N, O].
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    tile, num_groups = groups.tile, groups.sizes_E.shape[0]
    tiles = num_rows // tile
    group_T = group_of_tiles(groups.sizes_E, tile, tiles)
    num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kernels))
    most = _BLOCK_BYTES[_platform()] * num_groups // max(num_bytes, 1)
    if groups.elsewhere:  # the last block that holds rows is computed as a whole
        most = min(most, groups.active // (4 * tile))
    block = max(size for size in range(1, tiles + 1) if tiles % size == 0 and size <= max(most, 1))

    turns = tiles // block
    blocks = jax.tree.map(lambda x: x.reshape(turns, block, tile, *x.shape[1:]), rows)
    group_SC = jnp.minimum(group_T, num_groups - 1).reshape(turns, block)

    def compute(turn: Any) -> jax.Array:
        rows, group_C = jax.tree.map(lambda x: x[turn], (blocks, group_SC))
        return product(rows, jax.tree.map(lambda x: x[group_C], kernels))

    if turns == 1:
        with counted(groups.active, num_rows):
            return compute(0).reshape(num_rows, -1)
    one = jax.eval_shape(compute, 0)
    zero, (blocks, kernels) = _late_zero(one.dtype, (blocks, kernels))
    start = varying(jnp.broadcast_to(zero, (turns, *one.shape)), rows, kernels, group_T)

    def store(turn: Any, found: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(found, compute(turn), turn, 0)

    return _repeat(groups, block, turns, store, start).reshape(num_rows, -1)


def rows_by_rows(
    product: Callable[[Any, Any], jax.Array], left: Any, right: Any, groups: Groups, dtype: DType
) -> jax.Array:
    """Return the sum over its rows of every group, of a product of two arrays of rows.

    Args:
      product: Maps tiles [M, *] of both to their sum [I, O], in a type of at least 32 bits.
      left: Arrays, those with a leading dimension N by rows, others (scales) the same for all.
      right: As `left`.
      groups: The groups, with tiles.
      dtype: Dtype of the result.

    Returns:
      [E, I, O]; zeros for a group without rows.
    """
    num_groups, tile = groups.sizes_E.shape[0], groups.tile
    leaves, treedef = jax.tree.flatten((left, right))
    num_rows = max(x.shape[0] for x in leaves)
    tiles = num_rows // tile
    is_row = [x.shape[0] == num_rows for x in leaves]
    rows = [
        x.reshape(tiles, tile, *x.shape[1:]) for x, row in zip(leaves, is_row, strict=True) if row
    ]

    group_T = group_of_tiles(groups.sizes_E, tile, tiles)
    group_T = jnp.minimum(group_T, num_groups - 1)  # tiles of none add zeros to the last group
    is_first_T = jnp.concatenate([jnp.ones_like(group_T[:1]), jnp.diff(group_T)]) > 0

    def of_tile(turn: Any) -> jax.Array:
        ours = iter([x[turn] for x in rows])
        both = [next(ours) if row else x for x, row in zip(leaves, is_row, strict=True)]
        return product(*jax.tree.unflatten(treedef, both))

    # Tiles of a group are neighbours: their sum is in float32, and what is stored after each of
    # them is the sum so far, so that the last one stores the whole sum.
    def add(turn: Any, sums: Any) -> Any:
        sums_EIO, sum_IO = sums
        sum_IO = jnp.where(is_first_T[turn], 0, sum_IO) + of_tile(turn)
        rounded_IO, group = sum_IO.astype(dtype), group_T[turn]
        return jax.lax.dynamic_update_index_in_dim(sums_EIO, rounded_IO, group, 0), sum_IO

    one = jax.eval_shape(of_tile, 0)
    zero, rows = _late_zero(dtype, rows)
    of_groups = jnp.broadcast_to(zero, (num_groups, *one.shape))
    empty = of_groups, jnp.zeros(one.shape, one.dtype)
    start = jax.tree.map(lambda x: varying(x, leaves, group_T), empty)
    return _repeat(groups, 1, tiles, add, start)[0]


def _late_zero(dtype: DType, factors: Any) -> tuple[jax.Array, Any]:
    """Return 0 and the factors, where 0 is not known before the factors are."""
    # A loop fills zeros with its results, in place. Of plain zeros the GPU compiler makes one array
    # for all loops of a step, and copies it for each of them, of all layers long before they run.
    return jax.lax.optimization_barrier((jnp.zeros((), dtype), factors))


def _repeat(
    groups: Groups, block: int, turns: int, body: Callable[[Any, Any], Any], start: Any
) -> Any:
    """Run a loop over blocks of tiles; where groups are elsewhere, over those that hold rows."""
    if not groups.elsewhere:
        with counted(groups.active, turns * block * groups.tile):
            return jax.lax.fori_loop(0, turns, body, start)
    # The number of turns is data. A branch in every turn would copy what the loop has found so far.
    rows = block * groups.tile
    with counted(groups.active, rows):
        return jax.lax.fori_loop(0, -(-jnp.sum(groups.sizes_E) // rows), body, start)
