"""Sharding of activations: constraints by logical axes, and result shardings for explicit axes.

With explicit axes, JAX derives the sharding of most results from those of their operands. A product
that contracts a sharded dimension, and a look-up in a sharded table, are ambiguous: the layers
state the result by `result_sharding`. With automatic axes that has no effect.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import Problem, ShardingError
from luthier.parallel.rules import RESIDUAL_LENGTH, Rules, axis_product, table_problems
from luthier.parallel.specs import resolve


def is_explicit() -> bool:
    """Return whether this trace is under `activation_rules` of a mesh with explicit axes.

    Returns:
      True inside such a trace; False outside, and where the compiler chooses shardings.

    Example:
      >>> from luthier import parallel
      >>> parallel.is_explicit()
      False
    """
    layout = current_layout()
    return layout is not None and layout.is_explicit


def result_sharding(like: jax.Array, kept: int, axes: Sequence[str | None]) -> NamedSharding | None:
    """Return the sharding of a result: leading dimensions like an operand, the others by the rules.

    Args:
      like: The operand.
      kept: Number of leading dimensions that the result has in common with it.
      axes: Logical axis names of the result's other dimensions, by the rules for activations;
        None is not split.

    Returns:
      The sharding; None where the axes of the mesh are automatic, or there is no mesh.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> print(parallel.result_sharding(jnp.ones((2, 3)), 1, ["mlp"]))  # outside of a trace
      None
    """
    layout = current_layout()
    if layout is None or not layout.is_explicit:
        return None
    # A mesh axis may occur once in a spec. The leading dimensions have what the operand really has,
    # whatever the rules say, so an axis that they use is no longer free for the others. Only names
    # of the others are known here, no sizes: JAX itself rejects an axis that does not divide one.
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
# Layers call `constrain`; the caller that traces them sets mesh and rules. Outside of
# `activation_rules` nothing is constrained, so layers run anywhere.


@dataclasses.dataclass(frozen=True)
class ActivationLayout:
    """The mesh and the rules under which layers are traced.

    Args:
      mesh: The devices.
      table: Logical axis and its mesh axes, for activations.
      parameters: The same for parameters.
    """

    mesh: DeviceMesh
    table: tuple[tuple[str, tuple[str, ...]], ...]
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Mesh axis to number of devices; 1 for axes that are manual here (in `shard_map`)."""
        manual = jax.sharding.get_abstract_mesh().manual_axes
        return {a: 1 if a in manual else size for a, size in self.mesh.shape.items()}

    @property
    def is_explicit(self) -> bool:
        """Whether the program determines the sharding of its results, and not the compiler."""
        return jax.sharding.AxisType.Explicit in self.mesh.axis_types

    def need_automatic(self) -> None:
        """Reject explicit axes where `shard_map` over some axes is needed.

        Raises:
          ShardingError: The axes are explicit.
        """
        # `shard_map` cannot make some of several explicit axes manual. So explicit axes are for
        # dense models (`tests/end_to_end/test_explicit.py`).
        if self.is_explicit:
            what = (
                "pipelines, dropless experts, attention in blocks and exchanges of rows need "
                "automatic axes"
            )
            path = "parallelism.mesh.axis_type"
            raise ShardingError(Problem(what, path, remedy=f"set {path}=AUTO"))

    def mesh_axes(self, logical: str) -> tuple[str, ...]:
        """Return the mesh axes, of more than one device, that split a logical axis.

        Args:
          logical: A logical axis name.

        Returns:
          Names of mesh axes.
        """
        return resolve((logical,), dict(self.table), self.sizes)[0].mesh_axes

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return to this mesh and these rules, for what is traced within the context.

        Yields:
          Nothing; use it as `with layout.active():` around a trace.
        """
        with _current(self):
            yield

    def row_axes(self, num_rows: int, used: Collection[str]) -> tuple[str, ...]:
        """Return the mesh axes that split rows and nothing else.

        A loop over parts of a batch runs in a `shard_map` over these. With automatic axes the
        compiler sums the gradient of the parameters over them in each turn, since it has no arrays
        that are still to be summed; the transpose of a `shard_map` sums it once, after the loop.
        Layers cannot tell the difference: they treat rows alone, and draw random numbers by tokens.

        Args:
          num_rows: Rows of a part.
          used: The mesh axes that split parameters within the loop: the compiler gathers these
            where they are used.

        Returns:
          Names of mesh axes of more than one device; none where they do not divide the rows.
        """
        # Nor an axis that also splits other dimensions of activations, such as that of experts.
        other = {axis for name, axes in self.table if name != "batch" for axis in axes}
        axes = tuple(a for a in self.mesh_axes("batch") if a not in {*used, *other})
        # Unlike the compiler, a `shard_map` does not pad rows.
        return () if num_rows % axis_product(axes, self.sizes) else axes

    def shard_map(
        self,
        function: Callable[..., Any],
        axes: Sequence[str],
        in_specs: Any,
        out_specs: Any,
        *,
        check_vma: bool = True,
    ) -> Callable[..., Any]:
        """Map a function over the shards of some mesh axes.

        The compiler still shards over all other axes. Calls may be nested.

        Args:
          function: The function; it may use collectives over `axes`.
          axes: The mesh axes that are manual in it.
          in_specs: Partition specs of the arguments over `axes`.
          out_specs: Partition specs of the results over `axes`.
          check_vma: Whether JAX checks which results vary over `axes`. Kernels that do not declare
            it need False; then every array with a gradient must be split over all of `axes`.

        Returns:
          The mapped function.

        Raises:
          ShardingError: The axes of the mesh are explicit, which `shard_map` does not support here.
        """
        self.need_automatic()
        # A nested call must get the mesh of the trace, in which the outer axes are manual already;
        # the concrete mesh would say that they are automatic.
        around = jax.sharding.get_abstract_mesh()
        mesh = around if around.manual_axes else self.mesh
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(axes),
            check_vma=check_vma,
        )


RESIDUAL_AXES = ("batch", RESIDUAL_LENGTH, "embed")
"""Logical axes of the residual stream [B, L, D]: what layers read, normalize and add to."""

# A user context of JAX is thread-local and part of the key of every trace cache: a function that
# was traced under one mesh is traced again under another. With a plain context variable `jit` would
# reuse the trace of the first mesh, constraints included.
_current = jax.make_user_context(None)
_stands_for = jax.make_user_context("")


@contextlib.contextmanager
def activation_rules(mesh: DeviceMesh, rules: Rules) -> Iterator[None]:
    """Constrain activations in this thread within the context.

    Args:
      mesh: The devices.
      rules: Mesh axes by logical axis.

    Yields:
      Nothing; use it as `with activation_rules(mesh, rules):` around a trace.

    Raises:
      ShardingError: Rules name mesh axes that do not exist.

    Example:
      >>> import jax
      >>> from luthier import parallel
      >>> mesh = parallel.Mesh().arrange(jax.devices()[:1])
      >>> with parallel.activation_rules(mesh, parallel.Rules()):
      ...     parallel.current_layout() is not None
      True
    """
    problems = table_problems(rules.activations, dict(mesh.shape), "parallelism.rules.activations")
    if problems:
        raise ShardingError(problems)
    activations = dict(rules.activations)
    if "length" in activations:
        length, further = activations["length"], activations.get(RESIDUAL_LENGTH, ())
        activations[RESIDUAL_LENGTH] = tuple(dict.fromkeys((*length, *further)))
    # As tuples, because a user context must be hashable.
    tables = (
        tuple((logical, tuple(axes)) for logical, axes in table.items())
        for table in (activations, rules.parameters)
    )
    with ActivationLayout(mesh, *tables).active():
        yield


def current_layout() -> ActivationLayout | None:
    """Return the mesh and rules of the surrounding `activation_rules`; None outside.

    Returns:
      The mesh and its rules, or None.

    Example:
      >>> from luthier import parallel
      >>> parallel.current_layout() is None
      True
    """
    layout: ActivationLayout | None = _current.value
    return layout


@contextlib.contextmanager
def stand_ins_for(platform: str) -> Iterator[None]:
    """Trace for devices of another platform, for which those of the mesh stand in.

    Args:
      platform: `cpu`, `gpu` or `tpu`; empty for that of the mesh.

    Yields:
      Nothing; use it as `with stand_ins_for("gpu"):` around a trace.

    Example:
      >>> import jax
      >>> from luthier import parallel
      >>> mesh = parallel.Mesh().arrange(jax.devices()[:1])
      >>> with parallel.activation_rules(mesh, parallel.Rules()), parallel.stand_ins_for("gpu"):
      ...     parallel.current_platform()
      'gpu'
    """
    with _stands_for(platform):
        yield


def current_platform() -> str:
    """Return the platform of the mesh of the surrounding `activation_rules`: `cpu`, `gpu` or `tpu`.

    It is that of the mesh and not `jax.default_backend()`: a plan for a TPU is traced on a CPU, and
    must see the program of the TPU. A plan by shapes alone has no devices but virtual ones; it says
    what they are by `stand_ins_for`.

    Returns:
      The platform; empty outside of `activation_rules`.

    Example:
      >>> from luthier import parallel
      >>> parallel.current_platform()
      ''
    """
    layout = current_layout()
    return "" if layout is None else _stands_for.value or layout.mesh.devices.flat[0].platform


def varying(x: jax.Array, *like: Any) -> jax.Array:
    """Mark `x` as varying over the manual mesh axes that the other arrays vary over.

    Inside `shard_map`, the carry of a loop must vary over the same axes before and after a turn,
    and so must the results of branches. A new array, such as zeros, varies over none.

    Args:
      x: A new array.
      like: Trees of arrays.

    Returns:
      `x`, with the same values and shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> print(parallel.varying(jnp.zeros(2), jnp.ones(2)))  # outside of `shard_map`: as it was
      [0. 0.]
    """
    places = {axis for leaf in jax.tree.leaves(like) for axis in _varying(leaf)}
    missing = tuple(sorted(places - _varying(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def constrain(
    x: jax.Array, axes: Sequence[str | None], rules: Mapping[str, tuple[str, ...]] | None = None
) -> jax.Array:
    """Constrain the sharding of `x` by the activation rules; with explicit axes, reshard it.

    A dimension is left to the compiler if it is named None, if there is no rule for it, or if its
    size is not divisible. A rule without mesh axes replicates the dimension. Axes that are manual
    in the trace (inside of `shard_map`) split nothing.

    Args:
      x: Any array inside a trace.
      axes: A logical axis name, or None, for every dimension of `x`.
      rules: Rules for this array alone, which take precedence.

    Returns:
      `x`, with the same values.

    Raises:
      ShardingError: The number of axes is not the number of dimensions.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> print(parallel.constrain(jnp.ones(2), ["batch"]))  # without a mesh: as it was
      [1. 1.]
    """
    if len(axes) != x.ndim:
        what = f"constrain: {len(axes)} logical axes {tuple(axes)} for shape {x.shape}"
        raise ShardingError(Problem(what, remedy="give one name, or None, per dimension"))
    layout = current_layout()
    if layout is None or max(layout.sizes.values()) == 1:
        return x  # also where every axis is manual: then there is nothing left to constrain
    # None in a PartitionSpec means replicated, UNCONSTRAINED leaves a dimension to the compiler.
    # Both occur: a rule without mesh axes replicates on purpose, a dimension without a rule does
    # not care.
    table, sizes = dict(layout.table) | dict(rules or {}), layout.sizes
    entries: list[object] = []
    # A residual stream that the further axes do not divide is split as its rows are.
    if RESIDUAL_LENGTH in axes and RESIDUAL_LENGTH in table:
        size = x.shape[axes.index(RESIDUAL_LENGTH)]
        if size % axis_product(table[RESIDUAL_LENGTH], sizes):
            table[RESIDUAL_LENGTH] = table.get("length", ())
    for size, logical, dimension in zip(x.shape, axes, resolve(axes, table, sizes), strict=True):
        free = logical not in table or size % axis_product(dimension.mesh_axes, sizes)
        entries.append(PartitionSpec.UNCONSTRAINED if free else dimension.entry)
    if all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
        return x
    if layout.is_explicit:
        # There is no UNCONSTRAINED then: such a dimension stays as it is. If a rule gives its mesh
        # axis to another dimension, JAX raises a `DuplicateSpecError`: to move it there silently
        # is what explicit axes are to prevent. A constraint that changes nothing is left out, so
        # that no collective can come of it.
        own = jax.typeof(x).sharding.spec
        entries = [
            has if entry is PartitionSpec.UNCONSTRAINED else entry
            for entry, has in zip(entries, own, strict=True)
        ]
        wanted = NamedSharding(layout.mesh.abstract_mesh, PartitionSpec(*entries))
        return x if wanted.spec == own else jax.sharding.reshard(x, wanted)
    # As in `shard_map` above: inside of one, only the mesh of the trace has its axes as manual.
    around = jax.sharding.get_abstract_mesh()
    mesh = around if around.manual_axes else layout.mesh
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*entries)))


def gather_length(x_BLD: jax.Array) -> jax.Array:
    """Gather what the rule of `residual_length` splits beyond that of `length`.

    Layers call it for what their products read of the residual stream, and models for its end. The
    compiler would otherwise gather kernels instead, or exchange the results of each product.

    Args:
      x_BLD: A part of the residual stream [B, L, D], normalized perhaps.

    Returns:
      `x_BLD`, with the same values; its length is split as by the rule of `length`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> parallel.gather_length(jnp.ones((1, 2, 3))).shape
      (1, 2, 3)
    """
    layout = current_layout()
    if layout is None or layout.mesh_axes(RESIDUAL_LENGTH) == layout.mesh_axes("length"):
        return x_BLD
    return constrain(x_BLD, ("batch", "length", "embed"))


# To cut off padding takes a copy where devices split the dimension, because they split what is left
# in other places. Elsewhere it is fused, but the gradient then has another size than the array, so
# that it cannot take its place in memory: without remat, GPT-2 of 124M with 32 rows of 1,024 tokens
# needs 17.5 GiB on an H100, and 15.7 if the loss reads logits that are not cut. On CPUs, where
# memory is ample, the program stays as it was.

_cuts: contextvars.ContextVar[list[tuple[jax.Array, jax.Array]] | None]
_cuts = contextvars.ContextVar("cuts", default=None)


def cut_padding(x: jax.Array, size: int, axes: Sequence[str | None], fill: float) -> jax.Array:
    """Cut off the padding of the last dimension, and constrain the sharding of the rest.

    Args:
      x: Any array inside a trace.
      size: Size of the last dimension without its padding.
      axes: Logical axes of `x`, as for `constrain`.
      fill: What stands in place of padding for those who ask for it by `uncut`.

    Returns:
      `x[..., :size]`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> print(parallel.cut_padding(jnp.ones(4), 3, ["vocab"], fill=0))
      [1. 1. 1.]
    """
    cut = constrain(x[..., :size], axes)
    layout, offered = current_layout(), _cuts.get()
    if offered is None or layout is None or layout.is_explicit or size == x.shape[-1]:
        return cut
    if layout.mesh_axes(axes[-1] or "") or current_platform() != "cpu":
        places = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
        filled = jnp.where(places < size, x, jnp.asarray(fill, x.dtype))
        offered.append((cut, constrain(filled, axes)))
    return cut


def uncut(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    """Call a function, and undo `cut_padding` if that was the last that it did.

    Args:
      function: Any function inside a trace.
      arguments: Its arguments.

    Returns:
      Its result [..., N]; or that with its padding, if devices split the last dimension or are no
      CPUs. A result that is no longer that of `cut_padding` stays as it is.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> cut = lambda x: parallel.cut_padding(x, 3, ["vocab"], fill=0)
      >>> parallel.uncut(cut, jnp.ones(4)).shape  # without a mesh
      (3,)
    """
    token = _cuts.set([])
    try:
        found = function(*arguments)
        offered = _cuts.get() or []
    finally:
        _cuts.reset(token)
    return next((filled for cut, filled in offered if cut is found), found)


def whole(x: jax.Array) -> jax.Array:
    """Constrain an array to be whole on every device, as parameters of unknown layers are in use.

    Args:
      x: Any array inside a trace.

    Returns:
      `x`, with the same values; `x` itself outside of `activation_rules`.
    """
    return constrain(x, ("whole",) * x.ndim, {"whole": ()})


def _varying(x: Any) -> frozenset[str]:
    """Return the manual mesh axes over which an array varies."""
    axes: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return axes
