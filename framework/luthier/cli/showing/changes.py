"""`luthier show --changes`: what the overrides, files and fiddlers of a command line change.

Every set is in Fiddle's history with its origin and a sequence number. What is in the history of
the changed graph alone was set by the command line: by one of its arguments, or by a line of a file
that it names. A change belongs to the last of these sets at its path, above it, or inside of it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from luthier.terminal import printable

_ARGUMENT = re.compile(r"(?P<override>\S+ \d+: .*?)(?:, (?P<line>[^\s,]+:\d+))?")
_PATH = re.compile(r"\S+ \d+: (?P<path>[^=:~\s]+?)\s*(?::|\*|\+|-)?=")
_LINE_OF_CODE = re.compile(r"[^\s,]+:\d+")
_ELSEWHERE = "not set on the command line"


class _Set(NamedTuple):
    """One entry of the history: when, at which path, and by what."""

    sequence: int
    path: tuple[Any, ...]
    origin: str


def print_changes(before: Any, after: Any) -> None:
    """Print the difference between a graph and what a command line made of it.

    The changes are listed below the argument or the line of a file that caused them. What is
    changed twice is listed once, below the later cause.

    Args:
      before: The graph of the reference.
      after: The graph after all the overrides of the command line.
    """
    from luthier import graph as graphs

    sets = _new_sets(before, after)
    groups: dict[str, list[str]] = {}
    order: dict[str, int] = {}
    for change in graphs.diff(before, after):
        cause = _cause(sets, change)
        if cause is None or _LINE_OF_CODE.fullmatch(cause.origin):
            sequence, title, line = -1, f"{_ELSEWHERE}:", change.origin
        else:
            match = _ARGUMENT.fullmatch(cause.origin)
            title, line = (match["override"], match["line"] or "") if match else (cause.origin, "")
            sequence = cause.sequence
        change = dataclasses.replace(change, origin=line, path=_written_path(after, change, title))
        groups.setdefault(title, []).append(f"  {graphs.render_diff([change])}")
        order[title] = min(sequence, order.get(title, sequence))
    lines: list[str] = []
    for title in sorted(groups, key=lambda title: order[title]):
        lines += map(printable, [title, *groups[title]])
    print("\n".join(lines) or "nothing changes")


def _new_sets(before: Any, after: Any) -> list[_Set]:
    """Return what was set in `after` and not in `before`, the latest first."""
    # Not by sequence numbers: the graph of the reference may have been made once more, later.
    old = {(found.path, found.origin) for found in _sets(before)}
    new = [found for found in _sets(after) if (found.path, found.origin) not in old]
    return sorted(new, key=lambda found: -found.sequence)


def _sets(graph: Any) -> list[_Set]:
    from luthier.graph.edits import origins
    from luthier.graph.paths import is_node, parse_path, walk

    found = []
    for place in [None, *walk(graph, defaults=False)]:
        node = graph if place is None else place.value
        if not is_node(node):
            continue
        at = parse_path(place.path) if place is not None and place.path else ()
        for key, entries in node.__argument_history__.items():
            # The class of a node, and the value of a shared one, are set where the node is.
            inside = () if key in ("__fn_or_cls__", "value") else parse_path(str(key))
            found += [
                _Set(entry.sequence_id, (*at, *inside), origins.location_text(entry.location))
                for entry in entries
            ]
    return found


def _cause(sets: list[_Set], change: Any) -> _Set | None:
    """Return the latest set at a changed path, or else above it, inside of it, or at its twin."""
    from luthier.graph.paths import parse_path

    path = parse_path(change.path)
    related = (
        lambda at: at == path,
        lambda at: path[: len(at)] == at,
        lambda at: at[: len(path)] == path,
        # What no longer shares its settings was left alone: the other place was set.
        lambda at: bool(change.same_as) and at == parse_path(change.same_as),
    )
    for is_related in related:
        for found in sets:
            if found.path and is_related(found.path):
                return found
    return None


def _written_path(after: Any, change: Any, title: str) -> str:
    """Return the path of a shared value that the user wrote, not the first of the graph."""
    from luthier.errors import UnknownReference
    from luthier.graph.paths import find

    match = _PATH.match(title)
    if match is None or not change.shared_as:
        return change.path
    try:
        is_same = find(after, match["path"]).value is find(after, change.path).value
    except UnknownReference:
        return change.path
    return match["path"] if is_same else change.path
