"""`luthier show --params`: every parameter, and the counts of the subtrees of the model."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from luthier.cli.printing import table

if TYPE_CHECKING:
    from luthier.graph import Graph

_HEADS = ("parameter", "shape", "dtype", "axes", "spec", "initializer", "scalars", "size")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of the model.

    Args:
      name: Its dotted name.
      shape: Its global shape.
      dtype: Its type.
      axes: A logical axis, or None, for every dimension; None if it declares no axes.
      spec: The mesh axes along each dimension, as `fsdp, -`.
      initializer: The expression of its initializer; empty if that has none.
      scalars: The number of its elements.
      active: The elements that are used for one token, on average: of experts, the chosen ones.
      bytes: Its size in bytes, over all devices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] | None
    spec: str
    initializer: str
    scalars: int
    active: int
    bytes: int


class Subtotal(NamedTuple):
    """The sums of one subtree: its parameters, their scalars and bytes."""

    parameters: int
    scalars: int
    bytes: int


def print_parameters(graph: Graph, devices: Sequence[Any], as_json: bool) -> None:
    """Print the parameters of an experiment's model.

    Args:
      graph: The graph of an experiment, validated.
      devices: The devices that they are sharded over.
      as_json: Whether to print JSON instead of a table.

    Raises:
      BadInput: The model cannot be built or sharded.
    """
    # JSON has exact numbers; the table has sizes rounded for people.
    found = parameters(graph, devices)
    if as_json:
        counts = {subtree: sums.scalars for subtree, sums in subtotals(found).items()}
        print(
            json.dumps(
                {
                    "parameters": [dataclasses.asdict(parameter) for parameter in found],
                    "scalars": sum(parameter.scalars for parameter in found),
                    "active_scalars": sum(parameter.active for parameter in found),
                    "scalars_by_subtree": counts,
                },
                indent=1,
            )
        )
        return
    print("\n".join(_lines(found)))


def parameters(graph: Graph, devices: Sequence[Any]) -> list[Parameter]:
    """Return the parameters of an experiment's model, in the order of their names.

    Args:
      graph: The graph of an experiment, validated.
      devices: The devices that they are sharded over.
    """
    # Taken from the program and not from a model: its placements know the dtype and the sharding of
    # every array of the training state, and nothing is allocated.
    import jax

    from luthier import program as programs
    from luthier.parallel import array_bytes, format_spec
    from luthier.program.step import active_shares_of, initializers_of

    program = programs.make(graph, devices)
    start = "parameters/"
    initializers = initializers_of(program.experiment)
    shares = active_shares_of(program.experiment)
    return [
        Parameter(
            name=name.removeprefix(start),
            shape=tuple(placed.shape),
            dtype=jax.numpy.dtype(placed.dtype).name,
            axes=placed.axes,
            spec=format_spec(placed.spec),
            initializer=initializers.get(name.removeprefix(start), ""),
            scalars=math.prod(placed.shape),
            active=round(math.prod(placed.shape) * shares.get(name.removeprefix(start), 1)),
            bytes=array_bytes(placed.shape, placed.dtype),
        )
        for name, placed in program.placements.items()
        if name.startswith(start)
    ]


def subtotals(found: Sequence[Parameter]) -> dict[str, Subtotal]:
    """Return the sums of every subtree of parameters, parents before their children.

    Args:
      found: The parameters, in the order of their names.
    """
    sums: dict[str, Subtotal] = {}
    for parameter in found:
        for subtree in _above(parameter.name):
            before = sums.get(subtree, Subtotal(0, 0, 0))
            sums[subtree] = Subtotal(
                before.parameters + 1,
                before.scalars + parameter.scalars,
                before.bytes + parameter.bytes,
            )
    return {subtree: total for subtree, total in sums.items() if total.parameters > 1}


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _lines(found: Sequence[Parameter]) -> list[str]:
    from luthier.parallel import format_bytes

    # Parameters come in the order of their names, so a subtree is a run of lines: its sums are
    # printed before the first of them, indented by its depth. Subtrees of one parameter have no
    # line of their own.
    sums = subtotals(found)
    rows: list[tuple[str, ...]] = []
    shown: set[str] = set()
    for parameter in found:
        above = [subtree for subtree in _above(parameter.name) if subtree in sums]
        for depth, subtree in enumerate(above):
            if subtree not in shown:
                shown.add(subtree)
                count, size = f"{sums[subtree].scalars:,}", format_bytes(sums[subtree].bytes)
                rows.append(("  " * depth + subtree, *[""] * 5, count, size))
        rows.append(_row(parameter, "  " * len(above), format_bytes(parameter.bytes)))
    total = sum(parameter.scalars for parameter in found)
    size = format_bytes(sum(parameter.bytes for parameter in found))
    lines = table(_HEADS, rows)
    active = sum(parameter.active for parameter in found)
    share = "" if active == total else f" ({active:,} active)"
    return [*lines, f"{len(found)} parameters, {total:,} scalars{share}, {size}"]


def _row(parameter: Parameter, indent: str, size: str) -> tuple[str, ...]:
    axes = "-" if parameter.axes is None else ", ".join(axis or "-" for axis in parameter.axes)
    return (
        indent + parameter.name,
        "x".join(map(str, parameter.shape)) or "scalar",
        parameter.dtype,
        axes,
        parameter.spec or "-",
        parameter.initializer or "-",
        f"{parameter.scalars:,}",
        size,
    )
