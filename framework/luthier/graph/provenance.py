"""Explains a value: everything that set it, first to last."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle.history import HistoryEntry

from luthier.errors import Problem, UnknownReference
from luthier.graph import signatures, values
from luthier.graph.origins import short_file
from luthier.graph.paths import (
    Path,
    Place,
    child_of,
    find,
    format_path,
    is_container,
    parse_path,
    walk,
)
from luthier.graph.public_names import display_name
from luthier.graph.record.history_log import MADE, RecordedOrigin, describe_set, sets_of
from luthier.graph.record.structure import entries
from luthier.graph.render import text_of
from luthier.graph.values import Graph


@dataclasses.dataclass(frozen=True)
class Cause:
    """One step on the way to a value.

    Args:
      path: The place that was set: the value itself, a place above it that holds it, or a
        place of a constant that it follows (its name, where it has no place of its own).
      value: The new value, on one line.
      origin: The origin of the set: `file:line`, an argument, or the class with this default.
      callers: The lines that called the line of the origin, innermost first.
      run: The recorded run in which it was set; empty for sets of this process.
      is_reset: Whether it was put back to its default.
    """

    path: str
    value: str
    origin: str
    callers: tuple[str, ...] = ()
    run: str = ""
    is_reset: bool = False


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The provenance of the value at a path.

    Args:
      path: The path.
      value: The value, on one line.
      causes: Its sets, first to last; the default is last where it is in force.
      follows: For a value that is computed from constants: the sets of each of them, by the
        constant's path (its name, where it has no place of its own).
      same_as: The other places of the same constant or node, which change with this one.
    """

    path: str
    value: str
    causes: tuple[Cause, ...]
    follows: tuple[tuple[str, tuple[Cause, ...]], ...] = ()
    same_as: tuple[str, ...] = ()


def explain(graph: Graph, path: str) -> Explanation:
    """Explain where the value at a path comes from.

    Args:
      graph: A node.
      path: A path that exists.

    Returns:
      The value as text, its causes (those of the nodes around it first, then its own sets in
      order), and the other places of the same node or constant.

    Raises:
      UnknownReference: There is no such path.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=3e-4)
      >>> explanation = graph.explain(graph.apply(config, ["momentum=0.8"]), "momentum")
      >>> explanation.causes[-1].origin
      'argument 1: momentum=0.8'
    """
    parts = parse_path(path)
    if not parts:
        raise UnknownReference(Problem("a path is missing", remedy="write it like model.dim"))
    place = find(graph, parts)
    written = format_path(parts)
    own = _own_sets(graph, parts, place)
    if isinstance(place.value, fdl.Buildable) and not values.is_value_node(place.value):
        own += [(written, entry) for entry in sets_of(place.value, MADE)]
    # Outer nodes first: they explain why there is a value here at all.
    causes = _causes(own)
    causes = _above(graph, parts, causes) + causes
    if place.is_default or place.value is signatures.UNSET:
        causes.append(_default(graph, parts, place.value))
    return Explanation(
        written,
        "not set" if place.value is signatures.UNSET else text_of(place.value),
        tuple(causes),
        tuple(_follows(graph, place.value)),
        tuple(_same_as(graph, parts, written)),
    )


def last_causes(graph: Graph) -> Iterator[tuple[str, str, Cause]]:
    """Yield (path, value, last cause) for every value that is set, in the graph's order.

    Args:
      graph: A node. Shared nodes are listed at their first path.

    Yields:
      (path, value as text, last cause). A list or dict without nodes is one value; defaults are
      left out.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = graph.apply(fdl.Config(optim.sgd), ["learning_rate=0.1", "momentum=0.8"])
      >>> [(path, value) for path, value, cause in graph.last_causes(config)]
      [('learning_rate', '0.1'), ('momentum', '0.8')]
    """
    # A list or dict without nodes is one value with one cause; `whole` holds the prefixes of the
    # paths below it, to skip them.
    whole: tuple[str, ...] = ()
    for place in walk(graph, defaults=False, once=True):
        if whole and place.path.startswith(whole):
            continue
        whole = ()
        if is_container(place.value):
            if _holds_nodes(place.value):
                continue
            whole = (f"{place.path}.", f"{place.path}[")
        causes = _causes(_own_sets(graph, parse_path(place.path), place))
        if causes:
            yield place.path, text_of(place.value), causes[-1]


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, fdl.Buildable) or any(
        _holds_nodes(child) for _, child in entries(value) or ()
    )


Sets = list[tuple[str, HistoryEntry]]
"""Sets, each with the path that was set."""


def _own_sets(graph: Graph, parts: Path, place: Place) -> Sets:
    """Return the sets of a place, and for a constant, those of the constant."""
    sets = _sets_at(graph, parts)
    if values.is_constant(place.value) and not place.is_default:
        sets += [(place.path, entry) for entry in sets_of(place.value, "value")]
    return sets


def _sets_at(graph: Graph, parts: Path) -> Sets:
    """Return the sets of exactly this path, and of the containers inside an argument around it."""
    owner, depth = _holder(graph, parts)
    sets = [(format_path(parts[: depth + 1]), entry) for entry in sets_of(owner, parts[depth])]
    for end in range(depth + 2, len(parts) + 1):
        at = format_path(parts[:end])
        sets += [(at, entry) for entry in sets_of(owner, format_path(parts[depth:end]))]
    return sets


