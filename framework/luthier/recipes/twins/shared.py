"""Constants that many places share, set by their names, as a fiddler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier import graph
from luthier.errors import BadInput, Problem
from luthier.graph.values import is_constant, operands


def shared(experiment: fdl.Buildable, **values: Any) -> Any:
    """Return an experiment whose shared constants have other values, with what is computed of them.

    A constant that stands in a place by itself is also set there; this reaches those of which
    places are only computed.

        luthier show configs.lm.quickstart 'fiddler:shared(length=64)' --changes

    Args:
      experiment: A graph of an experiment or of a part of one; it is not changed.
      values: Values by the names of constants.

    Raises:
      BadInput: No constant has such a name.
    """
    changed = graph.copy_graph(experiment)
    found: dict[str, list[Any]] = {}
    for place in graph.walk(changed, defaults=False):
        for node in constants(place.value):
            name = node.__arguments__.get("name", "")
            if not any(node is other for other in found.setdefault(name, [])):
                found[name].append(node)
    named = [name for name in found if name]
    problems = [
        Problem(
            f"no shared constant is called {name!r}",
            nearest=graph.nearest(name, named),
            remedy=f"there are {', '.join(sorted(named))}" if named else "set it by its path",
        )
        for name in values
        if name not in named
    ]
    if problems:
        raise BadInput(problems)
    for name, value in values.items():
        for node in found[name]:
            graph.set_value(node, "value", value)
    return changed


def constants(node: Any) -> Iterator[Any]:
    """Yield the constants that a value is made of: itself, or those of its arithmetic."""
    if is_constant(node):
        yield node
    elif graph.is_value_node(node):
        for operand in operands(node):
            yield from constants(operand)
