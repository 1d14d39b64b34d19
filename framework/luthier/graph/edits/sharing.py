"""References and aliases: one node in two places."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
from fiddle import history

from luthier.errors import Problem
from luthier.graph import values
from luthier.graph.edits import copies, setting
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import Path, Place, child_of, find, format_path, is_container
from luthier.graph.signatures import UNSET


def refer(graph: Any, path: Path) -> fdl.Config:
    """Return the value node at `path`; a plain value there becomes a constant, in place.

    Args:
      graph: A node.
      path: Where the value is.

    Raises:
      Unreadable: Nothing is set there, or a node that is not a value.
      UnknownReference: There is no such path.
    """
    place = find(graph, path)
    if values.is_value_node(place.value):
        return place.value
    if place.value is UNSET:
        raise Unreadable(f"{place.path} is not set, so nothing can refer to it")
    if is_container(place.value) and not isinstance(place.value, tuple | list):
        remedy = f"refer to one of its fields, or share it with alias:{place.path}"
        raise Unreadable(Problem(f"{place.path} is a node, not a value", remedy=remedy))
    return _make_constant(graph, path, place)


def _make_constant(graph: Any, path: Path, place: Place) -> fdl.Config:
    """Put a constant in place of a plain value; where it was set stays known."""
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    with history.suspend_tracking():
        constant = values.value(place.value, name=name)
        setting.replace(graph, place.path, constant)
    return constant


def alias(graph: Any, target: Path, source: Path) -> Any:
    """Return what is at `source`, to be shared at `target`; a plain value becomes a constant.

    Raises:
      Unreadable: It cannot be shared there, because `target` lies inside it.
      UnknownReference: There is no such path.
    """
    found = find(graph, source).value
    if not isinstance(found, fdl.Buildable):
        found = refer(graph, source)
    refuse_circle(graph, target, found)
    return found


def refuse_circle(graph: Any, target: Path, value: Any, into_constant: bool = False) -> None:
    """Raise where putting `value` at `target` would make it contain itself.

    Args:
      graph: A node.
      target: Where `value` is to be put.
      value: A node, or anything.
      into_constant: Whether a constant at `target` is to hold `value`, instead of being replaced.
    """
    inside = {id(node) for node in copies.nodes_of(value)}
    holder, holders = graph, [id(graph)]
    for part in target:
        try:
            holder, _ = child_of(holder, part)
        except KeyError:
            break
        holders.append(id(holder))
    is_held = into_constant and values.is_constant(holder) and value is not holder
    above = holders if is_held else holders[:-1]
    if inside.intersection(above):
        raise Unreadable(Problem("would contain itself", path=format_path(target)))