def _holder(graph: Graph, parts: Path) -> tuple[Any, int]:
    """Return the innermost node around a path, and how many parts of the path lead to it."""
    value, owner, depth = graph, graph, 0
    for index, part in enumerate(parts):
        if isinstance(value, fdl.Buildable):
            owner, depth = value, index
        value, _ = child_of(value, part)
    return owner, depth


def _causes(sets: Sets) -> list[Cause]:
    # Fiddle numbers the sets of a process, so sorting by number is sorting by time, across nodes.
    # Neighbours that read the same are listed once.
    causes: list[Cause] = []
    for path, entry in sorted(sets, key=lambda pair: pair[1].sequence_id):
        data = describe_set(entry)
        cause = Cause(
            path,
            "its default" if "reset" in data else _shown(entry.new_value),
            data["origin"],
            tuple(data.get("from", ())),
            data.get("run", ""),
            "reset" in data,
        )
        if cause not in causes[-1:]:
            causes.append(cause)
    return causes


def _shown(value: Any) -> str:
    if isinstance(value, RecordedOrigin):
        return value.text
    if values.is_value_node(value):
        return values.expression(value)
    return text_of(value)


def _above(graph: Graph, parts: Path, own: list[Cause]) -> list[Cause]:
    """Return the sets of the nodes around a path that add something to the value's own sets.

    A set by an argument is always listed. One by a file is not listed if that file set the value
    itself, and of several by one file, only that of the innermost node is.
    """
    # Without this filter every value would list each recipe on the way to the root, which sets all
    # nodes of a graph. From the inside out, `known` collects the files that were listed already.
    known = {file for cause in own for file in _files(cause)}
    added: Sets = []
    for end in range(len(parts) - 1, 0, -1):
        inside, at = find(graph, parts[:end]).value, format_path(parts[:end])
        sets = _sets_at(graph, parts[:end])[-1:]
        if isinstance(inside, fdl.Buildable):
            sets += [(at, entry) for entry in sets_of(inside, MADE)]
        for path, entry in reversed(sets):
            files = _files(_causes([(path, entry)])[0])
            if not files or not files <= known:
                added.append((path, entry))
            known |= files
    return _causes(added)


def _files(cause: Cause) -> set[str]:
    """Return the files that set something; none for an argument."""
    lines = [line for line in (cause.origin, *cause.callers) if line.rpartition(":")[2].isdigit()]
    return {line.rpartition(":")[0] for line in lines}


def _default(graph: Graph, parts: Path, value: Any) -> Cause:
    """Return whose default a value is, with the line of its definition where there is one."""
    owner, depth = graph, 0
    for depth, part in enumerate(parts):
        inside, is_default = child_of(owner, part)
        if is_default or depth == len(parts) - 1:
            break
        owner = inside
    target, path = owner.__fn_or_cls__, format_path(parts)
    if value is signatures.UNSET:
        return Cause(path, "not set", f"{display_name(target)} has no default")
    line = _definition(target)
    return Cause(path, text_of(value), f"the default of {display_name(target)}{line}")


def _definition(target: Any) -> str:
    code = getattr(getattr(target, "__init__", target), "__code__", None)
    code = getattr(target, "__code__", code)
    if code is None or code.co_filename.startswith("<"):  # what dataclasses generate has no file
        return ""
    return f" ({short_file(code.co_filename)}:{code.co_firstlineno})"


def _follows(graph: Graph, value: Any) -> Iterator[tuple[str, tuple[Cause, ...]]]:
    """Yield the sets of the constants that arithmetic is computed from."""
    # Breadth first, so that constants come in the order of the expression. What put a constant at
    # its place counts as a set of it.
    if not values.is_operation(value):
        return
    pending, seen = [value], set()
    while pending:
        node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if values.is_operation(node):
            pending += values.operands(node)
        elif values.is_constant(node):
            name, users = node.__arguments__.get("name", ""), _users(graph, node)
            # By a path, since a name may be made up; by the one that is called like it, if any.
            path = min(users, key=lambda user: parse_path(user)[-1] != name, default="")
            shown = path or name or text_of(node)
            sets = [(shown, entry) for entry in sets_of(node, "value")]
            if path:
                sets += [(shown, entry) for _, entry in _sets_at(graph, parse_path(path))]
            yield shown, tuple(cause for cause in _causes(sets) if cause.value != name)


def _users(graph: Graph, node: fdl.Buildable) -> list[str]:
    return [place.path for place in walk(graph, defaults=False) if place.value is node]


def _same_as(graph: Graph, parts: Path, written: str) -> Iterator[str]:
    """Yield the other paths of a value: the users of its constant, or the places of its node."""
    value = find(graph, parts).value
    if values.is_constant(value):
        yield from (path for path in _users(graph, value) if path != written)
        return
    owner, depth = _holder(graph, parts)
    if owner is graph:
        return
    rest = parts[depth:]
    for path in _users(graph, owner):
        other = format_path((*parse_path(path), *rest))
        if other != written:
            yield other
