"""The layout of what an optimizer derives from parameters: factors, preconditioners, averages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from luthier.parallel.bytes import array_bytes
from luthier.parallel.rules import Table, axis_product
from luthier.parallel.specs import ArrayInfo, Dimension, Placement, resolve

SPARE = ("fsdp",)
"""Mesh axes that share out all of an optimizer's state, whichever dimensions it has."""


def place_derived(
    arrays: Mapping[str, ArrayInfo],
    table: Table,
    sizes: Mapping[str, int],
    spare: Sequence[str] = SPARE,
) -> dict[str, Placement]:
    """Lay out arrays that have not their parameters' shapes, such as a row of means of squares.

    They go along the mesh axes of the dimensions that they keep. Where these are not divisible
    they stay whole, for no setting of the graph could change that; and a spare mesh axis that no
    rule uses takes the first dimension that it divides. A factor that keeps no dimension of FSDP
    would otherwise be the same on every device.

    Args:
      arrays: What to lay out, by name; `axes` must not be None.
      table: Logical axis to mesh axes.
      sizes: Mesh axis to number of devices.
      spare: Mesh axes that take a dimension where no rule gives them one.

    Returns:
      A placement for every array, in the order of `arrays`.
    """
    return {name: _place(name, info, table, sizes, spare) for name, info in arrays.items()}


def _place(
    name: str, info: ArrayInfo, table: Table, sizes: Mapping[str, int], spare: Sequence[str]
) -> Placement:
    axes = tuple(
        None if size % axis_product(dimension.mesh_axes, sizes) else logical
        for logical, size, dimension in zip(
            info.axes or (), info.shape, resolve(info.axes or (), table, sizes), strict=True
        )
    )
    dimensions = resolve(axes, table, sizes)
    used = {axis for dimension in dimensions for axis in dimension.mesh_axes}
    for axis in spare:
        if sizes.get(axis, 1) > 1 and axis not in used:
            dimensions = _with_spare(axis, dimensions, info, sizes)
    shards = math.prod(axis_product(d.mesh_axes, sizes) for d in dimensions)
    return Placement(
        name=name,
        shape=info.shape,
        dtype=info.dtype,
        axes=axes,
        spec=PartitionSpec(*(d.entry for d in dimensions)),
        reason="; ".join(d.reason for d in dimensions) or "scalar: replicated",
        bytes_per_device=array_bytes(info.shape, info.dtype) // shards,
    )


def _with_spare(
    axis: str, dimensions: Sequence[Dimension], info: ArrayInfo, sizes: Mapping[str, int]
) -> list[Dimension]:
    """Let a mesh axis share out the first dimension that it divides, if there is one."""
    found = list(dimensions)
    for index, dimension in enumerate(dimensions):
        if info.shape[index] % (axis_product(dimension.mesh_axes, sizes) * sizes[axis]) == 0:
            reason = f"{dimension.reason} -> {axis} (spare)"
            mesh_axes = (*dimension.mesh_axes, axis)
            found[index] = dataclasses.replace(dimension, mesh_axes=mesh_axes, reason=reason)
            break
    return found
