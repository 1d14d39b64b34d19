"""Export of graphs as YAML, and the reader of such files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.export.names import Names
from luthier.graph.export.python import wished_name
from luthier.graph.load import decode
from luthier.graph.paths import Path, join, nearest
from luthier.graph.record.encode import VERSION, encode
from luthier.graph.values import Graph

# Reader of YAML: scalars, sequences and mappings with their lines; what aliases refer to is one
# object.
#
# Scalars are resolved here and not by PyYAML, which follows YAML 1.1: `no` would be False, `4e-5` a
# string, `012` ten, and `1:30` ninety. Here they are those of YAML 1.2.

_CONSTANTS: Mapping[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DEEPEST = 100


class YamlError(Exception):
    """A line of YAML cannot be read as a part of a graph.

    Args:
      what: The problem, in one line.
    """

    def __init__(self, what: str, line: int):
        super().__init__(what)
        self.line = line


@dataclasses.dataclass
class YamlScalar:
    """A scalar, and its line.

    Args:
      value: Its value.
    """

    value: Any
    line: int


@dataclasses.dataclass
class Items:
    """A sequence; its number is above zero where something refers to it.

    Args:
      items: The items, in their order.
      line: The line on which it starts.
    """

    items: list[Any]
    line: int
    number: int = 0


@dataclasses.dataclass
class Entries:
    """A mapping; its number is above zero where something refers to it.

    Args:
      items: The values, by key.
      line: The line on which it starts.
    """

    items: dict[Any, Any]
    line: int
    number: int = 0


@dataclasses.dataclass
class YamlReference:
    """An alias of a sequence or mapping.

    Args:
      target: The node that the alias refers to.
      line: The line of the alias.
    """

    target: Any
    line: int


def read(text: str) -> Any:
    """Return the root of a text of YAML.

    Args:
      text: One document, without tags of YAML's own (`!!python/...`).

    Raises:
      YamlError: It is not YAML, or uses a feature that graphs do not need.
    """
    import yaml  # here, because it takes a while and most commands need none

    try:
        return _Reader().read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        line = mark.line + 1 if mark else 1
        raise YamlError(f"it is not readable as YAML: {what}", line) from None


class _Reader:
    """Reads one document, event by event.

    Files may come from anyone. PyYAML's constructors recurse, resolve scalars, and hide which parts
    were aliases; with events, nesting is a list, an alias is a reference, and tags are rejected.
    """

    def __init__(self) -> None:
        self.open: list[tuple[Any, list[Any]]] = []
        self.anchors: dict[str, Any] = {}
        self.root: Any = None
        self.count = self.numbers = 0

    def read(self, text: str) -> Any:
        """Return the document's root.

        Args:
          text: The document.
        """
        import yaml

        for event in yaml.parse(text, Loader=_loader(text)):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                self.count += 1
                if self.count > 1:
                    raise YamlError("there is a second document", line)
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._refer(event.anchor, line))
            elif isinstance(event, yaml.ScalarEvent):
                self._note(event, YamlScalar(_scalar(event, line), line))
            elif isinstance(event, yaml.SequenceStartEvent):
                self._enter(event, Items([], line))
            elif isinstance(event, yaml.MappingStartEvent):
                self._enter(event, Entries({}, line))
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._leave()
        return self.root

    def _enter(self, event: Any, made: Any) -> None:
        if event.tag is not None:
            raise YamlError(f"tags such as {event.tag!r} are not read", made.line)
        if len(self.open) >= _DEEPEST:
            raise YamlError("it is nested too deeply", made.line)
        self.open.append((made, []))
        if event.anchor:
            self.anchors[event.anchor] = made

    def _leave(self) -> None:
        made, inside = self.open.pop()
        if isinstance(made, Items):
            made.items = inside
        else:
            for key, value in zip(inside[::2], inside[1::2], strict=True):
                if not isinstance(key, YamlScalar):
                    raise YamlError("a key is a list or mapping", made.line)
                if key.value in made.items:
                    raise YamlError(f"{key.value!r} is given twice", key.line)
                if key.value == "<<":
                    raise YamlError("merge keys (<<) are not read", key.line)
                made.items[key.value] = value
        self._add(made)

    def _note(self, event: Any, made: YamlScalar) -> None:
        if event.anchor:
            self.anchors[event.anchor] = made
        self._add(made)

    def _refer(self, name: str, line: int) -> Any:
        if name not in self.anchors:
            raise YamlError(f"there is no anchor &{name} before this alias", line)
        target = self.anchors[name]
        if isinstance(target, YamlScalar):
            return target
        if any(made is target for made, _ in self.open):
            raise YamlError(f"*{name} is inside of the node that it refers to", line)
        if not target.number:
            self.numbers += 1
            target.number = self.numbers
        return YamlReference(target, line)

    def _add(self, made: Any) -> None:
        if self.open:
            self.open[-1][1].append(made)
        else:
            self.root = made


def _loader(text: str) -> Any:
    """Return the fast parser of PyYAML, or the slow one for a text with escaped surrogates.

    libyaml rejects `\\ud800`, which a string of Python may hold, and which `to_yaml` writes.
    """
    import yaml

    quick = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.SafeLoader if re.search(r"\\u[dD][89a-fA-F]", text) else quick


def _scalar(event: Any, line: int) -> Any:
    if event.tag not in (None, "!"):
        raise YamlError(f"tags such as {event.tag!r} are not read", line)
    text = event.value
    if not event.implicit[0]:  # it stands in quotes
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _NOT_FINITE.fullmatch(text):
        return float(f"{match[1] or ''}{(match[2] or match[3]).lower()}")
    return text


# Writer: YAML that people can read and edit, and that `from_yaml` reads back to an equal graph.
#
# _target_: luthier.program.Experiment
# name: quickstart
# model:
#   _target_: luthier.models.Decoder
#   _partial_: true
#   dim: 128
#   norm: &norm {_target_: luthier.layers.RMSNorm, _partial_: true}
# training:
#   steps: &steps {_target_: luthier.graph.values.constant, value: 900, name: steps}
#
# It holds what the JSON record holds. A node has the keys that Hydra and NeMo-Run know (`_target_`,
# `_partial_`), what is shared has an anchor, and all that YAML has no form of is a mapping with the
# record's keys between underscores: `{_name_: jax.nn.silu}`, `{_tuple_: [fsdp]}`, `{_dtype_:
# int8}`.

WIDTH = 100
TARGET, GRAPH, FORMAT_VERSION = "_target_", "_graph_", "_version_"
NODES = {"config": "", "partial": "_partial_", "factory": "_factory_", "tagged": "_tagged_"}
RESERVED = re.compile(r"_[a-z]+(_[a-z]+)*_")
# Strings that no reader of YAML 1.1 or 1.2 takes for anything else.
_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*(?: [\w./+-]+)*", re.ASCII)
_WORDS = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n"])
_LONGEST_KEY = 100


def to_yaml(graph: Graph) -> str:
    """Return a graph as YAML.

    Args:
      graph: A node or value.

    Returns:
      Text that `from_yaml` reads to an equal graph, with its sharing and tags.

    Raises:
      RecordError: Parts of the graph cannot be named or written; all of them are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> print(graph.to_yaml(fdl.Config(optim.adamw, learning_rate=3e-4)), end="")
      _version_: 1
      _target_: luthier.optim.adamw
      learning_rate: 0.0003
    """
    data = _Translator().translate(encode(graph), ())
    if not (isinstance(data, Mapped) and TARGET in data.items and not data.anchor):
        data = Mapped({GRAPH: data})
    items = {FORMAT_VERSION: VERSION, **data.items}
    return "\n".join(_block(Mapped(items), "")) + "\n"


class Mapped:
    """A mapping of YAML with its anchor, if aliases refer to it."""

    def __init__(self, items: dict[str, Any]):
        self.items, self.anchor = items, ""


class YamlSequence:
    """A sequence of YAML with its anchor, if aliases refer to it."""

    def __init__(self, items: list[Any]):
        self.items, self.anchor = items, ""


class YamlAlias(str):
    """An alias: a reference to the anchor of that name."""


class _Translator:
    """Turns the objects of a record into mappings of YAML."""

    def __init__(self) -> None:
        self.names = Names()
        self.anchors: dict[int, str] = {}

    def translate(self, data: Any, path: Path) -> Any:
        """Return the YAML of a value of a record.

        Args:
          data: The JSON of the value.
          path: Its path, from which anchors are named.
        """
        if isinstance(data, list):
            return YamlSequence([self.translate(child, (*path, i)) for i, child in enumerate(data)])
        if not isinstance(data, dict):
            return data
        if "ref" in data:
            return YamlAlias(self.anchors[data["ref"]])
        anchor = self.names.give(path, wished_name(data)) if "id" in data else ""
        if anchor:
            self.anchors[data["id"]] = anchor
        made = self._made({k: v for k, v in data.items() if k != "id"}, path)
        if anchor and isinstance(made, Mapped | YamlSequence):
            made.anchor = anchor
        return made

    def _made(self, data: dict[str, Any], path: Path) -> Any:
        for kind, flag in NODES.items():
            if kind in data:
                return self._node(data, kind, flag, path)
        for kind in ("instance", "namedtuple"):
            if kind in data:
                return Mapped({f"_{kind}_": data[kind], **self._parts(data["fields"], path)})
        if "dict" in data:
            return self._dict(data["dict"], path)
        if "list" in data:
            return self.translate(data["list"], path)
        for kind in ("tuple", "set", "frozenset"):
            if kind in data:
                return Mapped({f"_{kind}_": self.translate(data[kind], path)})
        return _leaf(data)

    def _node(self, data: dict[str, Any], kind: str, flag: str, path: Path) -> Mapped:
        items: dict[str, Any] = {TARGET: data[kind]} if kind != "tagged" else {}
        if flag:
            items[flag] = True
        if "tags" in data:
            items["_tags_"] = Mapped(
                {part: YamlSequence(found) for part, found in data["tags"].items()}
            )
        return Mapped(items | self._parts(data["arguments"], path))

    def _parts(self, parts: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return arguments or fields; below `_arguments_` where one looks like a reserved key."""
        made = {part: self.translate(child, (*path, part)) for part, child in parts.items()}
        return {"_arguments_": Mapped(made)} if _unlike_names(made) else made

    def _dict(self, inside: Any, path: Path) -> Mapped:
        if isinstance(inside, dict) and not _unlike_names(inside):
            return Mapped({key: self.translate(v, (*path, key)) for key, v in inside.items()})
        pairs = inside.items() if isinstance(inside, dict) else inside
        listed = []
        for key, child in pairs:
            part = key if isinstance(key, str | int) else "key"
            pair = [self.translate(key, path), self.translate(child, (*path, part))]
            listed.append(YamlSequence(pair))
        return Mapped({"_dict_": YamlSequence(listed)})


