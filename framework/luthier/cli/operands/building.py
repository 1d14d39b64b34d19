"""Effects of the difference of two operands, from abstract builds of both."""

from __future__ import annotations

import contextlib
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
      devices: The devices to plan for, as for `--devices`; None is as many CPUs as each mesh needs.

    Raises:
      BadInput: A graph cannot be built or run on the devices, or is not that of an experiment.
    """
    # Up to here a comparison has read records as data. Effects need the real model, and so import
    # what the records name; that runs code, so it is announced first.
    sides = (before, after)
    recorded = [operand.title for operand in sides if operand.is_recorded]
    if recorded:
        note = "computing effects imports the classes that the records name"
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
    # Damage in a record has been reported already, by the command.
    return effects.effects((subjects[0], subjects[1]), packages, report=lambda text: None)


def reserve(operands: Sequence[Operand]) -> None:
    """Make as many virtual devices as the largest mesh of several operands needs.

    Args:
      operands: Operands whose effects will be computed. Those that cannot be built are passed over.
    """
    needed = [1]
    for operand in operands:
        with contextlib.suppress(BadInput):
            graph = operand.load()
            needed.append(_needed(graph) if _is_experiment(graph) else 1)
    _devices(needed, None)


def _is_experiment(graph: Graph) -> bool:
    from luthier.view import effects

    return effects.is_experiment(graph)


def _needed(graph: Graph) -> int:
    """Return the least number of devices that fits the mesh of a graph."""
    # By trying: an axis of -1 takes all devices that are left, so the mesh itself does not say.
    from luthier import graph as graphs
    from luthier.errors import ShardingError

    mesh = graphs.build(graphs.get(graph, "parallelism")).mesh
    for number in range(1, _MOST + 1):
        try:
            mesh.sizes(number)
        except ShardingError:
            continue
        return number
    return 1  # the plan will reject it with the reason


_MOST = 4096
"""The largest mesh tried."""


def _devices(needed: Sequence[int], devices: str | None) -> list[list[Any]]:
    """Return the devices of each side; they may be virtual."""
    # Both sides share one process and so one set of devices: the smaller mesh uses a part of them.
    # Where JAX runs already, it may have enough.
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
