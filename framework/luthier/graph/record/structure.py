"""The structure of graphs: parts of nodes and containers, sharing, and equality by content."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import fiddle as fdl
from fiddle import daglish

from luthier.graph import signatures
from luthier.graph.paths import Part, is_dataclass_instance, join
from luthier.graph.record.leaves import is_singleton
from luthier.graph.values import Graph

# The parts of a graph for records: set arguments only, in a fixed order, and shared objects.
# (`paths.children` is the other view: with defaults, for people.)

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))


_is_node_type: Callable[[type], bool] = functools.cache(
    lambda kind: issubclass(kind, fdl.Buildable)
)


def is_node(value: Any) -> bool:
    """Return whether `value` is a node; faster than `isinstance`, which asks an abstract class."""
    return _is_node_type(type(value))


def set_arguments(node: fdl.Buildable) -> list[tuple[Part, Any]]:
    """Return the set arguments of `node`: in the order of the signature, then others by name."""
    unordered = node.__arguments__
    known = signatures.arguments(node.__fn_or_cls__).names
    arguments: list[tuple[Part, Any]] = [
        (name, unordered[name]) for name in known if name in unordered
    ]
    if len(arguments) < len(unordered):
        free = sorted((part for part in unordered if part not in known), key=str)
        arguments += [(part, unordered[part]) for part in free]
    return arguments


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a node or container with their keys; None for a leaf.

    Args:
      value: A node (only set arguments count), dict, list, tuple, named tuple or instance of a
        dataclass.
    """
    kind = type(value)
    if kind in _PLAIN:
        return None
    if _is_node_type(kind):
        return set_arguments(value)
    if kind is dict:
        return list(value.items())
    if kind is list or kind is tuple:
        return list(enumerate(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if is_dataclass_instance(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
    return None


def can_share(value: Any) -> bool:
    """Return whether two places that hold the identical `value` share it on purpose."""
    # Identity carries no information where Python itself makes one object of equal values: small
    # integers, interned strings, constant tuples, and singletons (functions, members of enums).
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is list or kind is dict or _is_node_type(kind):
        return True
    if isinstance(value, str | bytes | int | float | complex):
        return False
    if type(value) is tuple:
        return bool(value) and not daglish.is_internable(value)
    return not is_singleton(value)


def is_shared_node(value: Any) -> bool:
    """Return whether sharing `value` has a meaning: it is a node, or can change in place."""
    kind = type(value)
    return kind is list or kind is dict or _is_node_type(kind)


def shared(graph: Graph) -> set[int]:
    """Return the ids of everything that the graph holds in more than one place."""
    seen: collections.Counter[int] = collections.Counter()

    def visit(value: Any) -> None:
        if can_share(value):
            seen[id(value)] += 1
            if seen[id(value)] > 1:
                return
        for _, child in entries(value) or ():
            visit(child)

    visit(graph)
    return {key for key, count in seen.items() if count > 1}


def nodes(graph: Graph) -> Iterator[tuple[str, fdl.Buildable]]:
    """Yield (first path, node) for every node of `graph`, once each, parents first."""
    entered: set[int] = set()

    def visit(path: str, value: Any) -> Iterator[tuple[str, fdl.Buildable]]:
        if can_share(value):
            if id(value) in entered:
                return
            entered.add(id(value))
        if is_node(value):
            yield path, value
        for key, child in entries(value) or ():
            yield from visit(join(path, key), child)

    yield from visit("", graph)


# Numbers for structures: two values get the same number exactly when their content is equal.


class Structures:
    """Numbers the structures of any number of graphs; each value is looked at once."""

    # Hash consing: the content of a value is its type with the numbers of its parts, so comparing
    # two subtrees of any size is comparing two integers. `_known` maps the id of an object to its
    # number; the graphs must not change between two calls.

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used again

    def number(self, value: Any) -> int:
        """Return the number of the content of `value`: classes, values and tags, not sharing."""
        sharable = can_share(value)
        if sharable and id(value) in self._known:
            return self._known[id(value)]
        number = self._numbers.setdefault(self._content(value), len(self._numbers))
        if sharable:
            self._known[id(value)] = number
            self._kept.append(value)
        return number

    def _content(self, value: Any) -> Any:
        kind = type(value)
        inside = entries(value)
        if inside is None:
            return leaf_key(value)
        if kind is dict:
            below: Any = frozenset((leaf_key(key), self.number(child)) for key, child in inside)
        else:
            below = tuple((key, self.number(child)) for key, child in inside)
        if is_node(value):
            tagged = value.__argument_tags__
            tags = frozenset((k, frozenset(v)) for k, v in tagged.items() if v) if tagged else None
            return (kind, id(value.__fn_or_cls__), tags, below)
        return (kind, below)


def leaf_key(value: Any) -> Any:
    """Return a key that two leaves share exactly when they are of one type and equal.

    Not-a-number is like itself, and -0.0 unlike 0.0; arrays are like nothing but themselves.
    """
    # For floats by `repr`, which is exact and has these two properties. The type is part of the
    # key, because Python has 1 == 1.0 == True, with equal hashes.
    kind = type(value)
    if kind in (float, complex, slice):
        return (kind, repr(value))
    if isinstance(value, set | frozenset):
        return (kind, frozenset(leaf_key(child) for child in value))
    if isinstance(value, type):  # some types of numpy and jax are equal to each other
        return (kind, id(value))
    try:
        hash(value)
        return (kind, value if value == value else repr(value))
    except (TypeError, ValueError):
        return (kind, "id", id(value))
