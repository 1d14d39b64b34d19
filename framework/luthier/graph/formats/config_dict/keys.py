"""Where the keys of a ConfigDict went, as the history of the graph tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from luthier.errors import Problem
from luthier.graph import values
from luthier.graph.edits.origins import location_text
from luthier.graph.formats.config_dict.loading import SOURCE
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import Place, is_node, nearest
from luthier.graph.record.trail import sets_of

_ORIGIN = re.compile(rf"(?:.*\.py(?::\d+)?|{SOURCE}): (?P<key>[^=\s]+)(?:=.*| \(computed once\))?")


def places_of(graph: Any, key: str, places: Sequence[Place]) -> list[Place]:
    """Return the places that a key of a ConfigDict set.

    Args:
      graph: A node.
      key: The key, as `optimizer.lr`.
      places: Every place of the graph, and the operands of its arithmetic.

    Raises:
      Unreadable: No such key set anything; the problem holds the nearest.
    """
    found: dict[str, list[Place]] = {}
    for place in places:
        for name in dict.fromkeys(_keys(place)):
            found.setdefault(name, []).append(place)
    if key in found:
        return found[key]
    near = [f"config_dict:{name}" for name in nearest(key, found)]
    remedy = "" if near else f"there are {', '.join(sorted(found)[:12])}"
    remedy = remedy if found else "the graph has no values of a ConfigDict"
    raise Unreadable(Problem(f"no key {key!r} set anything", nearest=near, remedy=remedy))


def _keys(place: Place) -> Iterator[str]:
    """Yield the keys that set a place, or the constant there."""
    if is_node(place.owner) and not values.is_value_node(place.owner):
        yield from _told(place.owner, place.part)
    if values.is_constant(place.value):
        yield from _told(place.value, "value")


def _told(node: Any, part: Any) -> Iterator[str]:
    for entry in sets_of(node, part):
        match = _ORIGIN.fullmatch(location_text(entry.location))
        if match is not None:
            yield match["key"]
