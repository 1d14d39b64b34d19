"""The resolver: from logical axes and rules to the sharding of an array, with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import Problem, ShardingError
from luthier.parallel.bytes import array_bytes, bytes_per_device
from luthier.parallel.mesh import alternatives, describe_sizes
from luthier.parallel.rules import Table, axis_product, mesh_axes_of, table_problems
from luthier.terminal import format_bytes

LogicalAxes = Sequence[str | None]

FSDP = "fsdp"
"""The mesh axis that splits the state, also that of models that declare no logical axes."""

# Remedies of sizes that can change while the model stays the same: ids beyond the vocabulary are
# never used, and a batch has any number of rows. Other sizes are those of the architecture.
_REMEDIES = {
    "vocab": "set its pad_to_multiple={shards}",
    "batch": "use a multiple of {shards} rows",
}


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """Shape, dtype and logical axes of an array to be sharded.

    Args:
      shape: Its global shape.
      dtype: Its type.
      axes: A logical axis name, or None, for every dimension. None instead of names: the array
        declares none, and `fsdp` splits its largest dimension (see `place`).

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> array = parallel.ArrayInfo((128, 256), jnp.float32, ("embed", "mlp"))
      >>> parallel.place({"kernel": array}, {"embed": ("fsdp",)}, {"fsdp": 4})["kernel"].spec
      P('fsdp', None)
    """

    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...] | None


@dataclasses.dataclass(frozen=True)
class Placement:
    """Sharding of an array, and the reason for it.

    Args:
      name: Name of the array.
      shape: Its global shape.
      dtype: Its type.
      axes: Its logical axes, if it has any.
      spec: The mesh axes along each dimension.
      reason: The rule that applied, for every logical axis.
      bytes_per_device: Bytes of the shard that each device holds.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...] | None
    spec: PartitionSpec
    reason: str
    bytes_per_device: int


@dataclasses.dataclass(frozen=True)
class SplitDimension:
    """The mesh axes that split one dimension, and the reason as text."""

    mesh_axes: tuple[str, ...]
    reason: str

    @property
    def entry(self) -> str | tuple[str, ...] | None:
        """The entry of this dimension in a `PartitionSpec`."""
        if len(self.mesh_axes) == 1:
            return self.mesh_axes[0]
        return self.mesh_axes or None


def resolve(axes: LogicalAxes, table: Table, sizes: Mapping[str, int]) -> list[SplitDimension]:
    """Find the mesh axes for every dimension, first come, first served.

    A mesh axis can split one dimension of an array: later claims are dropped. Mesh axes of
    size 1 are left out of the sharding.

    Args:
      axes: A logical axis name, or None, for every dimension.
      table: Logical axis to mesh axes.
      sizes: Mesh axis to number of devices.

    Returns:
      One `SplitDimension` for every entry of `axes`.
    """
    # A dropped claim is not an error, because a table of rules is for many arrays. The reason names
    # it.
    users: dict[str, str] = {}
    found = []
    for index, logical in enumerate(axes):
        kept, notes, single = [], [], []
        for axis in mesh_axes_of(logical, table, sizes):
            if sizes[axis] == 1:
                single.append(axis)
            elif axis in users:
                notes.append(f"{axis} dropped, already used by {users[axis]}")
            else:
                users[axis] = str(logical)
                kept.append(axis)
        if single:
            notes.append(f"{', '.join(single)} {'have' if single[1:] else 'has'} size 1")
        found.append(SplitDimension(tuple(kept), _reason(index, logical, table, kept, notes)))
    return found


