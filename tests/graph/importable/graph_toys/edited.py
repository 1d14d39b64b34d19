"""Graphs that the table of the override grammar is about, by name, and what they need beside them.

This imports flax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl

from graph_toys import modules, parts
from luthier import graph as graphs
from luthier.errors import Problem, UnknownReference


class Start:
    """Where training begins."""


class FromFiles(Start):
    WORD = "files"

    def __init__(self, directory: str):
        self.directory = directory


class FromRun(Start):
    WORD = "run"

    def __init__(self, name: str):
        self.name = name


@dataclasses.dataclass
class Warm:
    start: Start | None = None


def experiment() -> fdl.Config:
    """The plain one."""
    return parts.experiment()


def shared() -> fdl.Config:
    """One whose width is a constant that other values follow."""
    graph = parts.experiment()
    dim = graphs.value(16, name="dim")
    graph.model.dim = dim
    graph.model.layers[0].hidden = graphs.multiply(dim, 4)
    return graph


def template() -> fdl.Config:
    """One with a module that is made later: a template."""
    graph = parts.experiment()
    graph.extra = fdl.Partial(modules.Net, dim=3, block=fdl.Partial(modules.Dense, out=3))
    return graph


def untyped() -> fdl.Config:
    """One with a function without annotations."""
    graph = parts.experiment()
    graph.extra = fdl.Config(parts.untyped)
    return graph


def warm() -> fdl.Config:
    """One with classes that have a word of their own."""
    graph = parts.experiment()
    graph.extra = fdl.Config(Warm)
    return graph


def recorded(run: str) -> Any:
    """Return the graph of a run: only `last`, also called `toy/a1`, was recorded."""
    if run not in ("last", "toy/a1"):
        raise UnknownReference(Problem(f"no run {run!r} in runs", nearest=["toy/a1"]))
    graph = parts.experiment()
    graph.model.dim, graph.model.layers, graph.optimizer.b2 = 64, [fdl.Config(parts.Mlp)], 0.5
    return graph