def _unlike_names(keys: Any) -> bool:
    """Return whether some keys look like reserved ones, or are too long for YAML."""
    # YAML allows plain keys of 1,024 characters; a longer one would need the `? key` form.
    return any(RESERVED.fullmatch(key) or len(key) > _LONGEST_KEY for key in keys)


def _leaf(data: Any) -> Any:
    """Return the YAML of a leaf, whose keys get underscores."""
    if isinstance(data, dict):
        if "float" in data:
            return float(data["float"])
        return Mapped({f"_{key}_": _leaf(value) for key, value in data.items()})
    return YamlSequence([_leaf(entry) for entry in data]) if isinstance(data, list) else data


def _block(data: Any, pad: str) -> Iterator[str]:
    """Yield the lines of a mapping or sequence: an entry is one line if it fits, else a block."""
    entries = data.items.items() if isinstance(data, Mapped) else ((None, v) for v in data.items)
    for key, value in entries:
        head = f"{pad}-" if key is None else f"{pad}{_string(key)}:"
        flow = _flow(value, WIDTH - len(head) - 1)
        if flow is not None:
            yield f"{head} {flow}"
            continue
        anchor = f" &{value.anchor}" if value.anchor else ""
        below = _block(value, pad + "  ")
        if key is None and not anchor:
            yield f"{head} {next(below).lstrip(' ')}"  # the first entry follows the dash
        else:
            yield head + anchor
        yield from below


