"""Effects of the difference of two operands, built abstractly on devices of their meshes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from luthier.cli.operands.operand import Operand
from luthier.errors import BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph


def effects_of(before: Operand, after: Operand, devices: str | None = None) -> dict[str, Any]:
    """Return the effects of two operands, as JSON values.

    Args:
      before: The first operand.
      after: The second operand.
      devices: What to plan for, as `--devices` has it; None is as many CPUs as each mesh has.

    Raises:
      BadInput: A graph cannot be built or run on the devices, or is not that of an experiment.
    """
    sides = (before, after)
    recorded = [operand.title for operand in sides if operand.is_recorded]
    if recorded:
        note = "effects import what the records name, of luthier, its libraries and your packages"
        print(f"luthier: {note} ({', '.join(recorded)})", file=sys.stderr)
    graphs_of = [operand.load() for operand in sides]
    from luthier.view import effects

    for operand, graph in zip(sides, graphs_of, strict=True):
        if not effects.is_experiment(graph):
            raise BadInput(Problem(f"{operand.title} is not an experiment, so it has no effects"))
    chosen = _devices([_needed(graph) for graph in graphs_of], devices)
    subjects = [
        effects.EffectSubject(operand.title, graph, found, operand.metrics_path)
        for operand, graph, found in zip(sides, graphs_of, chosen, strict=True)
    ]
    packages = tuple(dict.fromkeys((*before.packages, *after.packages)))
    # What is damaged in a record is told by the command, which looked for it first.
    return effects.effects((subjects[0], subjects[1]), packages, report=lambda text: None)


def _needed(graph: Graph) -> int:
    """Return the least number of devices that the mesh of a graph can be laid out on."""
    from luthier import graph as graphs
    from luthier.errors import ShardingError

    mesh = graphs.build(graphs.get(graph, "parallelism")).mesh
    for number in range(1, _MOST + 1):
        try:
            mesh.sizes(number)
        except ShardingError:
            continue
        return number
    return 1  # which the plan refuses, and says why


_MOST = 4096


def _devices(needed: Sequence[int], devices: str | None) -> list[list[Any]]:
    """Return the devices of each side; those of a plan need not be here."""
    from luthier.parallel import hosts

    if devices is not None:
        hosts.configure(devices)
        return [hosts.devices() for _ in needed]
    try:
        hosts.configure(f"cpu:{max(needed)}")
    except BadInput:
        if len(hosts.devices()) < max(needed):
            raise
    return [hosts.devices()[:number] for number in needed]
