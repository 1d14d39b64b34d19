"""Graphs as JSON with public import paths: encoder, formatter, and reader of the JSON."""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any

import fiddle as fdl
from fiddle import tagging

from luthier import folders
from luthier.errors import Problem, RecordError, UnknownReference
from luthier.graph.origins import origin_of
from luthier.graph.paths import Part, is_dataclass_instance, join
from luthier.graph.public_names import public_name
from luthier.graph.record.leaves import encode_leaf
from luthier.graph.record.structure import can_share, entries, shared
from luthier.graph.values import Graph

# A formatter for JSON that people read and compare: a value is on one line if it fits, else each of
# its entries is on a line of its own. `json.dumps` has only all or nothing.

WIDTH = 96


def lay_out(data: Any) -> str:
    """Return `data` as JSON text without a line break at its end.

    Args:
      data: A JSON value; floats must be finite.
    """
    return _write(data, 0, WIDTH)


def _write(data: Any, indent: int, room: int) -> str:
    # `room` is what is left of the line behind the key and for the comma after the value.
    if not isinstance(data, dict | list) or not data:
        return _scalar(data)
    line = _one_line(data, room)
    if line is not None:
        return line
    pad, room = " " * (indent + 1), WIDTH - indent - 2  # a comma may follow
    if isinstance(data, dict):
        heads = [f"{_scalar(str(key))}: " for key in data]
        values = zip(heads, data.values(), strict=True)
        items = [h + _write(value, indent + 1, room - len(h)) for h, value in values]
    else:
        items = [_write(value, indent + 1, room) for value in data]
    inside = ",\n".join(pad + item for item in items)
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    return f"{opening}\n{inside}\n{' ' * indent}{closing}"


def _one_line(data: Any, room: int) -> str | None:
    """Return `data` on one line, or None as soon as it is clear that it takes more than `room`."""
    # Else each subtree would be written in full at each level above it, only to be too long.
    if not isinstance(data, dict | list):
        text = _scalar(data)
        return text if len(text) <= room else None
    pieces = []
    is_dict = isinstance(data, dict)
    room -= 2
    for entry in data:
        head = f"{_scalar(str(entry))}: " if is_dict else ""
        piece = _one_line(data[entry] if is_dict else entry, room - len(head))
        if piece is None:
            return None
        room -= len(head) + len(piece) + 2
        pieces.append(head + piece)
    return ("{%s}" if is_dict else "[%s]") % ", ".join(pieces)


# Made once: `json.dumps` with options makes an encoder at each call, which took a fifth of the time
# that it takes to record a graph of 5,000 nodes.
_encode_scalar = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _scalar(data: Any) -> str:
    text = _encode_scalar(data)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: no file could hold it
        text = json.dumps(data)
    return text


# A graph as JSON: public names, sharing by ids, tags; `luthier.graph.load` reads it again.
#
# A node is `{"config": "luthier.optim.adamw", "arguments": {...}}` (`partial` and `factory` for the
# other two kinds of node), with `"tags"` where it has some. A shared object has an `"id"` where it
# is first met and is `{"ref": id}` afterwards. Why not Fiddle's own serializer? It takes time
# quadratic in the size of the graph, and writes private module paths.

FORMAT = "luthier.graph"
VERSION = 1
KINDS: dict[type, str] = {
    fdl.Config: "config",
    fdl.Partial: "partial",
    fdl.ArgFactory: "factory",
    tagging.TaggedValueCls: "tagged",
}


def to_json(graph: Graph) -> str:
    """Return the record of `graph`, from which `from_json` makes an equal one.

    Args:
      graph: A node.

    Returns:
      JSON text, the same for the same graph however its arguments were set.

    Raises:
      RecordError: A part of the graph cannot be named or written; all problems are reported.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> print(graph.to_json(fdl.Config(optim.sgd, learning_rate=0.1)), end="")
      {
       "format": "luthier.graph",
       "version": 1,
       "graph": {"config": "luthier.optim.sgd", "arguments": {"learning_rate": 0.1}}
      }
    """
    return lay_out({"format": FORMAT, "version": VERSION, "graph": encode(graph)}) + "\n"


def encode(graph: Graph) -> Any:
    """Return the JSON value of `graph`, without the header that `to_json` writes.

    Raises:
      RecordError: A part of the graph cannot be named or written; all problems are reported.
    """
    encoder = _Encoder(shared(graph))
    data = encoder.encode(graph, "")
    if encoder.problems:
        raise RecordError([_with_origin(problem, graph) for problem in encoder.problems])
    return data


def _with_origin(problem: Problem, graph: Graph) -> Problem:
    try:
        return dataclasses.replace(problem, origin=origin_of(graph, problem.path))
    except (UnknownReference, KeyError):  # below something that paths do not reach
        return problem


