"""Documents to compare: of live graphs, and of records, whose names are not imported."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem, RecordError, UnknownReference
from luthier.graph import public_names, signatures
from luthier.graph.compare import nodes
from luthier.graph.compare.changes import Side
from luthier.graph.compare.nodes import LEAF, ConfigNode, Key
from luthier.graph.copies import as_node
from luthier.graph.origins import origin_of
from luthier.graph.paths import Part, Path, is_dataclass_instance, join, parse_path
from luthier.graph.public_names import display_name, public_name
from luthier.graph.record.encode import KINDS, read_record
from luthier.graph.record.history_log import FORMAT, VERSION
from luthier.graph.record.leaves import encode_leaf, is_leaf
from luthier.graph.record.structure import entries, is_node, leaf_key
from luthier.graph.render import text_of
from luthier.graph.values import Graph

# Live graphs, encoded as records are, so that a graph and its record become equal documents. Other
# than a record, a document also holds what cannot be recorded, such as lambdas.

_PLAIN = (bool, int, str, type(None))


class Builder:
    """Encodes one live graph as nodes, each object once; it imports nothing.

    An object that is met again is the same node, which keeps sharing.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[ConfigNode, Any]] = {}
        self._above: set[int] = set()
        self._defaults: dict[int, dict[str, ConfigNode]] = {}

    def node(self, value: Any, path: str = "") -> ConfigNode:
        """Return the node of a value.

        Args:
          value: A node of Fiddle, a container or a leaf.
          path: Its path, for the error.

        Raises:
          RecordError: The graph contains a cycle.
        """
        # Plain leaves are not shared: small integers are one object everywhere.
        if type(value) in _PLAIN:
            return ConfigNode(LEAF, data=value, live=value)
        known = self._made.get(id(value))
        if known is not None:
            return known[0]
        if id(value) in self._above:
            raise RecordError(Problem("the config contains a cycle here", path))
        self._above.add(id(value))
        made = self._make(value, path)
        self._above.discard(id(value))
        self._made[id(value)] = (made, value)  # with the value, so that its id stays its own
        return made

    def defaults(self, node: ConfigNode) -> dict[str, ConfigNode]:
        """Return the defaults of a node's class or function."""
        target = node.live.__fn_or_cls__
        found = self._defaults.get(id(target))
        if found is None:
            known = signatures.arguments(target).defaults
            found = {name: self.node(default) for name, default in known.items()}
            self._defaults[id(target)] = found
        return found

    def _make(self, value: Any, path: str) -> ConfigNode:
        if isinstance(value, set | frozenset):
            kind = "set" if isinstance(value, set) else "frozenset"
            found = [self.node(child, path) for child in value]
            found.sort(key=nodes.canonical)  # the order of a set differs from process to process
            return ConfigNode(kind, parts=tuple(enumerate(found)), live=value)
        inside = entries(value)
        if inside is None:
            return _leaf(value)
        if type(value) is dict:
            keys = [self._key(key, path) for key, _ in inside]
        else:
            keys = [key for key, _ in inside]
        found = [self.node(child, join(path, key)) for key, child in inside]
        parts = tuple(zip(keys, found, strict=True))
        if is_node(value):
            return _node(value, parts)
        if type(value) in (dict, list, tuple):
            return ConfigNode(type(value).__name__, parts=parts, live=value)
        kind = "instance" if is_dataclass_instance(value) else "namedtuple"
        name, content = _name(type(value))
        return ConfigNode(kind, name, parts, content=(kind, content), live=value)

    def _key(self, key: Any, path: str) -> Part | Key:
        if type(key) in (str, int):
            return key
        node = self.node(key, path)
        return Key(nodes.canonical(node), nodes.text_of(node), node)


def _node(value: fdl.Buildable, parts: tuple[tuple[Any, ConfigNode], ...]) -> ConfigNode:
    kind = KINDS.get(type(value), type(value).__name__)
    name, content = ("", "") if kind == "tagged" else _name(value.__fn_or_cls__)
    given = value.__argument_tags__
    tags = sorted((part, tuple(sorted(map(_tag, found)))) for part, found in given.items() if found)
    return ConfigNode(kind, name, parts, tuple(tags), None, (kind, content), value, is_node=True)


