"""The things of a record: read as data, so that nothing that it names is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.compare import wording
from luthier.graph.compare.documents.things import LEAF, Key, Thing
from luthier.graph.paths import Part, join
from luthier.graph.record.encode import KINDS
from luthier.graph.record.leaves import is_leaf

_NODES = tuple(KINDS.values())
_SEQUENCES = ("list", "tuple", "set", "frozenset")
# What no graph comes near to. Two sides of this depth can be compared without a deep recursion.
_DEEPEST = 150
_LARGEST = 1_000_000
_LARGEST_KEY = 10_000


class Reader:
    """Reads the JSON value of one record; the first thing that is wrong ends it.

    Args:
      source: What it was read from.
    """

    def __init__(self, source: str):
        self._source = source
        self._numbered: dict[int, Thing] = {}
        self._sizes: dict[int, int] = {}  # how many places a numbered thing has, by its number

    def read(self, data: Any) -> Thing:
        """Return the thing that a JSON value describes.

        Raises:
          RecordError: It describes none, or one that no graph comes near to.
        """
        thing, size = self._read(data, "", 0)
        if size > _LARGEST:
            self._refuse(f"holds more than {_LARGEST:,} places", "")
        return thing

    def _refuse(self, what: str, path: str) -> Any:
        raise RecordError(Problem(f"{self._source} {what}", path))

    def _read(self, data: Any, path: str, depth: int) -> tuple[Thing, int]:
        """Return a thing, and how many places it has."""
        if not isinstance(data, dict | list):
            return Thing(LEAF, data=data), 1
        if depth > _DEEPEST:
            self._refuse("is nested too deeply", "")
        if isinstance(data, list):
            return self._sequence("list", data, path, depth)
        if "ref" in data:
            return self._follow(data["ref"], path)
        thing, size = self._made(data, path, depth)
        if "id" in data:
            number = data["id"]
            if type(number) is not int or number in self._numbered:
                self._refuse(f'gives the "id" {_short(number)} twice, or it is no number', path)
            self._numbered[number] = thing
            self._sizes[number] = 1 if thing.is_shared else min(size, _LARGEST + 1)
        return thing, size

    def _follow(self, number: Any, path: str) -> tuple[Thing, int]:
        if type(number) is not int or number not in self._numbered:
            self._refuse(f'has no "id": {_short(number)} before this "ref"', path)
        return self._numbered[number], self._sizes[number]

    def _made(self, data: dict[str, Any], path: str, depth: int) -> tuple[Thing, int]:
        kind = next((key for key in (*_NODES, *_READERS) if key in data), "")
        if kind in _NODES:
            return self._node(kind, data, path, depth)
        if kind:
            return _READERS[kind](self, kind, data, path, depth)
        if not is_leaf(data):
            keys = ", ".join(data)
            self._refuse(f"holds something that is not known, with the keys {_short(keys)}", path)
        if not _is_leaf_that_can_be_read(data):
            self._refuse(f"holds a value that cannot be read: {_short(data)}", path)
        return Thing(LEAF, data={key: data[key] for key in data if key != "id"}), 1

    def _node(self, kind: str, data: dict[str, Any], path: str, depth: int) -> tuple[Thing, int]:
        name = data[kind]
        given, tags = data.get("arguments", {}), data.get("tags", {})
        if not (isinstance(given, dict) and isinstance(tags, dict)):
            self._refuse("holds a node that cannot be read", path)
        if not (_is_name(name) or (kind == "tagged" and name == "")):
            self._refuse(f"holds a node of {_short(name)}, which is no name", path)
        for found in tags.values():
            if not (isinstance(found, list) and all(map(_is_name, found))):
                self._refuse("holds tags that cannot be read", path)
        parts, size = self._fields(given, path, depth)
        sorted_tags = sorted((part, tuple(sorted(found))) for part, found in tags.items() if found)
        return Thing(kind, name, parts, tuple(sorted_tags), is_node=True), size

    def _fields(
        self, given: Mapping[str, Any], path: str, depth: int
    ) -> tuple[tuple[tuple[str, Thing], ...], int]:
        parts, size = [], 1
        for part, child in given.items():
            thing, inside = self._read(child, join(path, part), depth + 1)
            parts.append((part, thing))
            size = min(size + inside, _LARGEST + 1)
        return tuple(parts), size

    def _record(self, kind: str, data: dict[str, Any], path: str, depth: int) -> tuple[Thing, int]:
        given = data.get("fields")
        if not (_is_name(data[kind]) and isinstance(given, dict)):
            self._refuse("holds a dataclass that cannot be read", path)
        parts, size = self._fields(given or {}, path, depth)
        return Thing(kind, data[kind], parts), size

    def _dict(self, kind: str, data: dict[str, Any], path: str, depth: int) -> tuple[Thing, int]:
        inside = data[kind]
        if isinstance(inside, dict):
            parts, size = self._fields(inside, path, depth)
            return Thing(kind, parts=parts), size
        if not (isinstance(inside, list) and all(_is_pair(pair) for pair in inside)):
            self._refuse("holds a dict that cannot be read", path)
        found: dict[Part | Key, Thing] = {}
        size = 1
        for key, child in inside:
            part = self._key(key, path, depth)
            if part in found:
                self._refuse(f"gives the key {_short(part)} twice", path)
            at = path if isinstance(part, Key) else join(path, part)
            found[part], below = self._read(child, at, depth + 1)
            size = min(size + below, _LARGEST + 1)
        return Thing(kind, parts=tuple(found.items())), size

    def _key(self, data: Any, path: str, depth: int) -> Part | Key:
        if type(data) in (str, int):
            return data
        thing, size = self._read(data, path, depth + 1)
        if size > _LARGEST_KEY:
            self._refuse("holds a key that is too large", path)
        return Key(wording.canonical(thing), wording.text_of(thing), thing)

    def _items(self, kind: str, data: dict[str, Any], path: str, depth: int) -> tuple[Thing, int]:
        return self._sequence(kind, data[kind], path, depth)

    def _sequence(self, kind: str, inside: Any, path: str, depth: int) -> tuple[Thing, int]:
        if not isinstance(inside, list):
            self._refuse(f"holds a {kind} that cannot be read", path)
        parts, size = [], 1
        for index, child in enumerate(inside):
            thing, below = self._read(child, join(path, index), depth + 1)
            parts.append((index, thing))
            size = min(size + below, _LARGEST + 1)
        if kind in ("set", "frozenset"):
            if size > _LARGEST_KEY:
                self._refuse(f"holds a {kind} that is too large", path)
            found = sorted((thing for _, thing in parts), key=wording.canonical)
            parts = list(enumerate(found))
        return Thing(kind, parts=tuple(parts)), size


_READERS: Mapping[str, Callable[..., tuple[Thing, int]]] = {
    "dict": Reader._dict,
    "instance": Reader._record,
    "namedtuple": Reader._record,
    **dict.fromkeys(_SEQUENCES, Reader._items),
}


def of_plain(data: Any) -> Thing:
    """Return the thing of a plain JSON value, such as `record.plain.to_dict` makes.

    Args:
      data: A JSON value; numbers need not be finite.
    """
    if isinstance(data, float) and not math.isfinite(data):
        return Thing(LEAF, data={"float": repr(data)})
    if isinstance(data, dict):
        return Thing("dict", parts=tuple((key, of_plain(child)) for key, child in data.items()))
    if isinstance(data, list):
        return Thing("list", parts=tuple((i, of_plain(child)) for i, child in enumerate(data)))
    return Thing(LEAF, data=data)


def _is_name(text: Any) -> bool:
    """Say whether something is a dotted name: what is written into code has to be one."""
    return isinstance(text, str) and all(part.isidentifier() for part in text.split("."))


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and _converts(float, text)


def _converts(to: Callable[[str], Any], text: str) -> bool:
    try:
        to(text)
    except ValueError:
        return False
    return True


def _is_plain(data: Any) -> bool:
    return data is None or isinstance(data, bool | int | float | str)


def _are_plain(data: Any) -> bool:
    return isinstance(data, list) and all(map(_is_plain, data))


# What the parts of a leaf have to be: those of the encoder, and nothing that code could not hold.
_LEAVES: Mapping[str, Callable[[Any], bool]] = {
    "name": _is_name,
    "enum": _is_name,
    "member": lambda text: isinstance(text, str),
    "dtype": lambda text: isinstance(text, str),
    "path": lambda text: isinstance(text, str),
    "kind": lambda text: text in ("Path", "PurePath", "PurePosixPath", "PureWindowsPath"),
    "float": _is_number,
    "complex": lambda text: isinstance(text, str) and _converts(complex, text),
    "bytes": lambda text: isinstance(text, str) and _converts(bytes.fromhex, text),
    "range": lambda data: _are_plain(data) and all(type(x) is int for x in data) and len(data) == 3,
    "slice": lambda data: _are_plain(data) and len(data) == 3,
    "partition_spec": lambda data: (
        isinstance(data, list) and all(_is_plain(x) or _are_plain(x) for x in data)
    ),
    "ellipsis": lambda data: data is True,
    "value": lambda data: _is_plain(data) or _is_leaf_that_can_be_read(data),
}


def _is_leaf_that_can_be_read(data: Any) -> bool:
    if not isinstance(data, dict) or not is_leaf(data) or ("path" in data) != ("kind" in data):
        return False
    if "enum" in data and not data.keys() & {"member", "value"}:
        return False
    given = {key: data[key] for key in data if key != "id"}
    return all(key in _LEAVES and _LEAVES[key](child) for key, child in given.items())


def _is_pair(data: Any) -> bool:
    return isinstance(data, list) and len(data) == 2


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
