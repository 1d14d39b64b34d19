"""Edits that turn the first graph into the second, in an order in which they can be applied.

A node that is the same in both is changed in place, and inner nodes are changed before outer ones:
the first path of a node leads to it until its own edits are done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from luthier.errors import Problem
from luthier.graph.compare import nodes
from luthier.graph.compare.differ import Comparison
from luthier.graph.compare.nodes import LEAF, ConfigNode, Key, children
from luthier.graph.record.encode import KINDS
from luthier.graph.values import OPERATIONS

VARIABLE = "variable"
"""Key that marks a reference to a node of the first graph, in the data of a new value."""
UNWRITABLE = "unwritable"
"""Key that marks a value that cannot be written, in the data of a new value."""

_MOST_COPIES = 2_000


@dataclasses.dataclass(frozen=True)
class Edit:
    """One change in place of a node of the first graph.

    Args:
      node: The node that is changed.
      form: `set` or `del` a part; `insert` an element before a place; `add_tag` or `remove_tag`.
      part: The argument, key, place or slice; for tags, the argument.
      data: The new value, as a record with variables; None where there is none.
      tag: The tag.
    """

    node: ConfigNode
    form: Literal["set", "del", "insert", "add_tag", "remove_tag"]
    part: Any
    data: Any = None
    tag: str = ""


class Edits:
    """The edits of one comparison.

    Everything that is new is written as the JSON of a record, in which `VARIABLE` refers to a node
    of the first graph that is kept. `captured` collects those: a patch assigns them to variables
    before anything is changed, overrides refer to them by path.

    Args:
      comparison: The result of `compare`.
    """

    def __init__(self, comparison: Comparison):
        self.a, self.b = comparison.a.root, comparison.b.root
        self.differ = comparison.differ
        self.problems: list[Problem] = []
        self.captured: dict[int, ConfigNode] = {}
        # The first place of each node of the first document: its parent, and the key there.
        self.above: dict[int, tuple[ConfigNode, Any]] = {}
        # All places of each list of the first document, once for each node that holds it.
        self.holders: dict[int, list[tuple[ConfigNode, Any]]] = {}
        # The number of places of each shared node of the second document.
        self.places: dict[int, int] = {}
        self._first_paths = comparison.b.first_paths
        self._known_same: dict[tuple[int, int], bool] = {}
        self.is_root_kept = self._same(self.a, self.b)
        self._ids: dict[int, int] = {}
        # How many nodes may still be copied into a value without sharing; None while there is any.
        self._copies_left: int | None = None
        order: list[ConfigNode] = []
        self._visit(self.a, order)
        self._count(self.b)
        self.edits = [edit for node in order for edit in self._edits(node)]
        self.root = None if self.is_root_kept else self.data(self.b)

    def parts(self, node: ConfigNode) -> tuple[Any, ...]:
        """Return the first path of a node of the first graph, part by part."""
        parts: list[Any] = []
        while id(node) in self.above:
            node, part = self.above[id(node)]
            parts.append(part)
        return tuple(reversed(parts))

    def data(self, node: ConfigNode) -> Any:
        """Return the JSON of a node of the second graph, with variables for kept nodes."""
        # A node that both graphs have is not written again but referred to, which keeps its
        # identity, its history and whatever else refers to it. A new node with several places is
        # written once, with an "id" that the others refer to, as in a record.
        kept = self.differ.kept_b.get(id(node)) if node.is_shared else None
        if kept is not None:
            self.captured[id(kept)] = kept
            return {VARIABLE: id(kept)}
        if self._copies_left is not None:
            if node.is_value_node:
                return self._value(node)
            self._copies_left -= 1
            if self._copies_left < 0:
                raise ValueError
        if node.kind == LEAF:
            if isinstance(node.data, dict) and "object" in node.data:
                return self._unwritable(node, "has no form that code can write")
            return node.data
        if node.name and node.content != (node.kind, node.name):
            return self._unwritable(node, "has no public name")
        is_repeated = node.is_shared and self.places[id(node)] > 1 and self._copies_left is None
        if is_repeated and id(node) in self._ids:
            return {"ref": self._ids[id(node)]}
        number = len(self._ids) + 1
        if is_repeated:
            self._ids[id(node)] = number
        data = self._inside(node)
        return {"id": number, **data} if is_repeated else data

    def fresh(self, node: ConfigNode) -> Any:
        """Return the JSON of a node of the second graph as if all of it were new.

        Returns:
          None where a node in it is shared with other places.
        """
        # `data` looks up what is kept in the differ; without any, it writes everything out.
        kept, self.differ.kept_b = self.differ.kept_b, {}
        try:
            return None if self._holds_shared(node) else self.data(node)
        finally:
            self.differ.kept_b = kept

    def plain(self, node: ConfigNode) -> Any:
        """Return the JSON of a node of the second graph with value nodes replaced by their values.

        The result has no sharing: each user of a shared value or node has a copy of it.

        Returns:
          None where a value cannot be computed, or the copies are too many.
        """
        kept, self.differ.kept_b = self.differ.kept_b, {}
        # Nodes that share nodes at every level would have copies without end.
        self._copies_left = _MOST_COPIES
        try:
            return self.data(node)
        except (ArithmeticError, TypeError, ValueError):
            return None
        finally:
            self.differ.kept_b, self._copies_left = kept, None

    def _value(self, node: ConfigNode) -> Any:
        """Return the value of a value node, as JSON."""
        if not node.is_value_node:
            return self.data(node)
        if "right" not in node.by_part:
            return self._value(node.by_part["value"])
        sides = [self._value(node.by_part[side]) for side in ("left", "right")]
        (compute,) = (made for made in OPERATIONS if node.name.endswith(f".{made.__name__}"))
        return compute(*sides)

    def _holds_shared(self, node: ConfigNode) -> bool:
        is_shared = node.is_shared and self.places[id(node)] > 1
        return is_shared or any(self._holds_shared(child) for child in children(node))

    def _visit(self, node: ConfigNode, order: list[ConfigNode]) -> None:
        # Post-order: the edits of a node come after those of everything in it.
        for part, child in node.parts:
            if child.kind == "list":
                self.holders.setdefault(id(child), []).append((node, part))
            if child.kind != LEAF and id(child) not in self.above and child is not self.a:
                self.above[id(child)] = (node, part)
                self._visit(child, order)
        if id(node) in self.differ.kept_a:
            order.append(node)

    def _count(self, node: ConfigNode) -> None:
        if node.is_shared:
            self.places[id(node)] = self.places.get(id(node), 0) + 1
            if self.places[id(node)] > 1:
                return
        for child in children(node):
            self._count(child)

    def _same(self, a: ConfigNode, b: ConfigNode) -> bool:
        """Return whether a place that holds `a` need not be set to hold `b`."""
        # A kept node is edited in place, so its place stays as it is, whatever changes inside.
        if a.is_shared or b.is_shared:
            return self.differ.kept_b.get(id(b)) is a
        if a.kind in (LEAF, "set", "frozenset") or a.content != b.content:
            return self.differ.number(a) == self.differ.number(b)
        key = (id(a), id(b))
        if key not in self._known_same:
            self._known_same[key] = a.by_part.keys() == b.by_part.keys() and all(
                self._same(child, b.by_part[part]) for part, child in a.parts
            )
        return self._known_same[key]

    def _edits(self, a: ConfigNode) -> Iterator[Edit]:
        b = self.differ.kept_a[id(a)]
        if a.kind == "list":
            yield from self._list_edits(a, b)
            return
        for part, _ in a.parts:
            if part not in b.by_part:
                yield Edit(a, "del", part)
        for part, child in b.parts:
            old = a.by_part.get(part)
            if old is None or not self._same(old, child):
                yield Edit(a, "set", part, self.data(child))
        for part in dict.fromkeys(part for part, _ in (*a.tags, *b.tags)):
            old_tags, new_tags = a.tags_of(part), b.tags_of(part)
            for tag in old_tags:
                if tag not in new_tags:
                    yield Edit(a, "remove_tag", part, tag=tag)
            for tag in new_tags:
                if tag not in old_tags:
                    yield Edit(a, "add_tag", part, tag=tag)

    def _list_edits(self, a: ConfigNode, b: ConfigNode) -> Iterator[Edit]:
        # Elements are set one by one if none changes its place. Else the stretch between the common
        # head and tail is replaced as a whole: several insertions and deletions would shift each
        # other's places.
        old, new = children(a), children(b)
        if len(old) == len(new) and not self._is_reordered(old, new):
            for index, (left, right) in enumerate(zip(old, new, strict=True)):
                if not self._same(left, right):
                    yield Edit(a, "set", index, self.data(right))
            return
        shorter = min(len(old), len(new))
        head = 0
        while head < shorter and self._same(old[head], new[head]):
            head += 1
        tail = 0
        while tail < shorter - head and self._same(old[-1 - tail], new[-1 - tail]):
            tail += 1
        # The tail stops short of the head, as in `[x] -> [x, x]`; not both stretches are empty.
        # One edit may shift places: the nodes in the list have been edited before it (inner ones
        # first), those used elsewhere were captured, and an override writes the whole list.
        inserted = [self.data(child) for child in new[head : len(new) - tail]]
        end = len(old) - tail
        if not inserted:
            yield Edit(a, "del", head if end == head + 1 else slice(head, end))
        elif end == head and len(inserted) == 1:
            yield Edit(a, "insert", head, inserted[0])
        else:
            yield Edit(a, "set", slice(head, end), {"list": inserted})

    def _is_reordered(self, old: list[ConfigNode], new: list[ConfigNode]) -> bool:
        """Return whether an element moved to another place of its list."""
        places = list(zip(old, new, strict=True))
        changed = [(left, right) for left, right in places if not self._same(left, right)]
        gone = {id(left) for left, _ in changed}
        gone -= {id(left) for left, right in places if self._same(left, right)}
        return any(id(self.differ.kept_b.get(id(right))) in gone for _, right in changed)

    def _inside(self, node: ConfigNode) -> dict[str, Any]:
        if node.kind == "dict":
            if all(type(part) is str for part, _ in node.parts):
                return {"dict": {part: self.data(child) for part, child in node.parts}}
            pairs = [[key_data(part), self.data(child)] for part, child in node.parts]
            return {"dict": pairs}
        if not node.is_node and node.kind not in ("instance", "namedtuple"):
            return {node.kind: [self.data(child) for child in children(node)]}
        given = {part: self.data(child) for part, child in node.parts}
        if not node.is_node:
            return {node.kind: node.name, "fields": given}
        if not all(isinstance(part, str) for part in given) or node.kind not in KINDS.values():
            return self._unwritable(node, "is a node that code cannot write")
        if node.kind == "tagged" and not node.tags:
            return self._unwritable(node, "has no tag")
        tags = {"tags": {part: list(found) for part, found in node.tags}} if node.tags else {}
        return {node.kind: node.name, **tags, "arguments": given}

    def _unwritable(self, node: ConfigNode, why: str) -> dict[str, Any]:
        what = f"{nodes.text_of(node)[:60]} {why}"
        self.problems.append(Problem(what, self._first_paths.get(id(node), "")))
        return {UNWRITABLE: what}


def key_data(part: Any) -> Any:
    """Return the JSON of a key of a dict.

    Args:
      part: The key, as documents hold it.
    """
    return _key_data(part.node) if isinstance(part, Key) else part


def _key_data(node: ConfigNode) -> Any:
    if node.kind == LEAF:
        return node.data
    given = {part: _key_data(child) for part, child in node.parts}
    if node.kind in ("instance", "namedtuple"):
        return {node.kind: node.name, "fields": given}
    return {node.kind: list(given.values())}
