"""Nodes that parts which are built apart (model and data, say) must not share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier.errors import Problem
from luthier.graph.paths import children, is_container, join


def shared_between_parts(graph: Any) -> Iterator[Problem]:
    """Yield a problem for every node, other than a value node, in two top-level parts of `graph`.

    Args:
      graph: The root node. Its top-level parts are built one by one, so a shared node would become
        two objects.
    """
    first: dict[int, tuple[str, Any]] = {}
    for part, child, is_default in children(graph):
        if is_default:
            continue
        here: set[int] = set()
        pending = [(join("", part), child)]
        while pending:
            path, value = pending.pop()
            if not is_container(value) or id(value) in here:
                continue
            here.add(id(value))
            if isinstance(value, fdl.Buildable):
                if id(value) in first:
                    yield _problem(first[id(value)][0], path, value)
                    continue
                first[id(value)] = (path, value)
            below = [
                (join(path, name), inside)
                for name, inside, below_default in children(value)
                if not below_default
            ]
            pending += reversed(below)


def _problem(first: str, second: str, node: fdl.Buildable) -> Problem:
    name = getattr(node.__fn_or_cls__, "__name__", str(node.__fn_or_cls__))
    what = f"is the same {name} node as {first}, but the two are built apart"
    remedy = "give each its own node (copy.deepcopy), and share values with luthier.graph.value"
    return Problem(what, path=second, remedy=remedy)
