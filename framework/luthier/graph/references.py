"""References in overrides: `ref:` and `alias:` within a graph, and nodes of recorded runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import fiddle as fdl
from fiddle import history

from luthier.errors import BadInput, Problem
from luthier.graph import copies, setting, values
from luthier.graph.grammar import names
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import (
    Path,
    Place,
    child_of,
    find,
    format_path,
    get,
    is_container,
    parse_path,
)
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

# References (`ref:`) and aliases (`alias:`): one node in two places.
#
# A reference works on values and an alias on any node, but both end in shared objects of Fiddle:
# the value that is referred to becomes a constant (a node of `values.constant`), which its old
# place and the new one then share. So references stay live, and need no evaluation rules.


def refer(graph: Graph, path: Path) -> fdl.Config:
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


def _make_constant(graph: Graph, path: Path, place: Place) -> fdl.Config:
    """Put a constant in place of a plain value; the origin of the value stays known."""
    # Without tracking: the value did not change, so its history must not say that the override with
    # the reference set it.
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    with history.suspend_tracking():
        constant = values.value(place.value, name=name)
        setting.replace(graph, place.path, constant)
    return constant


def alias(graph: Graph, target: Path, source: Path) -> Any:
    """Return the node at `source`, to be shared at `target`; a plain value becomes a constant.

    Raises:
      Unreadable: It cannot be shared there, because `target` lies inside it.
      UnknownReference: There is no such path.
    """
    node = find(graph, source).value
    if not isinstance(node, fdl.Buildable):
        node = refer(graph, source)
    refuse_circle(graph, target, node)
    return node


def refuse_circle(graph: Graph, target: Path, value: Any, into_constant: bool = False) -> None:
    """Raise where putting `value` at `target` would make it contain itself.

    Args:
      graph: A node.
      target: Where `value` is to be put.
      value: A node, or anything.
      into_constant: Whether a constant at `target` is to hold `value`, instead of being replaced.
    """
    # There is a cycle if a node on the way to `target` is also inside of `value`. The node at
    # `target` itself is replaced, so it does not count, unless it is a constant that stays and only
    # gets `value` as its new value.
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


# Values from elsewhere: `alias:PATH` in this graph, `run:ID.PATH` in a recorded one.

Recorded = Callable[[str], Graph]
"""Returns the graph of a recorded run, by its id or another name of the run."""

_ALIAS = re.compile(r"(?:alias:|&)(.*)", re.DOTALL)
# A run may be given by a folder, whose name may contain dots: everything up to the last slash is of
# the run, and the path begins after the first dot behind it.
_RUN = re.compile(r"@?run:((?:[^\[/]*/)*[^\[/.]*)\.?(.*)", re.DOTALL)


def take(
    graph: Graph, target: Path, text: str, annotation: Any, recorded: Recorded | None
) -> tuple[Any] | None:
    """Return the value that `alias:` or `run:` refers to, in a tuple; None for any other text.

    Args:
      graph: A node; a plain value in it that is shared becomes a constant, in place.
      target: The path that the value is for.
      text: The value as it was written.
      annotation: The annotation of the place: a class of it may have `run:` as its own prefix, and
        then only `@run:` takes a node from a run.
      recorded: Returns the graph of a run; None where there are no runs.

    Raises:
      Unreadable: It cannot be used there.
      BadInput: There is no such run or path.
    """
    # In a tuple, because None is a value that a run can hold. An alias shares the node itself; of a
    # run, a copy is taken, so that later overrides do not edit the recorded graph.
    if match := _ALIAS.fullmatch(text):
        source = match[1].strip()
        if not source:
            raise Unreadable(Problem(f"{text!r} names no path", remedy="write alias:PATH"))
        return (alias(graph, target, parse_path(source)),)
    match = _RUN.fullmatch(text)
    if not match or (not text.startswith("@") and "run" in names.words(annotation)):
        return None
    run, path = match[1].strip(), match[2].strip()
    if not run or not path:
        remedy = "write run:ID.PATH, as run:last.model"
        raise Unreadable(Problem(f"{text!r} does not name a run and a path", remedy=remedy))
    if recorded is None:
        raise Unreadable(f"{text!r}: no runs are known here")
    source = recorded(run)
    try:
        return (copies.copy_graph(get(source, path)),)
    except BadInput as error:
        problem, at = error.problems[0], f"run:{run}."
        near = [f"{at}{other}" for other in problem.nearest]
        qualified = dataclasses.replace(problem, path=f"{at}{problem.path}", nearest=near)
        raise Unreadable(qualified) from error
