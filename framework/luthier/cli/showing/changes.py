"""`luthier show --changes`: what the overrides and fiddlers of a command line change."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_WORD = re.compile(r"(?P<word>\S+ (?P<number>\d+): .*?)(?:, (?P<line>[^\s,]+:\d+))?")
_ELSEWHERE = "not by a word of the command line"


def print_changes(before: Any, after: Any) -> None:
    """Print the difference between a graph and what overrides and fiddlers made of it.

    The changes stand below the word that caused them. What one word changes and a later one
    changes again is told once, below the later one.

    Args:
      before: The graph of the reference.
      after: The graph after all the words of the command line.
    """
    from luthier import graph as graphs

    groups: dict[tuple[int, str], list[str]] = {}
    for change in graphs.diff(before, after):
        number, word, line = _caused_by(after, change)
        told = graphs.render_diff([dataclasses.replace(change, origin=line)])
        groups.setdefault((number, word), []).append(f"  {told}")
    lines = []
    for (_, word), changes in sorted(groups.items(), key=lambda group: group[0][0]):
        lines += [f"{word}:" if word == _ELSEWHERE else word, *changes]
    print("\n".join(lines) or "nothing changes")


def _caused_by(after: Any, change: Any) -> tuple[int, str, str]:
    """Return the number and text of the word that caused a change, and the line inside of it."""
    for origin in _origins(after, change):
        match = _WORD.fullmatch(origin)
        if match:
            return int(match["number"]), match["word"], match["line"] or ""
    return 0, _ELSEWHERE, change.origin


def _origins(after: Any, change: Any) -> list[str]:
    """Return what may have caused a change, the likeliest first.

    What is gone has no origin of its own: what set the places around it has.
    """
    from luthier import graph as graphs
    from luthier.errors import UnknownReference
    from luthier.graph.paths import format_path, parse_path

    found = [change.origin] if change.origin else []
    parts = parse_path(change.path)
    for end in range(len(parts), 0, -1):
        try:
            causes = graphs.explain(after, format_path(parts[:end])).causes
        except UnknownReference:
            continue
        found += [cause.origin for cause in reversed(causes)]
    return found
