"""Reads recorded graphs: checked, and equal to the graph that was written.

A name in a record is imported only if the list of `public_names` allows it in its place: a constant
cannot be the class of a node. The arguments of every node are checked against the signature that
its class or function has today.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import fiddle as fdl
from fiddle import history, tagging

from luthier.errors import Problem, RecordError, listed
from luthier.graph import public_names, signatures
from luthier.graph.paths import join, nearest
from luthier.graph.record.encode import KINDS, read_record
from luthier.graph.record.leaves import decode_leaf, is_leaf
from luthier.graph.record.structure import entries, is_shared_node, leaf_key

_NODES = {name: kind for kind, name in KINDS.items()}
_LOST = object()  # the value of what could not be decoded; None is a value
VALUES = public_names.ROLES - {public_names.NONE}


def from_json(text: str, packages: Sequence[str] = (), source: str = "config.json") -> Any:
    """Load the graph that `to_json` wrote.

    Args:
      text: The record.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file or run that the text was read from; it becomes the origin of every value.

    Returns:
      A graph that is equal to the recorded one, with its sharing and tags.

    Raises:
      RecordError: The text is damaged or has another version, contains a name that may not be
        imported or does not exist, or an unknown argument; all problems are reported together.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> graph.equal(graph.from_json(graph.to_json(config)), config)
      True
    """
    return decode(read_record(text, source), packages, source)


def decode(
    data: Any,
    packages: Sequence[str] = (),
    source: str = "config.json",
    lines: Mapping[str, int] = types.MappingProxyType({}),
) -> Any:
    """Return the graph of a JSON value that `record.encode.encode` made; see `from_json`.

    Args:
      data: The JSON value.
      packages: The user's own packages that it may name.
      source: The file or run that it was read from.
      lines: The line of `source` of each path, where that is known (YAML).
    """
    decoder = _Decoder(packages, source, lines)
    try:
        graph = decoder.decode(data, "")
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    if decoder.problems:
        raise RecordError(decoder.problems)
    return graph


class _Decoder:
    """Decodes one graph; collects its problems with their paths."""

    # A problem does not end the walk: its value becomes `_LOST`, so that all problems of a damaged
    # record are reported at once. No graph is returned then, so `_LOST` never leaves this module.

    def __init__(self, packages: Sequence[str], source: str, lines: Mapping[str, int]):
        self.packages, self.source, self.lines = packages, source, lines
        self.numbered: dict[int, Any] = {}
        self.objects: dict[Any, Any] = {}
        self.problems: list[Problem] = []

    def decode(self, data: Any, path: str) -> Any:
        """Return the value that `data` describes; `_LOST` where it cannot be decoded."""
        if isinstance(data, list):
            return [self.decode(item, join(path, index)) for index, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        try:
            if "ref" in data:
                return self._follow(data["ref"])
            decoded = self._make(data, path)
        except RecordError as error:
            self.problems += [dataclasses.replace(p, path=p.path or path) for p in error.problems]
            decoded = _LOST
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            what = f"cannot read this: {type(error).__name__}: {error}"
            self.problems.append(Problem(what, path))
            decoded = _LOST
        # After its contents: the encoder writes an id where a value is first met, so that a "ref"
        # always follows it, and a record with a cycle has a "ref" to an id that does not exist yet.
        if "id" in data and isinstance(data["id"], int):
            self.numbered[data["id"]] = decoded
        return decoded

    def _follow(self, number: Any) -> Any:
        if not isinstance(number, int) or number not in self.numbered:
            raise RecordError(Problem(f'there is no "id": {number!r} before this "ref"'))
        return self.numbered[number]

    def _make(self, data: dict[str, Any], path: str) -> Any:
        for kind, node in _NODES.items():
            if kind in data:
                return self._node(node, data, data[kind], path)
        for kind, reader in _CONTAINERS.items():
            if kind in data:
                return reader(self, data, path)
        if is_leaf(data):
            return decode_leaf(data, self._load)
        raise RecordError(Problem(f"unknown entry with the keys {', '.join(data)[:80]}"))

    def _load(self, name: Any, roles: Collection[str] = VALUES) -> Any:
        if not isinstance(name, str):
            raise RecordError(Problem(f"{name!r} is not a name"))
        # The role is part of the key: a name that is allowed as a constant is not thereby allowed
        # as the class of a node.
        key = (name, frozenset(roles))
        if key not in self.objects:
            self.objects[key] = public_names.load_object(name, self.packages, roles)
        return self.objects[key]

    def _node(self, kind: type, data: dict[str, Any], name: str, path: str) -> Any:
        recorded = public_names.current_arguments(name, _mapping(data, "arguments"))
        arguments = {part: self.decode(child, join(path, part)) for part, child in recorded.items()}
        tagged = public_names.current_arguments(name, _mapping(data, "tags"))
        tags = {part: self._tags(names) for part, names in tagged.items()}
        if kind is tagging.TaggedValueCls:  # its function is private to Fiddle, so it has no name
            value_tags = tags.get("value", frozenset())
            return tagging.TaggedValue(value_tags, arguments.get("value", fdl.NO_VALUE))
        target = self._load(name, public_names.NODES)
        if not callable(target):
            raise RecordError(Problem(f"{name} is not a class or function"))
        self._check_arguments(target, name, arguments, path)
        # Built from its parts, as Fiddle's own traversals rebuild nodes, and not by `kind(target,
        # ...)`: the constructor would record this line as the origin of every argument, add the
        # tags of annotations, and could not hold a wrong argument that was reported above.
        entries_of = {"__fn_or_cls__": target, **arguments}
        past = {part: (self._entry(path, part, value),) for part, value in entries_of.items()}
        metadata = fdl.BuildableTraverserMetadata(target, tuple(arguments), tags, past)
        return kind.__unflatten__(arguments.values(), metadata)  # type: ignore[attr-defined]

    def _entry(self, path: str, part: str, value: Any) -> history.HistoryEntry:
        kind = history.ChangeKind.NEW_VALUE
        line = 0
        if self.lines:
            line = self.lines.get(join(path, part), self.lines.get(path, 0))
        location = history.Location(self.source, line, None)
        return history.HistoryEntry(0, part, kind, value, location)

    def _tags(self, names: Any) -> frozenset[Any]:
        tags = frozenset(self._load(name) for name in names)
        for tag in tags:
            if not isinstance(tag, tagging.TagType):
                raise RecordError(Problem(f"{tag!r} is not a tag"))
        return tags

    def _check_arguments(
        self, target: Callable[..., Any], name: str, arguments: Mapping[str, Any], path: str
    ) -> None:
        known = signatures.arguments(target)
        if known.has_kwargs:
            return
        for part in arguments:
            # An argument that was renamed since has an entry in `RENAMED_ARGUMENTS`, and was
            # renamed above; one that was removed changes the run, so it is never dropped.
            if part not in known.names:
                near = nearest(part, known.names)
                remedy = "" if near else f"it takes {listed(known.names) or 'none'}"
                what = f"{name} takes no argument {part!r}"
                self.problems.append(Problem(what, join(path, part), remedy=remedy, nearest=near))

    def _dict(self, data: dict[str, Any], path: str) -> Any:
        inside = data["dict"]
        if isinstance(inside, dict):
            return {key: self.decode(child, join(path, key)) for key, child in inside.items()}
        pairs = [(self.decode(key, path), child) for key, child in inside]
        return {key: self.decode(child, join(path, key)) for key, child in pairs}

    def _fields(self, data: dict[str, Any], path: str) -> Any:
        name = data["instance"] if "instance" in data else data["namedtuple"]
        inside = public_names.current_arguments(name, _mapping(data, "fields"))
        fields = {part: self.decode(child, join(path, part)) for part, child in inside.items()}
        cls = self._load(name, public_names.NODES)
        is_record = dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")
        if not (isinstance(cls, type) and is_record):
            raise RecordError(Problem(f"{name} is not a dataclass or named tuple"))
        self._check_arguments(cls, name, fields, path)
        # An instance is made by calling its class, with arguments of the record. After a problem
        # nothing is called any more: the arguments are incomplete.
        if any(value is _LOST for value in fields.values()) or self.problems:
            return _LOST
        try:
            return cls(**fields)
        except Exception as error:
            what = f"{name} refuses its fields: {type(error).__name__}: {error}"
            raise RecordError(Problem(what)) from error

    def _items(self, data: dict[str, Any], path: str) -> Any:
        kind, inside = next((key, data[key]) for key in _SEQUENCES if key in data)
        if not isinstance(inside, list):
            raise RecordError(Problem(f"a {kind} is written as a list"))
        return _SEQUENCES[kind](self.decode(inside, path))


def _mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    content = data.get(key, {})
    if not isinstance(content, dict):
        raise RecordError(Problem(f'"{key}" is not an object'))
    return content


_SEQUENCES: Mapping[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_CONTAINERS: Mapping[str, Callable[[_Decoder, dict[str, Any], str], Any]] = {
    "dict": _Decoder._dict,
    "instance": _Decoder._fields,
    "namedtuple": _Decoder._fields,
    **dict.fromkeys(_SEQUENCES, _Decoder._items),
}


def equal(a: Any, b: Any) -> bool:
    """Return whether two graphs are the same: classes, set arguments, values, sharing and tags.

    An argument that is set to its default differs from one that is not set, `1` from `1.0` and from
    `True`; histories and the order of keys do not count. Sharing counts for nodes, lists and dicts.

    Args:
      a: A node or value.
      b: A node or value.

    Returns:
      True if nothing but histories and the order of keys differs.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=1)
      >>> graph.equal(config, graph.copy_graph(config))
      True
      >>> graph.equal(config, graph.apply(config, ["learning_rate=1.0"]))
      False
    """
    return _equal(a, b, {}, {})


def _equal(a: Any, b: Any, partners: dict[int, Any], taken: dict[int, Any]) -> bool:
    # Sharing is the same if the nodes of both graphs correspond one to one: `partners` maps nodes
    # of `a` to nodes of `b`, `taken` the other way, and a node that is met again must meet the same
    # partner. Recording the pair before the children also ends the recursion in a cycle.
    if type(a) is not type(b):
        return False
    if is_shared_node(a):
        if id(a) in partners or id(b) in taken:
            return partners.get(id(a)) is b and taken.get(id(b)) is a
        partners[id(a)], taken[id(b)] = b, a
    if isinstance(a, fdl.Buildable):
        tags_a = {part: tags for part, tags in a.__argument_tags__.items() if tags}
        tags_b = {part: tags for part, tags in b.__argument_tags__.items() if tags}
        if a.__fn_or_cls__ != b.__fn_or_cls__ or tags_a != tags_b:
            return False
    inside_a, inside_b = entries(a), entries(b)
    if inside_a is None or inside_b is None:
        return a is b or leaf_key(a) == leaf_key(b)
    values_b = dict(inside_b)
    return len(inside_a) == len(values_b) and all(
        key in values_b and _equal(child, values_b[key], partners, taken) for key, child in inside_a
    )
