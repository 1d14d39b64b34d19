"""The nodes of a document that is compared, and how they are written on one line."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from luthier.graph import values
from luthier.graph.paths import Part
from luthier.graph.record.plain import CLASS

# What a document is made of: things, each a node, a container or a leaf, told apart by content.
#
# A thing that stands in two places of a graph is one thing: sharing is identity.

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
    thing: ConfigNode = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return self.text


class ConfigNode:
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
        parts: tuple[tuple[Part | Key, ConfigNode], ...] = (),
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
        self._by_part: dict[Any, ConfigNode] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it changes as a whole: a leaf, a set, or a tuple of leaves."""
        if self.kind == "tuple":
            return all(child.kind in WHOLE for _, child in self.parts)
        return self.kind in WHOLE

    @property
    def by_part(self) -> dict[Any, ConfigNode]:
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


def children(thing: ConfigNode) -> list[ConfigNode]:
    """Return what is directly inside of a thing."""
    return [child for _, child in thing.parts]


class Numbers:
    """Numbers the structures of any number of documents; each thing is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[
            int, tuple[int, ConfigNode]
        ] = {}  # things are kept, so that ids stay theirs

    def __call__(self, thing: ConfigNode) -> int:
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


# Things of documents in words: on one line for people, and as plain JSON values.

# Records are data of anyone: numbers that arithmetic makes of them stay small.
_MOST_BITS = 4096
_LONGEST = 400
_BINDING = {f"{values.__name__}.{made.__name__}": how for made, how in values.OPERATIONS.items()}


def text_of(thing: ConfigNode) -> str:
    """Return a thing on one line; a node by its class alone."""
    if thing.is_value_node:
        return _value_text(thing)
    if thing.is_node:
        return head(thing)
    if thing.kind == LEAF:
        return leaf_text(thing.data)
    if thing.kind in ("instance", "namedtuple"):
        fields = ", ".join(f"{part}={text_of(child)}" for part, child in thing.parts)
        return f"{thing.name}({fields})"
    if thing.kind == "dict":
        return f"{{{', '.join(f'{part!r}: {text_of(child)}' for part, child in thing.parts)}}}"
    texts = [text_of(child) for child in children(thing)]
    if thing.kind == "tuple":
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    return f"[{', '.join(texts)}]" if thing.kind == "list" else f"{{{', '.join(sorted(texts))}}}"


def full(thing: ConfigNode) -> str:
    """Return a thing that has no other side on one line; a node with its arguments."""
    if not thing.is_node or thing.is_value_node:
        return text_of(thing)
    given = ", ".join(f"{part}={text_of(child)}" for part, child in thing.parts)
    return f"{head(thing)}({given})"


def head(thing: ConfigNode) -> str:
    """Return the class of a node, with what kind of node it is; for a container, its type."""
    if thing.is_node:
        return thing.name if thing.kind == "config" else f"{thing.kind} {thing.name}".rstrip()
    return thing.name or thing.kind


def leaf_text(data: Any) -> str:
    """Return what `encode_leaf` wrote as people write it."""
    if not isinstance(data, dict):
        return repr(data)
    if "object" in data:
        return str(data["object"])
    if "enum" in data:
        cls = str(data["enum"]).rpartition(".")[2]
        return f"{cls}.{data['member']}" if "member" in data else f"{cls}({data.get('value')!r})"
    if "dtype" in data:
        return f"{data['dtype']}({leaf_text(data['value'])})" if "value" in data else data["dtype"]
    if "bytes" in data:
        return _bytes(data["bytes"])
    if "range" in data or "slice" in data:
        return _steps(data)
    if "partition_spec" in data:
        entries = [tuple(e) if isinstance(e, list) else e for e in data["partition_spec"]]
        return f"PartitionSpec({', '.join(map(repr, entries))})"
    if "ellipsis" in data:
        return "Ellipsis"
    return str(
        next((data[key] for key in ("name", "float", "complex", "path") if key in data), data)
    )


def _steps(data: Any) -> str:
    kind = "range" if "range" in data else "slice"
    given = list(data[kind]) if isinstance(data[kind], list) else [data[kind]]
    if kind == "range" and given[2:] == [1]:
        given = given[:2]
    return f"{kind}({', '.join(map(str, given))})"


def _bytes(written: Any) -> str:
    try:
        return repr(bytes.fromhex(written))
    except (TypeError, ValueError):  # a record can hold anything
        return repr(written)


def shared_name(thing: ConfigNode) -> str:
    """Return what people call a constant; empty for one without a name, and for anything else."""
    name = thing.by_part.get("name") if thing.is_value_node and thing.name == CONSTANT else None
    return name.data if name is not None and isinstance(name.data, str) else ""


def _value_text(thing: ConfigNode) -> str:
    known = value_of(thing)
    text = "?" if known is None else text_of(known)
    if thing.name == CONSTANT:
        name = shared_name(thing)
        return f"{text} (shared as {name})" if name else text
    return f"{_expression(thing, 0, {})} = {text}"


def _expression(thing: ConfigNode, outer: int, known: dict[int, str]) -> str:
    """Return a value node as people write it; what is very long is cut."""
    if not thing.is_value_node:
        return text_of(thing)
    if thing.name == CONSTANT:
        inside = thing.by_part.get("value")
        return shared_name(thing) or ("?" if inside is None else _expression(inside, outer, known))
    symbol, binding = _BINDING[thing.name]
    if id(thing) not in known:
        inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
        sides = [thing.by_part.get(side) for side in ("left", "right")]
        texts = [
            "None" if side is None else _expression(side, of, known)
            for side, of in zip(sides, inner, strict=True)
        ]
        text = f"{texts[0]} {symbol} {texts[1]}"
        known[id(thing)] = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"({known[id(thing)]})" if binding < outer else known[id(thing)]


def value_of(thing: ConfigNode) -> ConfigNode | None:
    """Return the thing that a value node stands for, itself for others; None where it has none."""
    return _value_of(thing, {})


def _value_of(thing: ConfigNode, known: dict[int, ConfigNode | None]) -> ConfigNode | None:
    if not thing.is_value_node:
        return thing
    if id(thing) not in known:
        if thing.name == CONSTANT:
            inside = thing.by_part.get("value")
            known[id(thing)] = None if inside is None else _value_of(inside, known)
        else:
            known[id(thing)] = _computed(thing, known)
    return known[id(thing)]


def _computed(thing: ConfigNode, known: dict[int, ConfigNode | None]) -> ConfigNode | None:
    given = [thing.by_part.get(side) for side in ("left", "right")]
    sides = [None if side is None else _value_of(side, known) for side in given]
    numbers = [side.data for side in sides if side is not None and side.kind == LEAF]
    if len(numbers) < 2 or not all(isinstance(x, bool | int | float) for x in numbers):
        return _computed_live(thing)
    bits = [x.bit_length() if isinstance(x, int) else 64 for x in numbers]
    is_power = _BINDING[thing.name][0] == "**" and isinstance(numbers[1], int)
    if (bits[0] * max(int(numbers[1]), 1) if is_power else sum(bits)) > _MOST_BITS:
        return None
    try:
        result = OPERATIONS[thing.name](*numbers)
    except (ArithmeticError, ValueError, TypeError):
        return None
    if isinstance(result, complex):
        return ConfigNode(LEAF, data={"complex": repr(result)})
    if isinstance(result, float) and not math.isfinite(result):
        return ConfigNode(LEAF, data={"float": repr(result)})
    return ConfigNode(LEAF, data=result)


def _computed_live(thing: ConfigNode) -> ConfigNode | None:
    """Return the value of arithmetic on more than numbers, where the graph itself is at hand."""
    if thing.live is None:
        return None
    try:
        return ConfigNode(LEAF, data={"object": repr(values.evaluate(thing.live))})
    except Exception:  # an operand is missing or wrong, which validate tells
        return None


def plain(thing: ConfigNode) -> Any:
    """Return a thing as a plain JSON value, like `record.plain.to_dict` without defaults."""
    if thing.is_value_node:
        known = value_of(thing)
        return None if known is None else plain(known)
    if thing.kind == LEAF:
        return plain_leaf(thing.data)
    if thing.is_node or thing.kind == "instance":
        return {CLASS: thing.name, **{str(part): plain(child) for part, child in thing.parts}}
    if thing.kind in ("dict", "namedtuple"):
        return {str(part): plain(child) for part, child in thing.parts}
    found = [plain(child) for child in children(thing)]
    return sorted(found, key=str) if thing.kind in ("set", "frozenset") else found


def plain_leaf(data: Any) -> Any:
    """Return what `encode_leaf` wrote as a plain JSON value."""
    if not isinstance(data, dict):
        return data
    if "partition_spec" in data:
        return data["partition_spec"]
    for key in ("name", "path", "value", "member", "dtype", "complex", "bytes"):
        if key in data:
            return data[key] if isinstance(data[key], str) else plain_leaf(data[key])
    return leaf_text(data)


def canonical(thing: ConfigNode) -> str:
    """Return a text that two things share exactly when their content is equal."""
    return json.dumps(_canonical(thing))


def _canonical(thing: ConfigNode) -> list[Any]:
    inside = [[repr(part), _canonical(child)] for part, child in thing.parts]
    if thing.kind == "dict":
        inside.sort(key=repr)
    return [repr(thing.content), repr(thing.tags), inside]
