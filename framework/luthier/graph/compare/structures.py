"""Numbers for structures: two values get the same number exactly when their content is equal."""

from __future__ import annotations

from typing import Any

from luthier.graph.record.structure import can_share, entries, is_node


class Structures:
    """Numbers the structures of any number of graphs; each value is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used again

    def number(self, value: Any) -> int:
        """Return the number of what `value` holds: classes, values and tags, not sharing."""
        sharable = can_share(value)
        if sharable and id(value) in self._known:
            return self._known[id(value)]
        number = self._numbers.setdefault(self._content(value), len(self._numbers))
        if sharable:
            self._known[id(value)] = number
            self._kept.append(value)
        return number

    def _content(self, value: Any) -> Any:
        kind = type(value)
        inside = entries(value)
        if inside is None:
            return leaf_key(value)
        if kind is dict:
            below: Any = frozenset((leaf_key(key), self.number(child)) for key, child in inside)
        else:
            below = tuple((key, self.number(child)) for key, child in inside)
        if is_node(value):
            tagged = value.__argument_tags__
            tags = frozenset((k, frozenset(v)) for k, v in tagged.items() if v) if tagged else None
            return (kind, id(value.__fn_or_cls__), tags, below)
        return (kind, below)


def leaf_key(value: Any) -> Any:
    """Return a key that two leaves share exactly when they are of one type and equal.

    Not-a-number is like itself, and -0.0 unlike 0.0; arrays are like nothing but themselves.
    """
    kind = type(value)
    if kind in (float, complex, slice):
        return (kind, repr(value))
    if isinstance(value, set | frozenset):
        return (kind, frozenset(leaf_key(child) for child in value))
    if isinstance(value, type):  # some types of numpy and jax are equal to each other
        return (kind, id(value))
    try:
        hash(value)
        return (kind, value if value == value else repr(value))
    except (TypeError, ValueError):
        return (kind, "id", id(value))
