"""Constraints on what layers compute, stated in logical axes.

Layers call `constrain`; whoever traces them says under which mesh and rules. Outside of
`activation_rules` nothing is constrained, so layers run anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import Problem, ShardingError
from luthier.parallel.rules import Rules, axis_product, table_problems
from luthier.parallel.specs import resolve


@dataclasses.dataclass(frozen=True)
class _Layout:
    mesh: DeviceMesh
    table: tuple[tuple[str, tuple[str, ...]], ...]


# A context of JAX is a context variable of the thread that is also part of the key of every
# cache of traces: a function traced under one mesh is traced again under another.
_current = jax.make_user_context(None)


@contextlib.contextmanager
def activation_rules(mesh: DeviceMesh, rules: Rules) -> Iterator[None]:
    """Constrain activations in this thread, while the context lasts.

    Args:
      mesh: The devices.
      rules: Which mesh axes share out which logical axis; only `activations` is read.

    Raises:
      ShardingError: Rules name mesh axes that do not exist.
    """
    problems = table_problems(rules.activations, dict(mesh.shape), "parallelism.rules.activations")
    if problems:
        raise ShardingError(problems)
    table = tuple((logical, tuple(axes)) for logical, axes in rules.activations.items())
    with _current(_Layout(mesh, table)):
        yield


def constrain(x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Ask the compiler to lay `x` out as the activation rules say.

    A dimension is left to the compiler if it is named None, if there is no rule for it, or if its
    size is not divisible. A rule without mesh axes replicates the dimension.

    Args:
      x: Any array inside a trace.
      axes: A logical axis name, or None, for every dimension of `x`.

    Returns:
      `x`, of the same values.

    Raises:
      ShardingError: The number of axes is not the number of dimensions.
    """
    if len(axes) != x.ndim:
        what = f"constrain: {len(axes)} logical axes {tuple(axes)} for shape {x.shape}"
        raise ShardingError(Problem(what, remedy="give one name, or None, per dimension"))
    layout = _current.value
    if layout is None or layout.mesh.size == 1:
        return x
    table, sizes = dict(layout.table), dict(layout.mesh.shape)
    entries: list[object] = []
    for size, logical, dimension in zip(x.shape, axes, resolve(axes, table, sizes), strict=True):
        free = logical not in table or size % axis_product(dimension.mesh_axes, sizes)
        entries.append(PartitionSpec.UNCONSTRAINED if free else dimension.entry)
    if all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(layout.mesh, PartitionSpec(*entries)))
