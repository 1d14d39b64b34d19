"""The things of a live graph, written by the encoder of records; what no record can hold too."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier.errors import Problem, RecordError
from luthier.graph import signatures
from luthier.graph.compare import wording
from luthier.graph.compare.documents.things import LEAF, Key, Thing
from luthier.graph.compare.structures import leaf_key
from luthier.graph.paths import Part, is_dataclass_instance, join
from luthier.graph.public_names import display_name, public_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.leaves import encode_leaf
from luthier.graph.record.structure import entries, is_node
from luthier.graph.render import text_of

_PLAIN = (bool, int, str, type(None))


class Builder:
    """Makes the things of one graph, each once; it imports nothing that is not imported yet."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Thing, Any]] = {}
        self._above: set[int] = set()
        self._defaults: dict[int, dict[str, Thing]] = {}

    def thing(self, value: Any, path: str = "") -> Thing:
        """Return the thing of a value.

        Args:
          value: A node or value.
          path: Where it stands.

        Raises:
          RecordError: The graph goes round in a circle.
        """
        if type(value) in _PLAIN:
            return Thing(LEAF, data=value, live=value)
        known = self._made.get(id(value))
        if known is not None:
            return known[0]
        if id(value) in self._above:
            raise RecordError(Problem("the graph goes round in a circle here", path))
        self._above.add(id(value))
        made = self._make(value, path)
        self._above.discard(id(value))
        self._made[id(value)] = (made, value)
        return made

    def defaults(self, thing: Thing) -> dict[str, Thing]:
        """Return the defaults of a node's class or function."""
        target = thing.live.__fn_or_cls__
        found = self._defaults.get(id(target))
        if found is None:
            known = signatures.arguments(target).defaults
            found = {name: self.thing(default) for name, default in known.items()}
            self._defaults[id(target)] = found
        return found

    def _make(self, value: Any, path: str) -> Thing:
        if isinstance(value, set | frozenset):
            kind = "set" if isinstance(value, set) else "frozenset"
            found = [self.thing(child, path) for child in value]
            found.sort(key=wording.canonical)
            return Thing(kind, parts=tuple(enumerate(found)), live=value)
        inside = entries(value)
        if inside is None:
            return _leaf(value)
        if type(value) is dict:
            keys = [self._key(key, path) for key, _ in inside]
        else:
            keys = [key for key, _ in inside]
        found = [self.thing(child, join(path, key)) for key, child in inside]
        parts = tuple(zip(keys, found, strict=True))
        if is_node(value):
            return _node(value, parts)
        if type(value) in (dict, list, tuple):
            return Thing(type(value).__name__, parts=parts, live=value)
        kind = "instance" if is_dataclass_instance(value) else "namedtuple"
        name, content = _name(type(value))
        return Thing(kind, name, parts, content=(kind, content), live=value)

    def _key(self, key: Any, path: str) -> Part | Key:
        if type(key) in (str, int):
            return key
        thing = self.thing(key, path)
        return Key(wording.canonical(thing), wording.text_of(thing), thing)


def _node(value: fdl.Buildable, parts: tuple[tuple[Any, Thing], ...]) -> Thing:
    kind = KINDS.get(type(value), type(value).__name__)
    name, content = ("", "") if kind == "tagged" else _name(value.__fn_or_cls__)
    given = value.__argument_tags__
    tags = sorted((part, tuple(sorted(map(_tag, found)))) for part, found in given.items() if found)
    return Thing(kind, name, parts, tuple(tags), None, (kind, content), value, is_node=True)


def _tag(tag: Any) -> str:
    return display_name(tag)


def _name(thing: Any) -> tuple[str, Any]:
    """Return the name of a class or function, and what tells it from others."""
    try:
        name = public_name(thing)
    except RecordError:
        return display_name(thing), (display_name(thing), id(thing))
    return name, name


def _leaf(value: Any) -> Thing:
    try:
        return Thing(LEAF, data=encode_leaf(value), live=value)
    except RecordError:
        content = (LEAF, "object", leaf_key(value))
        return Thing(
            LEAF,
            data={"object": text_of(value), "name": display_name(value)},
            content=content,
            live=value,
        )