def _tag(tag: Any) -> str:
    return display_name(tag)


def _name(node: Any) -> tuple[str, Any]:
    """Return the name of a class or function, and its identity."""
    # What has no public name (a lambda, a local class) is equal to itself only.
    try:
        name = public_name(node)
    except RecordError:
        return display_name(node), (display_name(node), id(node))
    return name, name


def _leaf(value: Any) -> ConfigNode:
    try:
        return ConfigNode(LEAF, data=encode_leaf(value), live=value)
    except RecordError:
        content = (LEAF, "object", leaf_key(value))
        return ConfigNode(
            LEAF,
            data={"object": text_of(value), "name": display_name(value)},
            content=content,
            live=value,
        )


# Records: read as data, so that nothing that they name is imported.

_NODES = tuple(KINDS.values())
_SEQUENCES = ("list", "tuple", "set", "frozenset")
# Limits that no real graph comes near to: a record may come from anyone. Two documents of this
# depth can be compared without exceeding Python's recursion limit. Sizes count places: references
# inside references double them, so that a few lines can describe 2**50 of them.
_DEEPEST = 150
_LARGEST = 1_000_000
_LARGEST_KEY = 10_000


class RecordReader:
    """Reads the JSON value of one record; the first problem ends it.

    Args:
      source: The name of the record in errors.
    """

    def __init__(self, source: str):
        self._source = source
        self._numbered: dict[int, ConfigNode] = {}
        self._sizes: dict[int, int] = {}  # the size of a numbered node, by its number

    def read(self, data: Any) -> ConfigNode:
        """Return the node that a JSON value describes.

        Args:
          data: The JSON value of a record.

        Raises:
          RecordError: It is not a record, or larger than any graph.
        """
        node, size = self._read(data, "", 0)
        if size > _LARGEST:
            self._refuse(f"holds more than {_LARGEST:,} places", "")
        return node

    def _refuse(self, what: str, path: str) -> Any:
        raise RecordError(Problem(f"{self._source} {what}", path))

    def _read(self, data: Any, path: str, depth: int) -> tuple[ConfigNode, int]:
        """Return a node and its size in places, cut off just above `_LARGEST`."""
        if not isinstance(data, dict | list):
            return ConfigNode(LEAF, data=data), 1
        if depth > _DEEPEST:
            self._refuse("is nested too deeply", "")
        if isinstance(data, list):
            return self._sequence("list", data, path, depth)
        if "ref" in data:
            return self._follow(data["ref"], path)
        node, size = self._made(data, path, depth)
        if "id" in data:
            number = data["id"]
            if type(number) is not int or number in self._numbered:
                self._refuse(f'gives the "id" {_short(number)} twice, or it is not a number', path)
            self._numbered[number] = node
            # A shared node counts once: the differ compares it once. A shared leaf or tuple has no
            # identity, so that it is written out, and counted, at each of its places.
            self._sizes[number] = 1 if node.is_shared else min(size, _LARGEST + 1)
        return node, size

    def _follow(self, number: Any, path: str) -> tuple[ConfigNode, int]:
        if type(number) is not int or number not in self._numbered:
            self._refuse(f'has no "id": {_short(number)} before this "ref"', path)
        return self._numbered[number], self._sizes[number]

    def _made(self, data: dict[str, Any], path: str, depth: int) -> tuple[ConfigNode, int]:
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
        return ConfigNode(LEAF, data={key: data[key] for key in data if key != "id"}), 1

    def _node(
        self, kind: str, data: dict[str, Any], path: str, depth: int
    ) -> tuple[ConfigNode, int]:
        name = data[kind]
        given, tags = data.get("arguments", {}), data.get("tags", {})
        if not (isinstance(given, dict) and isinstance(tags, dict)):
            self._refuse("holds a node that cannot be read", path)
        if not (_is_name(name) or (kind == "tagged" and name == "")):
            self._refuse(f"holds a node of {_short(name)}, which is not a name", path)
        for found in tags.values():
            if not (isinstance(found, list) and all(map(_is_name, found))):
                self._refuse("holds tags that cannot be read", path)
        # As a live graph would be called: a class that moved is no difference.
        given, tags = (public_names.current_arguments(name, part) for part in (given, tags))
        name = public_names.current_name(name)
        parts, size = self._fields(given, path, depth)
        sorted_tags = sorted((part, tuple(sorted(found))) for part, found in tags.items() if found)
        return ConfigNode(kind, name, parts, tuple(sorted_tags), is_node=True), size

    def _fields(
        self, given: Mapping[str, Any], path: str, depth: int
    ) -> tuple[tuple[tuple[str, ConfigNode], ...], int]:
        parts, size = [], 1
        for part, child in given.items():
            node, inside = self._read(child, join(path, part), depth + 1)
            parts.append((part, node))
            size = min(size + inside, _LARGEST + 1)
        return tuple(parts), size

    def _record(
        self, kind: str, data: dict[str, Any], path: str, depth: int
    ) -> tuple[ConfigNode, int]:
        given = data.get("fields")
        if not (_is_name(data[kind]) and isinstance(given, dict)):
            self._refuse("holds a dataclass that cannot be read", path)
        name = data[kind]
        given = public_names.current_arguments(name, given or {})
        parts, size = self._fields(given, path, depth)
        return ConfigNode(kind, public_names.current_name(name), parts), size

    def _dict(
        self, kind: str, data: dict[str, Any], path: str, depth: int
    ) -> tuple[ConfigNode, int]:
        # JSON keys are strings, so a dict with any other key is recorded as a list of pairs.
        inside = data[kind]
        if isinstance(inside, dict):
            parts, size = self._fields(inside, path, depth)
            return ConfigNode(kind, parts=parts), size
        if not (isinstance(inside, list) and all(_is_pair(pair) for pair in inside)):
            self._refuse("holds a dict that cannot be read", path)
        found: dict[Part | Key, ConfigNode] = {}
        size = 1
        for key, child in inside:
            part = self._key(key, path, depth)
            if part in found:
                self._refuse(f"gives the key {_short(part)} twice", path)
            at = path if isinstance(part, Key) else join(path, part)
            found[part], below = self._read(child, at, depth + 1)
            size = min(size + below, _LARGEST + 1)
        return ConfigNode(kind, parts=tuple(found.items())), size

    def _key(self, data: Any, path: str, depth: int) -> Part | Key:
        if type(data) in (str, int):
            return data
        node, size = self._read(data, path, depth + 1)
        if size > _LARGEST_KEY:
            self._refuse("holds a key that is too large", path)
        return Key(nodes.canonical(node), nodes.text_of(node), node)

    def _items(
        self, kind: str, data: dict[str, Any], path: str, depth: int
    ) -> tuple[ConfigNode, int]:
        return self._sequence(kind, data[kind], path, depth)

    def _sequence(self, kind: str, inside: Any, path: str, depth: int) -> tuple[ConfigNode, int]:
        if not isinstance(inside, list):
            self._refuse(f"holds a {kind} that cannot be read", path)
        parts, size = [], 1
        for index, child in enumerate(inside):
            node, below = self._read(child, join(path, index), depth + 1)
            parts.append((index, node))
            size = min(size + below, _LARGEST + 1)
        if kind in ("set", "frozenset"):
            if size > _LARGEST_KEY:
                self._refuse(f"holds a {kind} that is too large", path)
            found = sorted((node for _, node in parts), key=nodes.canonical)
            parts = list(enumerate(found))
        return ConfigNode(kind, parts=tuple(parts)), size