def _flow(data: Any, room: int) -> str | None:
    """Return `data` on one line; None as soon as it is clear that it takes more than `room`."""
    # Giving up early keeps this linear: every level of a deep graph asks for the flat form of all
    # that is below it.
    if not isinstance(data, Mapped | YamlSequence):
        return _read_scalar(data)
    anchor = f"&{data.anchor} " if data.anchor else ""
    pieces, room = [], room - len(anchor) - 2
    entries = data.items.items() if isinstance(data, Mapped) else ((None, v) for v in data.items)
    for key, value in entries:
        head = "" if key is None else f"{_string(key)}: "
        piece = _flow(value, room - len(head))
        if piece is None or len(head) + len(piece) > room:
            return None
        room -= len(head) + len(piece) + 2
        pieces.append(head + piece)
    return anchor + ("{%s}" if isinstance(data, Mapped) else "[%s]") % ", ".join(pieces)


def _read_scalar(data: Any) -> str:
    if isinstance(data, YamlAlias):
        return f"*{data}"
    if isinstance(data, str):
        return _string(data)
    if isinstance(data, float):
        text = repr(data)
        if text.lstrip("-") in ("inf", "nan"):
            return text.replace("inf", ".inf").replace("nan", ".nan")
        mantissa, exponent, power = text.partition("e")
        # Readers of YAML 1.1, such as PyYAML, need a dot in the mantissa and a sign in the exponent
        # to see a number; those of YAML 1.2 accept that as well.
        if exponent and "." not in mantissa:
            mantissa += ".0"
        sign = "" if power.startswith("-") or not exponent else "+"
        return f"{mantissa}{exponent}{sign}{power.lstrip('+')}"
    return json.dumps(data)


