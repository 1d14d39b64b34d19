"""The side file of a record: what every argument was set to in turn, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import fiddle as fdl
from fiddle import history as fiddle_history
from fiddle.history import HistoryEntry

from luthier.graph import values
from luthier.graph.edits.origins import location_text
from luthier.graph.paths import join
from luthier.graph.public_names import display_name
from luthier.graph.record.plain import plain_leaf, to_dict
from luthier.graph.record.structure import entries, nodes

_MADE = "__fn_or_cls__"


def history(graph: Any) -> dict[str, list[dict[str, Any]]]:
    """Return how every argument of a graph came to its value.

    Args:
      graph: A node.

    Returns:
      For each path the sets in their order, `{"value": ..., "origin": "file:line"}` with plain JSON
      values; a node is the name of its class, and a reset to the default is `{"reset": True, ...}`.
      A shared node stands at its first path; what a constant was set to, at each of its users.
    """
    found: dict[str, list[HistoryEntry]] = {}
    for path, node in nodes(graph):
        if values.is_value_node(node):
            continue  # told at its users
        for part, past in node.__argument_history__.items():
            if part != _MADE or not path:
                found.setdefault(_path(path, part), []).extend(_sets(past))
        for key, child in entries(node) or ():
            for at, constant in _constants(join(path, key), child):
                found.setdefault(at, []).extend(_sets(constant.__argument_history__["value"]))
    return {
        path: [_entry(entry) for entry in sorted(sets, key=lambda entry: entry.sequence_id)]
        for path, sets in found.items()
        if sets
    }


def _sets(past: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    return [entry for entry in past if entry.kind is fiddle_history.ChangeKind.NEW_VALUE]


def _constants(path: str, value: Any) -> Iterator[tuple[str, fdl.Config]]:
    """Yield the constants that `value` is or holds, nodes apart, with their paths."""
    if values.is_constant(value):
        yield path, value
    elif not isinstance(value, fdl.Buildable):
        for key, child in entries(value) or ():
            yield from _constants(join(path, key), child)


def _path(path: str, part: Any) -> str:
    if part == _MADE:
        return path
    if isinstance(part, str) and not part.isidentifier():  # set inside of an argument: layers[0]
        return f"{path}.{part}" if path and not part.startswith("[") else path + part
    return join(path, part)


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    origin = location_text(entry.location)
    if entry.new_value is fiddle_history.DELETED:
        return {"reset": True, "origin": origin}
    return {"value": _told(entry.new_value), "origin": origin}


def _told(value: Any) -> Any:
    if values.is_value_node(value):
        return values.expression(value)
    if isinstance(value, fdl.Buildable):
        return display_name(value.__fn_or_cls__)
    if isinstance(value, dict | list | tuple | set | frozenset):
        return to_dict(value, defaults=False)
    return plain_leaf(value)