_READERS: Mapping[str, Callable[..., tuple[ConfigNode, int]]] = {
    "dict": RecordReader._dict,
    "instance": RecordReader._record,
    "namedtuple": RecordReader._record,
    **dict.fromkeys(_SEQUENCES, RecordReader._items),
}


def of_plain(data: Any) -> ConfigNode:
    """Return the node of a plain JSON value, such as `record.plain.to_dict` returns.

    Args:
      data: A JSON value; numbers need not be finite.
    """
    if isinstance(data, float) and not math.isfinite(data):
        return ConfigNode(LEAF, data={"float": repr(data)})
    if isinstance(data, dict):
        return ConfigNode(
            "dict", parts=tuple((key, of_plain(child)) for key, child in data.items())
        )
    if isinstance(data, list):
        return ConfigNode("list", parts=tuple((i, of_plain(child)) for i, child in enumerate(data)))
    return ConfigNode(LEAF, data=data)


def _is_name(text: Any) -> bool:
    """Return whether something is a dotted name.

    Names of a record are written into code (`patch_of`), so anything else would be an injection.
    """
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


# A graph as a read-only document, with what set its values, and its defaults where known.


class Document:
    """A graph that can be compared; `document` and `read` make one.

    Args:
      root: The root node.
      title: The name of the document, for people.
      detail: More about it on one line.
      graph: The live graph that it was made of; None for a record.
      builder: The builder of a live graph's nodes; None for a record.
      sets: The assignments of each path, as in `record.history`.
    """

    def __init__(
        self,
        root: ConfigNode,
        title: str = "",
        detail: str = "",
        graph: Graph = None,
        builder: Builder | None = None,
        sets: Mapping[str, Any] | None = None,
    ):
        self.root, self.title, self.detail, self.graph = root, title, detail, graph
        self._builder = builder
        self._sets = sets or {}

    @property
    def is_live(self) -> bool:
        """Whether it is of a live graph, and not of a record."""
        return self._builder is not None

    @property
    def side(self) -> Side:
        """The title and detail of the document, with its fingerprint."""
        return Side(self.title, self.detail, self.fingerprint)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the content: classes, values, tags and sharing; 16 hexadecimal digits."""
        # Not `luthier.graph.fingerprint`, which needs the classes: a record imports none.
        # A shared node is written in full when it is met first, and as its number afterwards. Keys
        # are sorted, since graphs are equal whatever the order of their keys. The order also says
        # which place of a shared node comes first, so sorting must come before numbering.
        numbers: dict[int, int] = {}
        digest = hashlib.sha256()

        def write(*content: Any) -> None:
            # The content of a leaf that no record can hold has a class and an object of Python in
            # it (`leaf_key`), which JSON has no form for.
            digest.update(json.dumps(content, default=repr).encode())

        def visit(node: ConfigNode) -> None:
            if node.is_shared:
                if id(node) in numbers:
                    write("again", numbers[id(node)])
                    return
                numbers[id(node)] = len(numbers)
            # With the number of parts, or a child could move to its grandparent unnoticed.
            write(node.content, node.tags, len(node.parts))
            parts = node.parts
            if node.kind == "dict" or node.is_node:
                parts = tuple(sorted(parts, key=lambda part: repr(part[0])))
            for part, child in parts:
                write(repr(part))
                visit(child)

        visit(self.root)
        return digest.hexdigest()[:16]

    def defaults(self, node: ConfigNode) -> Mapping[str, ConfigNode] | None:
        """Return the defaults of a node's class or function; None where they are unknown.

        Args:
          node: A node of this document. Of a record, only the defaults of arguments that are not
            set are known, and those as plain values.
        """
        if self._builder is not None:
            return self._builder.defaults(node)
        if node.known is None:
            return None
        return {part: of_plain(plain) for part, plain in node.known.items()}

    def as_node(self, node: ConfigNode, other: ConfigNode) -> ConfigNode:
        """Return an instance of a dataclass as the node that builds it; other nodes as they are.

        Args:
          node: A value or default of a live graph.
          other: What it is compared with: only to a config, an instance is like one.
        """
        if self._builder is None or node.kind != "instance" or other.kind != "config":
            return node
        return self._builder.node(as_node(node.live))

    def origin(self, path: str) -> str:
        """Return the origin of the value at a path; empty where unknown, and for a default.

        Args:
          path: A path of this document.
        """
        if self._builder is not None:
            try:
                return origin_of(self.graph, path) if path else ""
            except (UnknownReference, KeyError):
                return ""
        if not self._sets:
            return ""
        try:
            return self._recorded_origin(parse_path(path))
        except (UnknownReference, KeyError):
            return ""

    def _recorded_origin(self, parts: Path) -> str:
        # The history has an entry per assignment, by the first path of what was assigned to. A
        # value inside of a container may have been set by itself (`layers[0]=3`) or with the whole
        # container (`layers=[1, 2]`): every place between the last node and the value is a
        # candidate, and the latest assignment counts.
        node, at = self.root, ""
        candidates: list[str] = []
        for part in parts:
            if node.is_node:
                candidates = []
            if node.is_shared:
                at = self.first_paths.get(id(node), at)
            at = join(at, part)
            candidates.append(at)
            node = node.by_part[part]
        recorded = [self._sets.get(path) for path in candidates]
        sets_at = [
            sets[-1] for sets in recorded if isinstance(sets, list) and sets and _is_set(sets[-1])
        ]
        return max(sets_at, key=lambda entry: entry["order"])["origin"] if sets_at else ""

    @functools.cached_property
    def first_paths(self) -> dict[int, str]:
        """The first path of every node whose identity counts, by the node's id."""
        found: dict[int, str] = {}

        def visit(node: ConfigNode, path: str) -> None:
            if node.is_shared:
                if id(node) in found:
                    return
                found[id(node)] = path
            for part, child in node.parts:
                visit(child, join(path, part))  # type: ignore[arg-type]

        visit(self.root, "")
        return found