def _string(text: str) -> str:
    if len(text) <= _LONGEST_KEY and _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


# From YAML to a graph: translated to the JSON of a record, and decoded by the reader of records
# with its allow-list, so that one place decides what a file may import.

_NODE_KEYS = (TARGET, *filter(None, NODES.values()), "_tags_", "_arguments_")
_SEQUENCES = ("_tuple_", "_set_", "_frozenset_")
_RECORDS = ("_instance_", "_namedtuple_")


def from_yaml(text: str, packages: Sequence[str] = (), source: str = "config.yaml") -> Any:
    """Return the graph of a YAML text, exported by `to_yaml` or written by hand.

    Args:
      text: The YAML: one document, without tags of YAML's own (`!!python/...`).
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file that the text was read from; with the line, it is the origin of every value.

    Returns:
      A graph that is equal to the one that was written, with its sharing and tags.

    Raises:
      RecordError: The text cannot be read, names objects that may not be imported or do not exist,
        or has arguments that these do not take.

    Example:
      >>> from luthier import graph
      >>> config = graph.from_yaml('{_target_: luthier.optim.adamw, learning_rate: 0.0003}')
      >>> config.learning_rate
      0.0003
    """
    try:
        root = read(text)
        if isinstance(root, Entries):
            root = _checked_root(root)
        elif not isinstance(root, Items):
            raise YamlError(f"it is not a graph: it has no {TARGET}", 1)
        converter = _Converter()
        return decode(converter.record(root, ""), packages, source, converter.lines)
    except YamlError as error:
        raise RecordError(Problem(f"{source}, line {error.line}: {error}")) from None


def _checked_root(root: Entries) -> Any:
    """Return the part of the document that holds the graph, and check the version."""
    version = root.items.pop(FORMAT_VERSION, YamlScalar(VERSION, root.line))
    if not isinstance(version, YamlScalar) or version.value != VERSION:
        raise YamlError(f"{FORMAT_VERSION} is not {VERSION}, which this luthier reads", root.line)
    return root.items.get(GRAPH, root)


class _Converter:
    """Turns mappings of YAML into the objects of a record; keeps the line of every path."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}

    def record(self, data: Any, path: str) -> Any:
        """Return the record of a node of YAML.

        Args:
          data: The node.
          path: Its path in the graph.
        """
        self.lines[path] = data.line
        if isinstance(data, YamlReference):
            return {"ref": data.target.number}
        if isinstance(data, YamlScalar):
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
                raise YamlError(f"{key!r} is not the name of an argument", child.line)
        return {key: self.record(child, join(path, key)) for key, child in items.items()}

    def _mapping(self, data: Entries, path: str) -> dict[str, Any]:
        # Keys between underscores are reserved; `to_yaml` puts dicts and arguments with such keys
        # into `_dict_` and `_arguments_`, so a mapping without any is a plain dict.
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
            raise YamlError(f"a node takes no {unknown[0]}{hint}", data.line)
        flags = {
            flag: _raw(data.items[flag]) for flag in filter(None, NODES.values()) if flag in special
        }
        kinds = [kind for kind, flag in NODES.items() if flag and flags.get(flag, False) is True]
        if len(kinds) > 1 or any(type(value) is not bool for value in flags.values()):
            raise YamlError(f"only one of {', '.join(flags)} can be true", data.line)
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
                raise YamlError("_arguments_ is not a mapping", further.line)
            inside |= further.items
        return self._parts(inside, path)

    def _pair(self, entry: Any, path: str) -> list[Any]:
        items = _items(entry)
        if len(items) != 2:
            raise YamlError("_dict_ is a list of pairs", entry.line)
        key = self.record(items[0], path)
        part = key if isinstance(key, str | int) and not isinstance(key, bool) else "key"
        return [key, self.record(items[1], join(path, part))]


def _sequence(data: Any) -> Items:
    if not isinstance(data, Items):
        raise YamlError("this is not a list", data.line)
    return data


def _items(data: Any) -> list[Any]:
    return _sequence(data).items


def _finite(value: Any) -> Any:
    """Return a scalar as a record holds it: JSON has no infinity and no NaN."""
    is_finite = not isinstance(value, float) or value - value == 0
    return value if is_finite else {"float": repr(value)}


def _raw(data: Any) -> Any:
    """Return the plain value of a reserved key; reserved keys below it lose their underscores."""
    if isinstance(data, YamlReference):
        raise YamlError("an alias is not allowed here", data.line)
    if isinstance(data, YamlScalar):
        return _finite(data.value)
    if isinstance(data, Items):
        return [_raw(child) for child in data.items]
    return {str(key).strip("_"): _raw(child) for key, child in data.items.items()}
