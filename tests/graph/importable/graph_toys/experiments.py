"""Experiments to resolve, good and bad."""

from __future__ import annotations

import fiddle as fdl

from graph_toys import parts


def experiment() -> fdl.Config:
    """The default."""
    return parts.experiment()


def sized(size: int, name: str = "sized", rate: float = 0.1) -> fdl.Config:
    """One with arguments."""
    graph = parts.experiment()
    graph.name, graph.model.dim, graph.optimizer.learning_rate.peak = name, size, rate
    return graph


def built() -> parts.Source:
    """Not a graph."""
    return parts.Source()


def failing() -> fdl.Config:
    """Raises."""
    raise KeyError("no such size")