def document(graph: Graph, title: str = "", detail: str = "") -> Document:
    """Return a live graph as a document, with its history and its defaults.

    Args:
      graph: A node or value.
      title: The name of the document, for people.
      detail: More about it on one line.

    Raises:
      RecordError: The graph contains a cycle, or is nested too deeply.
    """
    builder = Builder()
    try:
        root = builder.node(graph)
    except RecursionError:
        raise RecordError(Problem("the graph is nested too deeply")) from None
    live = graph if isinstance(graph, fdl.Buildable) else None
    return Document(root, title, detail, live, builder)


def read(
    text: str, source: str = "config.json", detail: str = "", history: str = "", values: str = ""
) -> Document:
    """Return a record as a document; nothing that it names is imported.

    Args:
      text: The output of `to_json`: the config.json of a run.
      source: The file that it was read from; it becomes the title.
      detail: More about it on one line.
      history: The config.history.json beside it, with the origin of each value.
      values: The config.values.json beside it, with the defaults that the run had.

    Raises:
      RecordError: One of them cannot be read.
    """
    try:
        root = RecordReader(source).read(read_record(text, source))
        if values:
            add_known(root, _parsed(values, f"the config.values.json beside {source}"))
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    return Document(root, source, detail, sets=_sets(history, source) if history else None)


