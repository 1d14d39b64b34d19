"""YAML read back to a graph: as a record, by the reader and the allow-list of records.

Scalars are those of YAML 1.2: only `true` and `false` are booleans, and `4e-5` is a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.export.yaml import FORMAT_VERSION, GRAPH, NODES, RESERVED, TARGET
from luthier.graph.export.yaml_events import (
    Entries,
    Items,
    Reference,
    Scalar,
    Unreadable,
    read,
)
from luthier.graph.load import decode
from luthier.graph.paths import join, nearest
from luthier.graph.record.encode import VERSION

_NODE_KEYS = (TARGET, *filter(None, NODES.values()), "_tags_", "_arguments_")
_SEQUENCES = ("_tuple_", "_set_", "_frozenset_")
_RECORDS = ("_instance_", "_namedtuple_")


def from_yaml(text: str, packages: Sequence[str] = (), source: str = "config.yaml") -> Any:
    """Return the graph that `to_yaml` wrote, or people did.

    Args:
      text: The YAML; of several documents or with tags of YAML's own (`!!python/...`) it is
        refused.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: What the text was read from; with the line, it becomes the origin of every value.

    Returns:
      A graph that is equal to the one that was written, with its sharing and tags.

    Raises:
      RecordError: The text cannot be read, names what may not be imported or does not exist, or
        gives an argument that is not taken.
    """
    try:
        root = read(text)
        if isinstance(root, Entries):
            root = _checked_root(root)
        elif not isinstance(root, Items):
            raise Unreadable(f"it is no graph, which has a {TARGET}", 1)
        converter = _Converter()
        return decode(converter.record(root, ""), packages, source, converter.lines)
    except Unreadable as error:
        raise RecordError(Problem(f"{source}, line {error.line}: {error}")) from None


def _checked_root(root: Entries) -> Any:
    """Return what holds the graph, without its version."""
    version = root.items.pop(FORMAT_VERSION, Scalar(VERSION, root.line))
    if not isinstance(version, Scalar) or version.value != VERSION:
        raise Unreadable(f"{FORMAT_VERSION} is not {VERSION}, which this luthier reads", root.line)
    return root.items.get(GRAPH, root)


class _Converter:
    """Turns mappings of YAML into the objects of a record; notes the line of every path."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}

    def record(self, data: Any, path: str) -> Any:
        """Return the record of what stands at a path."""
        self.lines[path] = data.line
        if isinstance(data, Reference):
            return {"ref": data.target.number}
        if isinstance(data, Scalar):
            return _finite(data.value)
        if isinstance(data, Items):
            made: Any = self._list(data, path)
            return {"id": data.number, "list": made} if data.number else made
        made = self._mapping(data, path)
        return {"id": data.number, **made} if data.number else made

    def _list(self, data: Items, path: str) -> list[Any]:
        return [self.record(child, join(path, index)) for index, child in enumerate(data.items)]

    def _parts(self, items: Mapping[Any, Any], path: str) -> dict[str, Any]:
        for key, child in items.items():
            if not isinstance(key, str):
                raise Unreadable(f"{key!r} is not the name of an argument", child.line)
        return {key: self.record(child, join(path, key)) for key, child in items.items()}

    def _mapping(self, data: Entries, path: str) -> dict[str, Any]:
        special = [k for k in data.items if isinstance(k, str) and RESERVED.fullmatch(k)]
        if not special:
            return self._dict(data, path)
        if TARGET in special or "_tagged_" in special:
            return self._node(data, special, path)
        for key in special:
            if key == "_dict_":
                return {"dict": [self._pair(entry, path) for entry in _items(data.items[key])]}
            if key in _SEQUENCES:
                inside = data.items[key]
                return {key.strip("_"): self._list(_sequence(inside), path)}
            if key in _RECORDS:
                known = (key, "_arguments_")
                return {
                    key.strip("_"): _raw(data.items[key]),
                    "fields": self._given(data, known, path),
                }
        return {str(key).strip("_"): _raw(child) for key, child in data.items.items()}

    def _dict(self, data: Entries, path: str) -> dict[str, Any]:
        if all(isinstance(key, str) for key in data.items):
            return {"dict": self._parts(data.items, path)}
        pairs = [[_finite(k), self.record(v, join(path, k))] for k, v in data.items.items()]
        return {"dict": pairs}

    def _node(self, data: Entries, special: list[str], path: str) -> dict[str, Any]:
        unknown = [key for key in special if key not in _NODE_KEYS]
        if unknown:
            near = nearest(unknown[0], _NODE_KEYS)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise Unreadable(f"a node takes no {unknown[0]}{hint}", data.line)
        flags = {
            flag: _raw(data.items[flag]) for flag in filter(None, NODES.values()) if flag in special
        }
        kinds = [kind for kind, flag in NODES.items() if flag and flags.get(flag, False) is True]
        if len(kinds) > 1 or any(type(value) is not bool for value in flags.values()):
            raise Unreadable(f"only one of {', '.join(flags)} can be true", data.line)
        kind = kinds[0] if kinds else "config"
        made: dict[str, Any] = {kind: _raw(data.items[TARGET]) if TARGET in special else ""}
        if "_tags_" in special:
            made["tags"] = _raw(data.items["_tags_"])
        return {**made, "arguments": self._given(data, _NODE_KEYS, path)}

    def _given(self, data: Entries, known: Sequence[str], path: str) -> dict[str, Any]:
        """Return the arguments of a node or the fields of a record."""
        inside = {key: child for key, child in data.items.items() if key not in known}
        if "_arguments_" in data.items:
            further = data.items["_arguments_"]
            if not isinstance(further, Entries):
                raise Unreadable("_arguments_ is not a mapping", further.line)
            inside |= further.items
        return self._parts(inside, path)

    def _pair(self, entry: Any, path: str) -> list[Any]:
        items = _items(entry)
        if len(items) != 2:
            raise Unreadable("_dict_ is a list of pairs", entry.line)
        key = self.record(items[0], path)
        part = key if isinstance(key, str | int) and not isinstance(key, bool) else "key"
        return [key, self.record(items[1], join(path, part))]


def _sequence(data: Any) -> Items:
    if not isinstance(data, Items):
        raise Unreadable("this is not a list", data.line)
    return data


def _items(data: Any) -> list[Any]:
    return _sequence(data).items


def _finite(value: Any) -> Any:
    """Return a scalar as a record holds it."""
    is_finite = not isinstance(value, float) or value - value == 0
    return value if is_finite else {"float": repr(value)}


def _raw(data: Any) -> Any:
    """Return what is below a telling key: plain values, whose own telling keys lose underscores."""
    if isinstance(data, Reference):
        raise Unreadable("an alias cannot stand here", data.line)
    if isinstance(data, Scalar):
        return _finite(data.value)
    if isinstance(data, Items):
        return [_raw(child) for child in data.items]
    return {str(key).strip("_"): _raw(child) for key, child in data.items.items()}
