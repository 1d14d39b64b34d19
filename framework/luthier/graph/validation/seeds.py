"""Seeds that are equal by accident: the same random numbers where others were meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.edits import origins
from luthier.graph.grammar import fitting
from luthier.graph.paths import is_node, join, walk


def equal_by_accident(graph: Any) -> Iterator[Problem]:
    """Yield a problem for every node that draws what another one draws, and does not say so.

    A class that draws by itself, such as a generated source of data, names in `STREAM` the
    settings that its draws depend on, the seed first. Two nodes of one class with equal settings
    draw the same. Where that is meant, they share the seed as a value node.

    Args:
      graph: The root node.
    """
    first: dict[Any, tuple[str, Any]] = {}
    for place in walk(graph, defaults=False, once=True):
        node = place.value
        names = getattr(node.__fn_or_cls__, "STREAM", ()) if is_node(node) else ()
        if not names:
            continue
        drawn = [_drawn(node, name) for name in names]
        key = (node.__fn_or_cls__, *map(repr, drawn))
        other, seed = first.setdefault(key, (place.path, node.__arguments__.get(names[0])))
        if other == place.path:
            continue
        if values.is_value_node(seed) and node.__arguments__.get(names[0]) is seed:
            continue
        yield _problem(graph, place.path, other, node, dict(zip(names, drawn, strict=True)))


def own_streams(graph: Any, path: str, node: fdl.Buildable) -> Iterator[Problem]:
    """Yield a problem where a template brings random streams of its own.

    Its parent hands it streams that come from the seed of the experiment; its own would be the same
    for every module that is made of it, and the seed would not reach them.

    Args:
      graph: The root node.
      path: Where the node is.
      node: The node.
    """
    is_template = isinstance(node, fdl.Partial) and "rngs" in node.__arguments__
    if is_template and "rngs" in signatures.inherited(node.__fn_or_cls__):
        at = join(path, "rngs")
        what = "is set, so that all modules made of this template draw the same numbers"
        remedy = "leave it out: the parent hands over streams that come from the experiment's seed"
        yield Problem(what, at, origins.origin_of(graph, at), remedy)


def _drawn(node: fdl.Buildable, name: str) -> Any:
    default = signatures.arguments(node.__fn_or_cls__).defaults.get(name)
    try:
        return values.evaluate(node.__arguments__.get(name, default))
    except (ValueError, ArithmeticError, TypeError):
        return node  # told elsewhere; equal to no other


def _problem(
    graph: Any, path: str, other: str, node: fdl.Buildable, drawn: dict[str, Any]
) -> Problem:
    name, seed = node.__fn_or_cls__.__name__, next(iter(drawn))
    said = ", ".join(f"{key}={fitting.shown(value)}" for key, value in drawn.items())
    what = f"draws the same examples as {other}: both are {name} with {said}"
    at = join(path, seed)
    remedy = f"set {at} to another number, or share it if that is meant: {at}=alias:{other}.{seed}"
    return Problem(what, path, origins.origin_of(graph, at), remedy)