def place(
    arrays: Mapping[str, ArrayInfo],
    table: Table,
    sizes: Mapping[str, int],
    path: str = "parallelism.rules.parameters",
) -> dict[str, Placement]:
    """Shard arrays over the mesh by the rules.

    Of an array that declares no logical axes, `fsdp` splits the largest dimension that it divides;
    of several such dimensions the first. An array whose logical axes are all None stays whole.

    Args:
      arrays: The arrays by name.
      table: Logical axis to mesh axes.
      sizes: Mesh axis to number of devices.
      path: Path of the table in the graph, for messages.

    Returns:
      A placement for every array, in the order of `arrays`.

    Raises:
      ShardingError: Rules name mesh axes that do not exist, arrays have another number of
        logical axes than dimensions, or dimensions are not divisible; all of them at once, and a
        dimension that many arrays have in one line.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> array = parallel.ArrayInfo((128, 256), jnp.float32, ("embed", "mlp"))
      >>> rules = {"embed": ("fsdp",), "mlp": ("tensor",)}
      >>> sizes = {"fsdp": 4, "tensor": 2}
      >>> placement = parallel.place({"kernel": array}, rules, sizes)["kernel"]
      >>> placement.spec, placement.bytes_per_device
      (P('fsdp', 'tensor'), 16384)
    """
    # JAX refuses uneven shardings one array at a time, when it makes them. Here all are reported at
    # once, from shapes alone.
    problems = table_problems(table, sizes, path)
    if problems:
        raise ShardingError(problems)
    placements = {}
    # By what one change repairs: the same dimension is in many arrays of a model.
    faults: dict[tuple[Any, ...], list[Problem]] = {}
    for name, info in arrays.items():
        if info.axes is None:
            placements[name] = _split_by_size(name, info, sizes)
            continue
        if len(info.axes) != len(info.shape):
            faults[(name,)] = [_wrong_rank(name, info)]
            continue
        dimensions = resolve(info.axes, table, sizes)
        for index, dimension in enumerate(dimensions):
            if info.shape[index] % axis_product(dimension.mesh_axes, sizes):
                key = info.axes[index], info.shape[index], dimension.mesh_axes
                problem = _uneven(name, info, index, dimension, sizes, path)
                faults.setdefault(key, []).append(problem)
        shards = math.prod(axis_product(d.mesh_axes, sizes) for d in dimensions)
        is_unnamed = info.shape and not any(info.axes)
        placements[name] = Placement(
            name=name,
            shape=info.shape,
            dtype=info.dtype,
            axes=info.axes,
            spec=PartitionSpec(*(d.entry for d in dimensions)),
            reason="no logical axes: replicated" if is_unnamed else _reasons(dimensions),
            bytes_per_device=array_bytes(info.shape, info.dtype) // shards,
        )
    if faults:
        raise ShardingError([_once(same) for same in faults.values()])
    return placements


def shardings(placements: Mapping[str, Placement], mesh: DeviceMesh) -> dict[str, NamedSharding]:
    """Return the placements as shardings over devices.

    Args:
      placements: The result of `place`.
      mesh: The devices, with the axes that the placements name.

    Returns:
      A sharding for every placement, by name.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> array = parallel.ArrayInfo((128, 256), jnp.float32, ("embed", "mlp"))
      >>> placements = parallel.place({"kernel": array}, {"embed": ("fsdp",)}, {"fsdp": 1})
      >>> mesh = parallel.make_mesh({"fsdp": 1}, jax.devices()[:1])
      >>> list(parallel.shardings(placements, mesh))
      ['kernel']
    """
    return {name: NamedSharding(mesh, p.spec) for name, p in placements.items()}


def _reason(
    index: int, logical: str | None, table: Table, kept: Sequence[str], notes: Sequence[str]
) -> str:
    if logical is None:
        return f"dimension {index} has no logical axis: replicated"
    if logical not in table and not (kept or notes):
        return f"no rule for {logical!r}: replicated"
    if kept:
        text = f"{logical} -> {', '.join(kept)}"
        return f"{text} ({', '.join(notes)})" if notes else text
    return f"{logical}: {', '.join(notes) or 'replicated'}"


def _reasons(dimensions: Sequence[SplitDimension]) -> str:
    return "; ".join(d.reason for d in dimensions) or "scalar: replicated"


def fsdp_dimension(shape: Sequence[int], sizes: Mapping[str, int]) -> int | None:
    """Return the dimension that `fsdp` splits of a parameter without logical axes.

    It is the largest that the mesh axis divides, and of several the first: a function of the shape
    and the mesh alone, so that a run that is resumed elsewhere finds its shards by the same rule.

    Args:
      shape: The parameter's shape.
      sizes: Mesh axis to number of devices.

    Returns:
      Index of the dimension; None if `fsdp` has one device, or divides no dimension.
    """
    number = sizes.get(FSDP, 1)
    fitting = [d for d, size in enumerate(shape) if number > 1 and size and size % number == 0]
    return max(fitting, key=lambda d: shape[d], default=None)