class _Encoder:
    """Encodes one graph; collects problems with their paths."""

    # Ids are numbered in the order of the walk, which is that of signatures: two equal graphs give
    # the same text, however they were made, so that records can be compared and hashed.

    def __init__(self, shared_ids: set[int]):
        self.shared = shared_ids
        self.numbers: dict[int, int] = {}
        self.above: set[int] = set()
        self.problems: list[Problem] = []

    def encode(self, value: Any, path: str) -> Any:
        """Return the JSON of `value` at `path`."""
        if id(value) in self.above:
            self.problems.append(Problem("the config contains a cycle here", path))
            return None
        numbered = id(value) in self.shared and can_share(value)
        if numbered and id(value) in self.numbers:
            return {"ref": self.numbers[id(value)]}
        inside = entries(value)
        if inside is None and not isinstance(value, set | frozenset):
            data = self._leaf(value, path)
            if isinstance(data, dict) and "name" in data:
                return data
            return {"id": self._number(value), **data} if numbered and data else data
        number = self._number(value) if numbered else 0
        self.above.add(id(value))
        data = self._set(value, path) if inside is None else self._inside(value, inside, path)
        self.above.discard(id(value))
        if not number:
            return data
        # A list is an array in JSON, which has no place for an id, unless it is shared.
        return {"id": number, **(data if isinstance(data, dict) else {"list": data})}

    def _number(self, value: Any) -> int:
        return self.numbers.setdefault(id(value), len(self.numbers) + 1)

    def _name(self, target: Any, path: str) -> str:
        try:
            name = public_name(target)
        except RecordError as error:
            self.problems += [dataclasses.replace(p, path=path) for p in error.problems]
            return ""
        self._check_place(name, path)
        return name

    def _check_place(self, name: str, path: str) -> None:
        # A record has to rebuild without the repository that these are in.
        if folders.is_experiment(name):
            what = f"{name} is in a folder of experiments, which records cannot refer to"
            self.problems.append(Problem(what, path, remedy="move it to a module of a package"))

    def _leaf(self, value: Any, path: str) -> Any:
        try:
            data = encode_leaf(value)
        except RecordError as error:
            self.problems += [dataclasses.replace(p, path=path) for p in error.problems]
            return None
        if isinstance(data, dict):
            self._check_place(str(data.get("name", data.get("enum", ""))), path)
        return data

    def _inside(self, value: Any, inside: list[tuple[Any, Any]], path: str) -> Any:
        if isinstance(value, fdl.Buildable):
            return self._node(value, inside, path)
        if type(value) is dict:
            return self._dict(inside, path)
        encoded = {key: self.encode(child, join(path, key)) for key, child in inside}
        if type(value) is list:
            return list(encoded.values())
        if type(value) is tuple:
            return {"tuple": list(encoded.values())}
        kind = "instance" if is_dataclass_instance(value) else "namedtuple"
        return {kind: self._name(type(value), path), "fields": encoded}

    def _node(self, node: fdl.Buildable, inside: list[tuple[Part, Any]], path: str) -> Any:
        kind = KINDS.get(type(node))
        if kind is None:
            what = f"a node of type {type(node).__name__} cannot be recorded"
            self.problems.append(Problem(what, path, remedy="use fdl.Config or fdl.Partial"))
        data: dict[str, Any] = {}
        if kind is not None:
            data[kind] = "" if kind == "tagged" else self._name(node.__fn_or_cls__, path)
        # Positional-only arguments are set by index.
        if any(isinstance(part, int) for part, _ in inside):
            what = f"{data.get(kind or '', 'it')} has arguments without names"
            remedy = "wrap it in a function whose arguments have names"
            self.problems.append(Problem(what, path, remedy=remedy))
        tags = {
            str(part): sorted(self._name(tag, join(path, part)) for tag in found)
            for part, found in node.__argument_tags__.items()
            if found
        }
        if tags:
            data["tags"] = dict(sorted(tags.items()))
        data["arguments"] = {part: self.encode(child, join(path, part)) for part, child in inside}
        return data

    def _dict(self, inside: list[tuple[Any, Any]], path: str) -> Any:
        if all(type(key) is str for key, _ in inside):
            return {"dict": {key: self.encode(child, join(path, key)) for key, child in inside}}
        pairs = [
            [self.encode(key, join(path, key)), self.encode(child, join(path, key))]
            for key, child in inside
        ]
        return {"dict": pairs}

    def _set(self, value: Any, path: str) -> Any:
        # Sorted by their text, since the order of a set depends on hashes, which differ by process.
        written = [self.encode(child, path) for child in value]
        kind = "set" if isinstance(value, set) else "frozenset"
        return {kind: sorted(written, key=lay_out)}


# Reading the text of a record as JSON, with checks of its form and version.


def read_record(text: str, source: str) -> Any:
    """Return the JSON value of the graph in a record.

    Args:
      text: The text that `to_json` wrote.
      source: The file or run that the text was read from, for messages.

    Raises:
      RecordError: It is not JSON, not a record, or has another version.
    """
    data = _parsed(text, source)
    if not isinstance(data, dict) or data.get("format") != FORMAT or "graph" not in data:
        remedy = "give the config.json of a run"
        raise RecordError(Problem(f"{source} is not a recorded graph", remedy=remedy))
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        what = f"{source} has format version {version!r}; this luthier reads up to {VERSION}"
        raise RecordError(Problem(what, remedy="read it with the luthier that wrote it, or newer"))
    return data["graph"]


def _parsed(text: str, source: str) -> Any:
    """Parse strict JSON: no key twice, no number that is not finite."""
    # Python's parser takes the last of two equal keys and accepts `NaN`, both of which people write
    # by mistake when they edit a record.
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        what = "it is nested too deeply"
    except json.JSONDecodeError as error:
        what = f"{error.msg} in line {error.lineno}, column {error.colno}"
    except (ValueError, TypeError) as error:
        what = str(error)
    raise RecordError(Problem(f"{source} is not readable as JSON: {what}"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        raise ValueError(f"{counts.most_common(1)[0][0]!r} is given twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is not JSON; write {{"float": "{name.lower()}"}}')
