"""The history of a graph as a side file of its record: every set of every argument, with origin.

A graph that is read from a record takes its history from this file, so that `show --why` still
explains its values; later sets come after it. Nothing that the file names is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle import history as fiddle_history
from fiddle.history import HistoryEntry

from luthier.errors import UnknownReference
from luthier.graph import values
from luthier.graph.origins import Location, callers_of, entry_text, run_of, short_file
from luthier.graph.paths import Part, child_of, format_path, join, parse_path
from luthier.graph.public_names import display_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.plain import plain_leaf, to_dict
from luthier.graph.record.structure import entries, nodes
from luthier.graph.values import Graph

FORMAT = "luthier.history"
VERSION = 1
MADE = "__fn_or_cls__"


@dataclasses.dataclass(frozen=True)
class RecordedOrigin:
    """A former node or expression of a graph, of which only the text was recorded.

    Args:
      text: The text.
      kind: `node` or `expression`.
    """

    text: str
    kind: str


def history(graph: Graph) -> dict[str, list[dict[str, Any]]]:
    """Return every set of every argument of a graph.

    Args:
      graph: A node.

    Returns:
      For each path its sets in order, `{"value": ..., "origin": "file:line", "order": 3}` with
      plain JSON values. A node has `"node"`, its class, instead of the value, a computed value
      `"expression"`, and a reset to the default `"reset": True`. `order` counts all sets of the
      graph; `from` holds the lines that called the line of the origin, and `run` the recorded run
      in which it was set, if there are any. A shared node is listed at its first path; the sets of
      a constant are listed at each of its users.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = graph.apply(fdl.Config(optim.sgd, learning_rate=0.1), ["learning_rate=0.2"])
      >>> [entry["value"] for entry in graph.history(config)["learning_rate"]]
      [0.1, 0.2]
    """
    sets_by_path = _found(graph)
    numbers = sorted({entry.sequence_id for sets in sets_by_path.values() for entry in sets})
    order = {number: index for index, number in enumerate(numbers)}
    return {
        path: [
            {**describe_set(entry), "order": order[entry.sequence_id]}
            for entry in sorted(sets, key=lambda entry: entry.sequence_id)
        ]
        for path, sets in sets_by_path.items()
        if sets
    }


def history_record(graph: Graph) -> dict[str, Any]:
    """Return the history of a graph as a record, which `restore_history` reads again.

    Args:
      graph: A node.

    Returns:
      A dict of plain JSON values: the format, its version, and `history(graph)` under `sets`.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=0.1)
      >>> record = graph.history_record(config)
      >>> read = graph.from_json(graph.to_json(config))
      >>> graph.restore_history(read, record)
      True
    """
    return {"format": FORMAT, "version": VERSION, "sets": history(graph)}


def restore_history(graph: Graph, record: Any, run: str = "") -> bool:
    """Give a graph that was read from a record its history, in place.

    Args:
      graph: The result of `from_json`; nothing was set in it since.
      record: The result of `history_record` for the graph that was recorded.
      run: The name of the recorded run.

    Returns:
      Whether the record could be read; otherwise the graph is left as it is.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.sgd, learning_rate=0.1)
      >>> read = graph.from_json(graph.to_json(config))
      >>> graph.restore_history(read, graph.history_record(config), run="sgd/1")
      True
    """
    # The reverse of `history`. `from_json` gave every argument one entry, "set by config.json";
    # it is replaced by the recorded entries, which are appended in their order over the whole
    # graph, so that Fiddle's counter numbers them in that order and before any set that follows.
    # A missing or damaged side file costs only the explanations, so nothing here raises.
    if not _is_record(record):
        return False
    for path, node in nodes(graph):
        if path:
            node.__argument_history__[MADE] = []  # listed with the set that put the node there
    pending = []
    for path, sets in record["sets"].items():
        place = _holder(graph, path)
        if place is None:
            continue
        owner, key, value = place
        owner.__argument_history__[key] = []
        if values.is_constant(value):  # listed at its users
            value.__argument_history__.clear()
        pending += [(entry["order"], owner, key, entry) for entry in sets]
    # Sorted over the whole graph, not per path: Fiddle's counter only goes up.
    numbers: dict[int, int] = {}
    for order, owner, key, entry in sorted(pending, key=lambda found: found[0]):
        past = fiddle_history.History()  # Fiddle numbers the entries
        past.add_new_value(key, _value(entry))
        entry_of_history = past[key][-1]
        callers, of = tuple(entry.get("from", ())), entry.get("run", run)
        entry_of_history = dataclasses.replace(
            entry_of_history,
            # One set of a constant is listed at each user: it keeps one number for all of them.
            sequence_id=numbers.setdefault(order, entry_of_history.sequence_id),
            location=Location(entry["origin"], 0, None, callers, of),
        )
        owner.__argument_history__[key].append(entry_of_history)
    return True


def describe_set(entry: HistoryEntry) -> dict[str, Any]:
    """Return one set of an argument as plain JSON values, without its place in the order."""
    data = _describe_value(entry.new_value)
    data["origin"] = entry_text(entry)
    callers = [_short_line(line) for line in callers_of(entry.location)]
    if callers:
        data["from"] = callers
    if run_of(entry.location):
        data["run"] = run_of(entry.location)
    return data


def sets_of(node: fdl.Buildable, key: Part) -> list[HistoryEntry]:
    """Return the sets of an argument of a node in order, resets included."""
    # Without changes of tags, which Fiddle keeps in the same list.
    past = node.__argument_history__.get(key, ())  # type: ignore[call-overload]
    return [entry for entry in past if entry.kind is fiddle_history.ChangeKind.NEW_VALUE]


def _found(graph: Graph) -> dict[str, list[HistoryEntry]]:
    # Readers look up a path, so every set is listed at the path that it affects: the sets of a
    # constant at each argument that uses it. A constant that is only an operand of arithmetic has
    # no such argument; it is listed below the expression (`model.hidden.left.value`).
    sets_by_path: dict[str, list[HistoryEntry]] = {}
    at_users: set[int] = set()
    inside: list[tuple[str, fdl.Config]] = []
    for path, node in nodes(graph):
        if values.is_value_node(node):
            continue  # listed at its users
        for part in node.__argument_history__:
            # The making of a node is listed with the set that put it there, unless the node changed
            # its class afterwards. The root was put nowhere, so its making is listed.
            if part != MADE or not path or len(sets_of(node, part)) > 1:
                sets_by_path.setdefault(_path(path, part), []).extend(sets_of(node, part))
        for key, child in entries(node) or ():
            for at, value in _value_nodes(join(path, key), child):
                if values.is_constant(value):
                    at_users.add(id(value))
                    sets_by_path.setdefault(at, []).extend(sets_of(value, "value"))
                else:
                    inside += _constants_inside(at, value)
    for at, constant in inside:
        if id(constant) not in at_users:
            at_users.add(id(constant))
            sets_by_path[f"{at}.value"] = sets_of(constant, "value")
    return sets_by_path


def _value_nodes(path: str, value: Any) -> Iterator[tuple[str, fdl.Config]]:
    """Yield the value nodes that `value` is or holds, other nodes apart, with their paths."""
    if values.is_value_node(value):
        yield path, value
    elif not isinstance(value, fdl.Buildable):
        for key, child in entries(value) or ():
            yield from _value_nodes(join(path, key), child)


def _constants_inside(path: str, node: Any) -> Iterator[tuple[str, fdl.Config]]:
    """Yield the constants that arithmetic is made of, with their paths."""
    if values.is_constant(node):
        yield path, node
    elif values.is_operation(node):
        for side, operand in entries(node) or ():
            yield from _constants_inside(join(path, side), operand)


def _path(path: str, part: Part) -> str:
    if part == MADE:
        return path
    if isinstance(part, str) and not part.isidentifier():  # set inside of an argument: layers[0]
        return f"{path}.{part}" if path and not part.startswith("[") else path + part
    return join(path, part)


def _describe_value(value: Any) -> dict[str, Any]:
    if value is fiddle_history.DELETED:
        return {"reset": True}
    if isinstance(value, RecordedOrigin):
        return {value.kind: value.text}
    if values.is_value_node(value):
        return {"expression": values.expression(value)}
    if isinstance(value, fdl.Buildable):
        kind = KINDS.get(type(value), type(value).__name__)
        name = display_name(value.__fn_or_cls__)
        return {"node": name if kind == "config" else f"{kind} {name}"}
    if callable(value):
        return {"node": display_name(value)}
    if isinstance(value, dict | list | tuple | set | frozenset):
        return {"value": to_dict(value, defaults=False)}
    return {"value": plain_leaf(value)}


def _short_line(line: str) -> str:
    name, _, number = line.rpartition(":")
    return f"{short_file(name)}:{number}"


def _is_record(record: Any) -> bool:
    """Return whether a value that was read from a file is a history record of a known version."""
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        return False
    if record.get("version") != VERSION or not isinstance(record.get("sets"), Mapping):
        return False
    return all(
        isinstance(sets, list) and all(_is_set(entry) for entry in sets)
        for sets in record["sets"].values()
    )


def _is_set(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and (bool(entry.keys() & {"value", "reset"}) or any(_texts(entry)))
        and isinstance(entry.get("origin"), str)
        and type(entry.get("order")) is int
        and isinstance(entry.get("run", ""), str)
        and _are_texts(entry.get("from", []))
    )


def _texts(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of value that a set records by their text alone."""
    return (kind for kind in ("node", "expression") if isinstance(entry.get(kind), str))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _value(entry: Mapping[str, Any]) -> Any:
    for kind in _texts(entry):
        return RecordedOrigin(entry[kind], kind)
    return entry.get("value", fiddle_history.DELETED)


def _holder(graph: Graph, path: str) -> tuple[fdl.Buildable, Part, Any] | None:
    """Return the node whose history covers a path, its key there, and the value at the path."""
    try:
        parts = parse_path(path)
        value, owner, depth = graph, None, 0
        for index, part in enumerate(parts):
            if isinstance(value, fdl.Buildable):
                owner, depth = value, index
            value, _ = child_of(value, part)
    except (UnknownReference, KeyError):
        return None
    if owner is None:
        return (graph, MADE, graph) if isinstance(graph, fdl.Buildable) else None
    rest = parts[depth:]
    return owner, rest[0] if len(rest) == 1 else format_path(rest), value
