"""What a document is made of: things, each a node, a container or a leaf, told apart by content.

A thing that stands in two places of a graph is one thing: sharing is identity.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from luthier.graph import values
from luthier.graph.paths import Part

LEAF = "leaf"
WHOLE = ("set", "frozenset", LEAF)
"""Kinds that change as a whole."""
SHARED = ("list", "dict")
"""Kinds beside nodes for which it counts if two places hold the same one."""

_VALUES = values.__name__
CONSTANT = f"{_VALUES}.constant"
OPERATIONS = {f"{_VALUES}.{made.__name__}": made for made in values.OPERATIONS}
"""The function of every arithmetic node, by its public name."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a dict that is neither text nor an int.

    Args:
      content: What tells it from other keys.
      text: How it is written.
      thing: The key itself.
    """

    content: str
    text: str = dataclasses.field(compare=False)
    thing: Thing = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return self.text


class Thing:
    """A node, container or leaf of a document; it is not changed once it is made.

    Args:
      kind: `config`, `partial`, `factory` or `tagged` for nodes; `dict`, `list`, `tuple`, `set`,
        `frozenset`, `instance` (of a dataclass) and `namedtuple` for containers; `leaf`.
      name: The public name of a node's class or function, or of a container's class.
      parts: What is directly inside, in its order.
      tags: The tags of arguments, sorted, by argument.
      data: For a leaf, what `encode_leaf` wrote; for one that no record can hold, a text.
      content: What tells the thing from others beside its parts and tags.
      live: What it was made of, in a document of a live graph.
      is_node: Whether it is a node.

    A node of a record has in `known` the defaults of the arguments that are not set, as plain
    values; None where they are not known.
    """

    __slots__ = (
        *("kind", "name", "parts", "tags", "data", "content", "live", "is_node", "is_shared"),
        *("is_value_node", "known", "_by_part"),
    )

    def __init__(
        self,
        kind: str,
        name: str = "",
        parts: tuple[tuple[Part | Key, Thing], ...] = (),
        tags: tuple[tuple[Part, tuple[str, ...]], ...] = (),
        data: Any = None,
        content: Any = None,
        live: Any = None,
        is_node: bool = False,
    ):
        self.kind, self.name, self.parts, self.tags, self.data = kind, name, parts, tags, data
        self.content = content if content is not None else _content(kind, name, data)
        self.live, self.is_node = live, is_node
        self.is_shared = is_node or kind in SHARED
        self.is_value_node = kind == "config" and (name == CONSTANT or name in OPERATIONS)
        self.known: Any = None
        self._by_part: dict[Any, Thing] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it changes as a whole: a leaf, a set, or a tuple of leaves."""
        if self.kind == "tuple":
            return all(child.kind in WHOLE for _, child in self.parts)
        return self.kind in WHOLE

    @property
    def by_part(self) -> dict[Any, Thing]:
        """What is directly inside, by its key."""
        if self._by_part is None:
            self._by_part = dict(self.parts)
        return self._by_part

    def tags_of(self, part: Any) -> tuple[str, ...]:
        """Return the tags of an argument."""
        return next((found for name, found in self.tags if name == part), ())


def _content(kind: str, name: str, data: Any) -> Any:
    if kind != LEAF:
        return (kind, name)
    if isinstance(data, dict | list):
        return (kind, json.dumps(data, sort_keys=True))
    return (kind, type(data).__name__, repr(data))


def children(thing: Thing) -> list[Thing]:
    """Return what is directly inside of a thing."""
    return [child for _, child in thing.parts]


class Numbers:
    """Numbers the structures of any number of documents; each thing is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, tuple[int, Thing]] = {}  # things are kept, so that ids stay theirs

    def __call__(self, thing: Thing) -> int:
        """Return the number of what a thing holds: classes, values and tags, not sharing."""
        known = self._known.get(id(thing))
        if known is not None:
            return known[0]
        inside: Any = [(part, self(child)) for part, child in thing.parts]
        inside = frozenset(inside) if thing.kind in ("dict", "set", "frozenset") else tuple(inside)
        content = (thing.content, thing.tags, inside)
        number = self._numbers.setdefault(content, len(self._numbers))
        self._known[id(thing)] = (number, thing)
        return number
