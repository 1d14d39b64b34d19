"""Layouts of results where the axes of the mesh are explicit, and the program itself says them.

JAX works out the layout of most results from those of their operands. A product that sums over a
dimension which devices share out, and a look-up in a table that they share out, are ambiguous: the
layers say by `result_sharding` what they want. With automatic axes all of this says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import NamedSharding, PartitionSpec

from luthier.parallel.activations import current_layout
from luthier.parallel.specs import resolve


def is_explicit() -> bool:
    """Return whether this trace is under `activation_rules` of a mesh with explicit axes."""
    layout = current_layout()
    return layout is not None and layout.is_explicit


def result_sharding(like: jax.Array, kept: int, axes: Sequence[str | None]) -> NamedSharding | None:
    """Return how a result is to be laid out: like an operand at first, by the rules at last.

    Args:
      like: The operand.
      kept: How many leading dimensions the result has in common with it.
      axes: Logical axis names of the result's other dimensions, by the rules for activations;
        None is not shared out.

    Returns:
      The sharding; None where the axes of the mesh are automatic, or there is no mesh.
    """
    layout = current_layout()
    if layout is None or not layout.is_explicit:
        return None
    leading = tuple(jax.typeof(like).sharding.spec)[:kept]
    used = {axis for entry in leading for axis in _names(entry)}
    rest = []
    for dimension in resolve(axes, dict(layout.table), layout.sizes):
        free = [axis for axis in dimension.mesh_axes if axis not in used]
        used |= set(free)
        rest.append(tuple(free) if len(free) > 1 else free[0] if free else None)
    return NamedSharding(layout.mesh.abstract_mesh, PartitionSpec(*leading, *rest))


def _names(entry: object) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else () if entry is None else (str(entry),)
