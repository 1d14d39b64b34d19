"""Fiddlers, good and bad."""

from __future__ import annotations

import fiddle as fdl

from graph_toys import parts
from luthier.errors import BadInput, Problem
from luthier.graph import copy_graph


def widen(graph: fdl.Buildable, factor: float = 2.0) -> fdl.Buildable:
    """Return a wider graph."""
    changed = copy_graph(graph)
    changed.model.dim = round(changed.model.dim * factor)
    return changed


def shrink(graph: fdl.Config, layers: int, *, kind: parts.Kind = parts.Kind.FAST) -> None:
    """Change the graph in place, as Fiddle's fiddlers do."""
    del graph.model.layers[layers:]
    graph.kind = kind


def swap(graph: fdl.Config, optimizer: parts.Optimizer) -> fdl.Config:
    """Take a node for an argument."""
    graph.optimizer = optimizer
    return graph


def refuse(graph: fdl.Config) -> fdl.Config:
    """Find nothing to change."""
    raise BadInput(Problem("no layer can be refused", "model.layers", remedy="add one"))


def fail(graph: fdl.Config) -> fdl.Config:
    """Fail."""
    return {}["no such width"]


def count(graph: fdl.Config) -> int:
    """Return something else."""
    return len(graph.model.layers)


def _private(graph: fdl.Config) -> fdl.Config:
    return graph


def nothing_to_do_with_graphs(size: int) -> int:
    """Take no graph."""
    return size


def add_key(graph: fdl.Config) -> None:
    """Add a key to a dict in place, which Fiddle does not see."""
    graph.evaluations["new"] = graph.evaluations["held_out"]
