"""Layouts of results where the axes of the mesh are explicit, and the program itself says them.

JAX works out the layout of most results from those of their operands. A product that sums over a
dimension which devices split, and a look-up in a table that they split, are ambiguous: the
layers say by `result_sharding` what they want. With automatic axes all of this says nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import Problem, ShardingError
from luthier.parallel.rules import Rules, axis_product, table_problems
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
        None is not split.

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


# Constraints on what layers compute, stated in logical axes.
#
# Layers call `constrain`; whoever traces them says under which mesh and rules. Outside of
# `activation_rules` nothing is constrained, so layers run anywhere.


@dataclasses.dataclass(frozen=True)
class ActivationLayout:
    """The mesh and the rules under which layers are traced.

    Args:
      mesh: The devices.
      table: Logical axis and its mesh axes, for activations.
    """

    mesh: DeviceMesh
    table: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Mesh axis to number of devices; 1 where this trace is already of one place on it."""
        manual = jax.sharding.get_abstract_mesh().manual_axes
        return {a: 1 if a in manual else size for a, size in self.mesh.shape.items()}

    @property
    def is_explicit(self) -> bool:
        """Whether the program itself lays out what it computes, and not the compiler."""
        return jax.sharding.AxisType.Explicit in self.mesh.axis_types

    def need_automatic(self) -> None:
        """Refuse explicit axes: JAX cannot hand places of some of them to a function.

        Raises:
          ShardingError: They are explicit.
        """
        if self.is_explicit:
            what = "pipelines, dropless experts and exchanges of rows need automatic axes"
            path = "parallelism.mesh.axis_type"
            raise ShardingError(Problem(what, path, remedy=f"set {path}=AUTO"))

    def mesh_axes(self, logical: str) -> tuple[str, ...]:
        """Return the mesh axes, of more than one device, that split a logical axis."""
        return resolve((logical,), dict(self.table), self.sizes)[0].mesh_axes

    def shard_map(
        self, function: Callable[..., Any], axes: Sequence[str], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Return a function that runs on each place of the given mesh axes, with its own shards.

        The compiler goes on splitting all other axes. May be nested.

        Args:
          function: What runs; it may use collectives over `axes`.
          axes: The mesh axes.
          in_specs: Partition specs of the arguments over `axes`.
          out_specs: The same for what is returned.

        Raises:
          ShardingError: The axes of the mesh are explicit: JAX has no such parts of a program then.
        """
        self.need_automatic()
        around = jax.sharding.get_abstract_mesh()
        mesh = around if around.manual_axes else self.mesh
        return jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes)
        )


# A context of JAX is a context variable of the thread that is also part of the key of every
# cache of traces: a function traced under one mesh is traced again under another.
_current = jax.make_user_context(None)


@contextlib.contextmanager
def activation_rules(mesh: DeviceMesh, rules: Rules) -> Iterator[None]:
    """Constrain activations in this thread, while the context lasts.

    Args:
      mesh: The devices.
      rules: Which mesh axes split which logical axis; only `activations` is read.

    Raises:
      ShardingError: Rules name mesh axes that do not exist.
    """
    problems = table_problems(rules.activations, dict(mesh.shape), "parallelism.rules.activations")
    if problems:
        raise ShardingError(problems)
    table = tuple((logical, tuple(axes)) for logical, axes in rules.activations.items())
    with _current(ActivationLayout(mesh, table)):
        yield


def current_layout() -> ActivationLayout | None:
    """Return the mesh and rules of the `activation_rules` around this trace, if there are any."""
    layout: ActivationLayout | None = _current.value
    return layout


def varying(x: jax.Array, *like: Any) -> jax.Array:
    """Return `x` as a value that may differ wherever one of the others does (in `shard_map`).

    What loops carry and branches return must be so at the start as it will be at the end.

    Args:
      x: An array that is made anew, such as zeros.
      like: Trees of arrays.
    """
    places = {axis for leaf in jax.tree.leaves(like) for axis in _varying(leaf)}
    missing = tuple(sorted(places - _varying(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def constrain(
    x: jax.Array, axes: Sequence[str | None], rules: Mapping[str, tuple[str, ...]] | None = None
) -> jax.Array:
    """Ask the compiler to lay `x` out as the activation rules say; where axes are explicit, do so.

    A dimension is left to the compiler if it is named None, if there is no rule for it, or if its
    size is not divisible. A rule without mesh axes replicates the dimension. Where the trace is of
    one place on some mesh axes (inside of `shard_map`), these split nothing.

    Args:
      x: Any array inside a trace.
      axes: A logical axis name, or None, for every dimension of `x`.
      rules: Rules that go before those of the trace, for this array alone.

    Returns:
      `x`, of the same values.

    Raises:
      ShardingError: The number of axes is not the number of dimensions.
    """
    if len(axes) != x.ndim:
        what = f"constrain: {len(axes)} logical axes {tuple(axes)} for shape {x.shape}"
        raise ShardingError(Problem(what, remedy="give one name, or None, per dimension"))
    layout = current_layout()
    if layout is None or max(layout.sizes.values()) == 1:
        return x
    table, sizes = dict(layout.table) | dict(rules or {}), layout.sizes
    entries: list[object] = []
    for size, logical, dimension in zip(x.shape, axes, resolve(axes, table, sizes), strict=True):
        free = logical not in table or size % axis_product(dimension.mesh_axes, sizes)
        entries.append(PartitionSpec.UNCONSTRAINED if free else dimension.entry)
    if all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
        return x
    if layout.is_explicit:
        own = jax.typeof(x).sharding.spec
        entries = [
            has if entry is PartitionSpec.UNCONSTRAINED else entry
            for entry, has in zip(entries, own, strict=True)
        ]
        wanted = NamedSharding(layout.mesh.abstract_mesh, PartitionSpec(*entries))
        return x if wanted.spec == own else jax.sharding.reshard(x, wanted)
    around = jax.sharding.get_abstract_mesh()
    mesh = around if around.manual_axes else layout.mesh
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*entries)))


def _varying(x: Any) -> frozenset[str]:
    """Return the mapped mesh axes along which values differ."""
    axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return axes