def _split_by_size(name: str, info: ArrayInfo, sizes: Mapping[str, int]) -> Placement:
    dimension, number = fsdp_dimension(info.shape, sizes), sizes.get(FSDP, 1)
    if not info.shape:
        reason = "scalar: replicated"
    elif number == 1:
        reason = "no logical axes: replicated"
    elif dimension is None:
        reason = f"no logical axes, and no dimension divisible by {FSDP}={number}: replicated"
    else:
        reason = f"no logical axes: largest dimension divisible by {FSDP}={number}"
    spec = PartitionSpec(*(FSDP if d == dimension else None for d in range(len(info.shape))))
    size = array_bytes(info.shape, info.dtype) // (1 if dimension is None else number)
    return Placement(name, info.shape, info.dtype, None, spec, reason, size)


def _once(same: Sequence[Problem]) -> Problem:
    """Return the first of several problems that one change repairs, which names the others."""
    first, *others = same
    if not others:
        return first
    also = others[0].path if len(others) == 1 else f"{len(others)} other arrays"
    return dataclasses.replace(first, what=f"{first.what}, also in {also}")


def _wrong_rank(name: str, info: ArrayInfo) -> Problem:
    axes = info.axes or ()
    what = f"{len(axes)} logical axes {tuple(axes)} for the {len(info.shape)} dimensions "
    remedy = "give its logical_axes one name, or None, per dimension"
    return Problem(f"{what}of shape {info.shape}", name, remedy=remedy)


def _uneven(
    name: str,
    info: ArrayInfo,
    index: int,
    dimension: SplitDimension,
    sizes: Mapping[str, int],
    path: str,
) -> Problem:
    # Remedies that can be copied: a multiple for the size; the largest size of the last mesh axis
    # that still divides it; or a rule that replicates. The last is not offered for the axes of
    # `_REMEDIES`: padding costs a few rows there, while a replicated batch would make all devices
    # compute the same rows, and a replicated vocabulary would put the whole table on each.
    logical, size = (info.axes or ())[index], info.shape[index]
    used = dimension.mesh_axes
    shards = axis_product(used, sizes)
    mesh = " x ".join(f"{axis}={sizes[axis]}" for axis in used)
    mesh = f"mesh axis {mesh}" if len(used) == 1 else f"mesh axes {mesh} = {shards}"
    rule = f"rule {logical} -> {', '.join(used)}"
    own = _REMEDIES.get(str(logical), f"make {logical} a multiple of {{shards}}")
    remedies = [own.format(shards=shards)]
    # The remedy shrinks the last of the mesh axes, so that the others stay.
    rest = shards // sizes[used[-1]]
    if size % rest == 0:
        smaller = math.gcd(size // rest, sizes[used[-1]])
        remedies.append(f"parallelism.mesh.{used[-1]}={smaller}")
    if logical not in _REMEDIES:
        # The name of a mesh axis has no rule yet, so that the key is added.
        remedies.append(f"{path}.{logical}{':=' if logical in sizes else '='}()")
    what = f"dimension {index} {logical!r} ({size}) is not divisible by {mesh} ({rule})"
    return Problem(what, name, remedy=alternatives(remedies))


# Sharding of arrays that an optimizer derives from parameters: factors, preconditioners, averages.

SPARE = (FSDP,)
"""Mesh axes that split all of an optimizer's state, whichever dimensions it has."""


def place_derived(
    arrays: Mapping[str, ArrayInfo],
    table: Table,
    sizes: Mapping[str, int],
    spare: Sequence[str] = SPARE,
) -> dict[str, Placement]:
    """Shard arrays with other shapes than their parameters, such as row means of squares.

    They are sharded along the mesh axes of the dimensions that they keep. Dimensions that are not
    divisible stay whole, because no setting of the graph could change that; and a spare mesh axis
    that no rule uses takes the first dimension that it divides. A factor that keeps no dimension of
    FSDP would otherwise be replicated on every device.

    Args:
      arrays: The arrays by name; `axes` must not be None.
      table: Logical axis to mesh axes.
      sizes: Mesh axis to number of devices.
      spare: Mesh axes that take a dimension where no rule gives them one.

    Returns:
      A placement for every array, in the order of `arrays`.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> factor = parallel.ArrayInfo((128,), jnp.float32, ("embed",))
      >>> rules, sizes = {"embed": ("fsdp",)}, {"fsdp": 4}
      >>> parallel.place_derived({"rows": factor}, rules, sizes)["rows"].spec
      P('fsdp',)
    """
    return {name: _place(name, info, table, sizes, spare) for name, info in arrays.items()}


def _place(
    name: str, info: ArrayInfo, table: Table, sizes: Mapping[str, int], spare: Sequence[str]
) -> Placement:
    # Resolved until all that is left is divisible: a dimension that stays whole may free its mesh
    # axes for one after it, which they need not divide either.
    axes = tuple(info.axes or ())
    while True:
        dimensions = resolve(axes, table, sizes)
        kept = tuple(
            None if size % axis_product(dimension.mesh_axes, sizes) else logical
            for logical, size, dimension in zip(axes, info.shape, dimensions, strict=True)
        )
        if kept == axes:
            break
        axes = kept
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
        reason=_reasons(dimensions),
        bytes_per_device=array_bytes(info.shape, info.dtype) // shards,
    )


