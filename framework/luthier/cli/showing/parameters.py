"""`luthier show --params`: every parameter, and the counts of the subtrees of the model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from luthier.cli.printing import table

if TYPE_CHECKING:
    from luthier.graph import Graph
    from luthier.planner.parameters import Parameter, ParameterCounts

_HEADS = ("parameter", "shape", "dtype", "axes", "spec", "initializer", "scalars", "size")


class Subtotal(NamedTuple):
    """The sums of one subtree: its parameters, their scalars and bytes."""

    parameters: int
    scalars: int
    bytes: int


def print_parameters(graph: Graph, devices: Sequence[Any] | None, as_json: bool) -> None:
    """Print the parameters of an experiment's model.

    Args:
      graph: The graph of an experiment or of a model, validated.
      devices: The devices that they are sharded over; None leaves the sharding out.
      as_json: Whether to print JSON instead of a table.

    Raises:
      BadInput: The model cannot be built or sharded.
    """
    # JSON has exact numbers; the table has sizes rounded for people.
    from luthier.planner.parameters import count_parameters, model_parameters

    found = model_parameters(graph, devices)
    sums = count_parameters(found)
    if as_json:
        counts = {subtree: own.scalars for subtree, own in subtotals(found).items()}
        print(
            json.dumps(
                {
                    "parameters": [dataclasses.asdict(parameter) for parameter in found],
                    "scalars": sums.total,
                    "active_scalars": sums.active,
                    "trained_scalars": sums.trained,
                    "embedding_scalars": sums.embedding,
                    "scalars_by_part": dict(sums.by_part),
                    "by_dtype": dict(sums.by_dtype),
                    "scalars_by_subtree": counts,
                },
                indent=1,
            )
        )
        return
    print("\n".join(_lines(found, sums, is_sharded=devices is not None)))


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


def _lines(found: Sequence[Parameter], sums: ParameterCounts, is_sharded: bool) -> list[str]:
    from luthier.parallel import format_bytes

    # Parameters come in the order of their names, so a subtree is a run of lines: its sums are
    # printed before the first of them, indented by its depth. Subtrees of one parameter have no
    # line of their own.
    subtrees = subtotals(found)
    rows: list[tuple[str, ...]] = []
    shown: set[str] = set()
    for parameter in found:
        above = [subtree for subtree in _above(parameter.name) if subtree in subtrees]
        for depth, subtree in enumerate(above):
            if subtree not in shown:
                shown.add(subtree)
                count, size = (
                    f"{subtrees[subtree].scalars:,}",
                    format_bytes(subtrees[subtree].bytes),
                )
                rows.append(("  " * depth + subtree, *[""] * 5, count, size))
        rows.append(_row(parameter, "  " * len(above), format_bytes(parameter.bytes)))
    size = format_bytes(sum(parameter.bytes for parameter in found))
    kept = [i for i, head in enumerate(_HEADS) if is_sharded or head != "spec"]
    lines = table([_HEADS[i] for i in kept], [tuple(row[i] for i in kept) for row in rows])
    share = "" if sums.active == sums.total else f" ({sums.active:,} active)"
    lines.append(", ".join(f"{part} {_share(n, sums)}" for part, n in sums.by_part.items()))
    if sums.embedding:
        lines.append(f"with a dimension for the vocabulary: {_share(sums.embedding, sums)}")
    if sums.trained != sums.total:
        lines.append(f"trained: {_share(sums.trained, sums)}")
    return [*lines, f"{len(found)} parameters, {sums.total:,} scalars{share}, {size}"]


def _share(scalars: int, sums: ParameterCounts) -> str:
    return f"{scalars:,} ({scalars / max(sums.total, 1):.1%})"


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