def add_known(root: ConfigNode, values: Any) -> None:
    """Set `known` of every node: the defaults that a run had, from the plain values of its graph.

    Args:
      root: The root of a record.
      values: The output of `record.to_dict` for the same graph; parts that do not match it are
        skipped, since the two are separate files.
    """
    # The plain values list every argument, defaults included, but no sharing; so a shared node
    # takes its defaults from the first of its places.
    noted: set[int] = set()

    def visit(node: ConfigNode, plain: Any) -> None:
        if id(node) in noted or node.is_value_node:
            return
        noted.add(id(node))
        if isinstance(plain, list) and node.kind in ("list", "tuple"):
            for (_, child), below in zip(node.parts, plain, strict=False):
                visit(child, below)
        elif isinstance(plain, dict):
            if node.is_node:
                left = {key for key in plain if key != "class" and key not in node.by_part}
                # Sorted, since the differ compares the `repr` of two of these.
                node.known = {key: plain[key] for key in sorted(left)}
            for part, child in node.parts:
                if str(part) in plain:
                    visit(child, plain[str(part)])

    visit(root, values)


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(Problem(f"{what} is not readable as JSON")) from None


def _sets(text: str, source: str) -> Mapping[str, Any]:
    """Return the assignments of each path; none for a history of another version."""
    data = _parsed(text, f"the config.history.json beside {source}")
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        return {}
    sets = data.get("sets")
    if not isinstance(sets, dict):
        return {}
    return sets


def _is_set(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("origin"), str)
        and type(entry.get("order")) is int
    )