def _with_spare(
    axis: str, dimensions: Sequence[SplitDimension], info: ArrayInfo, sizes: Mapping[str, int]
) -> list[SplitDimension]:
    """Split the first dimension that a mesh axis divides, if there is one."""
    found = list(dimensions)
    for index, dimension in enumerate(dimensions):
        if info.shape[index] % (axis_product(dimension.mesh_axes, sizes) * sizes[axis]) == 0:
            reason = f"{dimension.reason} -> {axis} (spare)"
            mesh_axes = (*dimension.mesh_axes, axis)
            found[index] = dataclasses.replace(dimension, mesh_axes=mesh_axes, reason=reason)
            break
    return found


# The sharding table: the sharding, reason and bytes of every array.

_COLUMNS = ("name", "shape", "dtype", "spec", "reason", "bytes/device")


def sharding_table(placements: Iterable[Placement], sizes: Mapping[str, int]) -> str:
    """Return the sharding of arrays as a text table with one line for each.

    Args:
      placements: The result of `place`.
      sizes: Mesh axis to number of devices.

    Returns:
      Lines without trailing spaces: the mesh, a header, the arrays, the sums.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> array = parallel.ArrayInfo((128, 256), jnp.float32, ("embed", "mlp"))
      >>> sizes = {"fsdp": 4}
      >>> placements = parallel.place({"kernel": array}, {"embed": ("fsdp",)}, sizes)
      >>> print(parallel.sharding_table(placements.values(), sizes))
      mesh fsdp=4
      name    shape    dtype    spec     reason                                        bytes/device
      kernel  128x256  float32  fsdp, -  embed -> fsdp; no rule for 'mlp': replicated      32.0 KiB
      1 arrays, 128.0 KiB in all, 32.0 KiB on each device
    """
    placed = list(placements)
    rows = [_COLUMNS, *(_row(placement) for placement in placed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    total = sum(array_bytes(p.shape, p.dtype) for p in placed)
    held = bytes_per_device(placed)
    lines = [f"mesh {describe_sizes(sizes)}"]
    lines += [_line(row, widths) for row in rows]
    lines.append(
        f"{len(placed)} arrays, {format_bytes(total)} in all, {format_bytes(held)} on each device"
    )
    return "\n".join(lines)


def format_spec(spec: PartitionSpec) -> str:
    """Format a spec by dimensions: `fsdp, tensor`, `(data fsdp), -`; `-` is replicated.

    Args:
      spec: The mesh axes along each dimension.

    Returns:
      The text; empty for an array without dimensions.

    Example:
      >>> import jax
      >>> from luthier import parallel
      >>> parallel.format_spec(jax.P("fsdp", None, ("data", "expert")))
      'fsdp, -, (data expert)'
    """
    return ", ".join(
        "-" if entry is None else entry if isinstance(entry, str) else f"({' '.join(entry)})"
        for entry in spec
    )


def _row(placement: Placement) -> tuple[str, ...]:
    return (
        placement.name,
        "x".join(map(str, placement.shape)) or "scalar",
        getattr(placement.dtype, "name", None) or jnp.dtype(placement.dtype).name,
        format_spec(placement.spec) or "-",
        placement.reason,
        format_bytes(placement.bytes_per_device),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
    return "  ".join([*cells, row[-1].rjust(widths[-1])]).rstrip()
