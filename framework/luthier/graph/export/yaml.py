"""A graph as YAML for people, which `from_yaml` reads back to an equal graph.

_target_: luthier.program.Experiment
name: quickstart
model:
  _target_: luthier.models.Decoder
  _partial_: true
  dim: 128
  norm: &norm {_target_: luthier.layers.RMSNorm, _partial_: true}
training:
  steps: &steps {_target_: luthier.graph.values.constant, value: 900, name: steps}

It holds what the JSON record holds. A node has the keys that Hydra and NeMo-Run know (`_target_`,
`_partial_`), what is shared has an anchor, and all that YAML has no form of is a mapping with the
record's keys between underscores: `{_name_: jax.nn.silu}`, `{_tuple_: [fsdp]}`, `{_dtype_: int8}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from luthier.graph.export.names import Names
from luthier.graph.export.python import wished_name
from luthier.graph.paths import Path
from luthier.graph.record.encode import VERSION, encode

WIDTH = 100
TARGET, GRAPH, FORMAT_VERSION = "_target_", "_graph_", "_version_"
NODES = {"config": "", "partial": "_partial_", "factory": "_factory_", "tagged": "_tagged_"}
RESERVED = re.compile(r"_[a-z]+(_[a-z]+)*_")
# Strings that no reader of YAML 1.1 or 1.2 takes for anything else.
_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*(?: [\w./+-]+)*", re.ASCII)
_WORDS = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n"])
_LONGEST_KEY = 100


def to_yaml(graph: Any) -> str:
    """Return a graph as YAML.

    Args:
      graph: A node or value.

    Returns:
      Text that `from_yaml` reads to an equal graph, with its sharing and tags.

    Raises:
      RecordError: Something in the graph cannot be named or written; all of it is told at once.
    """
    data = _Translator().translate(encode(graph), ())
    if not (isinstance(data, Mapped) and TARGET in data.items and not data.anchor):
        data = Mapped({GRAPH: data})
    items = {FORMAT_VERSION: VERSION, **data.items}
    return "\n".join(_block(Mapped(items), "")) + "\n"


class Mapped:
    """A mapping of YAML, with the anchor that others refer to it by."""

    def __init__(self, items: dict[str, Any]):
        self.items, self.anchor = items, ""


class Listed:
    """A sequence of YAML, with the anchor that others refer to it by."""

    def __init__(self, items: list[Any]):
        self.items, self.anchor = items, ""


class Alias(str):
    """A reference to what has the anchor of that name."""


class _Translator:
    """Turns the objects of a record into mappings of YAML."""

    def __init__(self) -> None:
        self.names = Names()
        self.anchors: dict[int, str] = {}

    def translate(self, data: Any, path: Path) -> Any:
        """Return the YAML of what stands at a path."""
        if isinstance(data, list):
            return Listed([self.translate(child, (*path, i)) for i, child in enumerate(data)])
        if not isinstance(data, dict):
            return data
        if "ref" in data:
            return Alias(self.anchors[data["ref"]])
        anchor = self.names.give(path, wished_name(data)) if "id" in data else ""
        if anchor:
            self.anchors[data["id"]] = anchor
        made = self._made({k: v for k, v in data.items() if k != "id"}, path)
        if anchor and isinstance(made, Mapped | Listed):
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
            items["_tags_"] = Mapped({part: Listed(found) for part, found in data["tags"].items()})
        return Mapped(items | self._parts(data["arguments"], path))

    def _parts(self, parts: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return arguments or fields; under a key of their own where one looks like ours."""
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
            listed.append(Listed(pair))
        return Mapped({"_dict_": Listed(listed)})


def _unlike_names(keys: Any) -> bool:
    """Say whether some keys look like ours, or are too long for YAML."""
    return any(RESERVED.fullmatch(key) or len(key) > _LONGEST_KEY for key in keys)


def _leaf(data: Any) -> Any:
    """Return the YAML of a leaf, whose keys get underscores."""
    if isinstance(data, dict):
        if "float" in data:
            return float(data["float"])
        return Mapped({f"_{key}_": _leaf(value) for key, value in data.items()})
    return Listed([_leaf(entry) for entry in data]) if isinstance(data, list) else data


def _block(data: Any, pad: str) -> Iterator[str]:
    """Yield the lines of a mapping or sequence, one entry a line where they fit."""
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
            yield f"{head} {next(below).lstrip(' ')}"  # the first entry stands behind the dash
        else:
            yield head + anchor
        yield from below


def _flow(data: Any, room: int) -> str | None:
    """Return `data` on one line; None as soon as it is clear that it takes more than `room`."""
    if not isinstance(data, Mapped | Listed):
        return _scalar(data)
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


def _scalar(data: Any) -> str:
    if isinstance(data, Alias):
        return f"*{data}"
    if isinstance(data, str):
        return _string(data)
    if isinstance(data, float):
        text = repr(data)
        if text.lstrip("-") in ("inf", "nan"):
            return text.replace("inf", ".inf").replace("nan", ".nan")
        mantissa, exponent, power = text.partition("e")
        if exponent and "." not in mantissa:  # YAML 1.1 takes `4e-05` for a string
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
