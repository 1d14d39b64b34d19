"""The nodes of documents that are compared, and their texts and plain values."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from luthier.durations import Epochs
from luthier.graph import values
from luthier.graph.paths import Part
from luthier.graph.record.plain import CLASS

# A document is a tree of `ConfigNode`s: Fiddle's nodes, containers and leaves. A node that two
# places of a graph share is one object here as well: sharing is identity (`is`, `id`), and equality
# of content is a number (`Numbers`).

LEAF = "leaf"
WHOLE = ("set", "frozenset", LEAF)
"""Kinds that change as a whole."""
SHARED = ("list", "dict")
"""Kinds beside Fiddle's nodes whose identity counts: they are mutable, so an edit reaches all."""

_VALUES = values.__name__
CONSTANT = f"{_VALUES}.constant"
_EPOCHS = f"{Epochs.__module__}.{Epochs.__name__}"
OPERATIONS = {f"{_VALUES}.{made.__name__}": made for made in values.OPERATIONS}
"""The function of every arithmetic node, by its public name."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a dict that is neither text nor an int.

    Args:
      content: A text that equal keys have in common.
      text: The key as it is shown.
      node: The key itself.
    """

    content: str
    text: str = dataclasses.field(compare=False)
    node: ConfigNode = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return self.text


class ConfigNode:
    """A node, container or leaf of a document; immutable.

    Args:
      kind: `config`, `partial`, `factory` or `tagged` for nodes; `dict`, `list`, `tuple`, `set`,
        `frozenset`, `instance` (of a dataclass) and `namedtuple` for containers; `leaf`.
      name: The public name of a node's class or function, or of a container's class.
      parts: The children by their keys, in order.
      tags: The tags of arguments, sorted, by argument.
      data: For a leaf, the output of `encode_leaf`; for one that no record can hold, a text.
      content: The identity of the node apart from its parts and tags: its kind and name, or data.
      live: The object that it was made of, in a document of a live graph.
      is_node: Whether it is a node of Fiddle, and no container or leaf.

    A node of a record has in `known` the defaults of the arguments that are not set, as plain
    values; None where they are not known.
    """

    # There is one of these for every value of a graph, down to the leaves; hence slots.
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
        if name == CONSTANT:  # a number of steps in epochs is shown and compared as a value
            parts = tuple((part, _as_value(child)) for part, child in parts)
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
        """The children by their keys."""
        if self._by_part is None:
            self._by_part = dict(self.parts)
        return self._by_part

    def tags_of(self, part: Any) -> tuple[str, ...]:
        """Return the tags of an argument."""
        return next((found for name, found in self.tags if name == part), ())


def _as_value(node: ConfigNode) -> ConfigNode:
    if node.name != _EPOCHS:
        return node
    arguments = {str(part): child.data for part, child in node.parts}
    return ConfigNode(LEAF, data={"config": node.name, "arguments": arguments})


def _content(kind: str, name: str, data: Any) -> Any:
    if kind != LEAF:
        return (kind, name)
    if isinstance(data, dict | list):
        return (kind, json.dumps(data, sort_keys=True))
    # Not the value itself: 1, 1.0 and True are equal, and NaN does not equal itself.
    return (kind, type(data).__name__, repr(data))


def children(node: ConfigNode) -> list[ConfigNode]:
    """Return the children of a node.

    Args:
      node: Any node.
    """
    return [child for _, child in node.parts]


class Numbers:
    """Numbers the structures of any number of documents: equal numbers, equal content.

    Hash consing: a node's number follows from its content and its children's numbers, so that each
    node is looked at once, and equality of two subtrees is the equality of two integers.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        # Nodes are kept with their numbers: the id of one that is freed could be given again.
        self._known: dict[int, tuple[int, ConfigNode]] = {}

    def __call__(self, node: ConfigNode) -> int:
        """Return the number of a node's content: classes, values and tags, not sharing.

        Args:
          node: Any node.
        """
        known = self._known.get(id(node))
        if known is not None:
            return known[0]
        inside: Any = [(part, self(child)) for part, child in node.parts]
        inside = frozenset(inside) if node.kind in ("dict", "set", "frozenset") else tuple(inside)
        content = (node.content, node.tags, inside)
        number = self._numbers.setdefault(content, len(self._numbers))
        self._known[id(node)] = (number, node)
        return number


# Formatters: nodes on one line, and as plain JSON values.

# A record may come from anyone: `9 ** 9 ** 9` must not be computed to show a difference.
_MOST_BITS = 4096
_LONGEST = 400
_BINDING = {f"{values.__name__}.{made.__name__}": how for made, how in values.OPERATIONS.items()}


def text_of(node: ConfigNode) -> str:
    """Return a node on one line; a config or template by its class alone.

    Args:
      node: Any node.
    """
    if node.is_value_node:
        return _value_text(node)
    if node.is_node:
        return head(node)
    if node.kind == LEAF:
        return leaf_text(node.data)
    if node.kind in ("instance", "namedtuple"):
        fields = ", ".join(f"{part}={text_of(child)}" for part, child in node.parts)
        return f"{node.name}({fields})"
    if node.kind == "dict":
        return f"{{{', '.join(f'{part!r}: {text_of(child)}' for part, child in node.parts)}}}"
    texts = [text_of(child) for child in children(node)]
    if node.kind == "tuple":
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    return f"[{', '.join(texts)}]" if node.kind == "list" else f"{{{', '.join(sorted(texts))}}}"


def full(node: ConfigNode) -> str:
    """Return a node that exists on one side only, on one line: a config with its arguments.

    Args:
      node: Any node.
    """
    if not node.is_node or node.is_value_node:
        return text_of(node)
    given = ", ".join(f"{part}={text_of(child)}" for part, child in node.parts)
    return f"{head(node)}({given})"


def head(node: ConfigNode) -> str:
    """Return the class of a node with its kind (`partial`, `factory`); of a container, its type.

    Args:
      node: Any node.
    """
    if node.is_node:
        return node.name if node.kind == "config" else f"{node.kind} {node.name}".rstrip()
    return node.name or node.kind


def heading(node: ConfigNode | None) -> str | None:
    """Return a node by its class, or a list or tuple by its length; None for None."""
    if node is None or node.is_node:
        return None if node is None else head(node)
    return f"a {node.kind} of {len(node.parts)}"


def leaf_text(data: Any) -> str:
    """Return the output of `encode_leaf` in readable form.

    Args:
      data: The JSON of a leaf.
    """
    # Each kind of leaf that JSON has no form for is an object with a key that marks it. The order
    # of the tests matters, since some have several of the keys (an enum may have a `value` too).
    if not isinstance(data, dict):
        return repr(data)
    if "object" in data:
        return str(data["object"])
    if "enum" in data:  # without a member: a combination of flags
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
    if data.get("config") == _EPOCHS:
        count = data["arguments"].get("count", "?")
        return f"Epochs({count:g})" if isinstance(count, float) else f"Epochs({count})"
    # Whatever is left is shown as it is: a record may be of a later version, or damaged.
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


def shared_name(node: ConfigNode) -> str:
    """Return the name of a shared constant; empty for one without, and for anything else.

    Args:
      node: Any node.
    """
    name = node.by_part.get("name") if node.is_value_node and node.name == CONSTANT else None
    return name.data if name is not None and isinstance(name.data, str) else ""


def _value_text(node: ConfigNode) -> str:
    known = value_of(node)
    text = "?" if known is None else text_of(known)
    if node.name == CONSTANT:
        name = shared_name(node)
        return f"{text} (shared as {name})" if name else text
    return f"{_expression(node, 0, {})} = {text}"


def _expression(node: ConfigNode, outer: int, known: dict[int, str]) -> str:
    """Return a value node as infix arithmetic; a very long text is cut.

    Args:
      node: A value node or an operand.
      outer: The binding of the operator around it, which decides about parentheses.
      known: Texts of operands by id: `x = y + y` nested 50 times has 2**50 places.
    """
    if not node.is_value_node:
        return text_of(node)
    if node.name == CONSTANT:
        inside = node.by_part.get("value")
        return shared_name(node) or ("?" if inside is None else _expression(inside, outer, known))
    # Parentheses where an operand binds less than its place requires: one more on the right of a
    # left-associative operator (`a - (b - c)`), on the left of `**`, which is right-associative.
    symbol, binding = _BINDING[node.name]
    if id(node) not in known:
        inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
        sides = [node.by_part.get(side) for side in ("left", "right")]
        texts = [
            "None" if side is None else _expression(side, of, known)
            for side, of in zip(sides, inner, strict=True)
        ]
        text = f"{texts[0]} {symbol} {texts[1]}"
        known[id(node)] = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"({known[id(node)]})" if binding < outer else known[id(node)]


def value_of(node: ConfigNode) -> ConfigNode | None:
    """Return the value of a value node as a leaf, any other node itself; None for an unset value.

    Args:
      node: Any node.
    """
    return _value_of(node, {})


def _value_of(node: ConfigNode, known: dict[int, ConfigNode | None]) -> ConfigNode | None:
    if not node.is_value_node:
        return node
    if id(node) not in known:
        if node.name == CONSTANT:
            inside = node.by_part.get("value")
            known[id(node)] = None if inside is None else _value_of(inside, known)
        else:
            known[id(node)] = _computed(node, known)
    return known[id(node)]


def _computed(node: ConfigNode, known: dict[int, ConfigNode | None]) -> ConfigNode | None:
    # A record is data, and none of its functions are imported: arithmetic on plain numbers is
    # computed here, by the operations of `graph.values`; anything else only of a live graph.
    given = [node.by_part.get(side) for side in ("left", "right")]
    sides = [None if side is None else _value_of(side, known) for side in given]
    numbers = [side.data for side in sides if side is not None and side.kind == LEAF]
    if len(numbers) < 2 or not all(isinstance(x, bool | int | float) for x in numbers):
        return _computed_live(node)
    bits = [x.bit_length() if isinstance(x, int) else 64 for x in numbers]
    is_power = _BINDING[node.name][0] == "**" and isinstance(numbers[1], int)
    if (bits[0] * max(int(numbers[1]), 1) if is_power else sum(bits)) > _MOST_BITS:
        return None
    try:
        result = OPERATIONS[node.name](*numbers)
    except (ArithmeticError, ValueError, TypeError):
        return None
    if isinstance(result, complex):
        return ConfigNode(LEAF, data={"complex": repr(result)})
    if isinstance(result, float) and not math.isfinite(result):
        return ConfigNode(LEAF, data={"float": repr(result)})
    return ConfigNode(LEAF, data=result)


def _computed_live(node: ConfigNode) -> ConfigNode | None:
    """Return the value of arithmetic on more than numbers, for a live graph."""
    if node.live is None:
        return None
    try:
        return ConfigNode(LEAF, data={"object": repr(values.evaluate(node.live))})
    except Exception:  # an operand is missing or wrong, which `validate` reports
        return None


def plain(node: ConfigNode) -> Any:
    """Return a node as a plain JSON value, like `record.plain.to_dict` without defaults.

    Args:
      node: Any node.
    """
    if node.is_value_node:
        known = value_of(node)
        return None if known is None else plain(known)
    if node.kind == LEAF:
        return plain_leaf(node.data)
    if node.is_node or node.kind == "instance":
        return {CLASS: node.name, **{str(part): plain(child) for part, child in node.parts}}
    if node.kind in ("dict", "namedtuple"):
        return {str(part): plain(child) for part, child in node.parts}
    found = [plain(child) for child in children(node)]
    return sorted(found, key=str) if node.kind in ("set", "frozenset") else found


def plain_leaf(data: Any) -> Any:
    """Return the output of `encode_leaf` as a plain JSON value.

    Args:
      data: The JSON of a leaf.
    """
    if not isinstance(data, dict):
        return data
    if "partition_spec" in data:
        return data["partition_spec"]
    for key in ("name", "path", "value", "member", "dtype", "complex", "bytes"):
        if key in data:
            return data[key] if isinstance(data[key], str) else plain_leaf(data[key])
    return leaf_text(data)


def canonical(node: ConfigNode) -> str:
    """Return a text that two nodes have in common exactly if their content is equal.

    Args:
      node: Any node.
    """
    return json.dumps(_canonical(node))


def _canonical(node: ConfigNode) -> list[Any]:
    inside = [[repr(part), _canonical(child)] for part, child in node.parts]
    if node.kind == "dict":
        inside.sort(key=repr)
    return [repr(node.content), repr(node.tags), inside]
