"""The edits that make the second graph of the first, in an order in which they can be done.

What is the same thing in both is changed in place, and what is inside is changed before what is
around it: the first path of a thing leads to it until its own edits are done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from luthier.errors import Problem
from luthier.graph.compare import things
from luthier.graph.compare.differ import Comparison
from luthier.graph.compare.things import LEAF, ConfigNode, Key, children
from luthier.graph.record.encode import KINDS
from luthier.graph.values import OPERATIONS

VARIABLE = "variable"
"""The telling key of a part of the first graph, in the data of what is new."""
UNWRITABLE = "unwritable"
"""The telling key of what cannot be written, in the data of what is new."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """One change in place of something of the first graph.

    Args:
      thing: What is changed.
      form: `set` or `del` a part; `insert` an element before a place; `add_tag` or `remove_tag`.
      part: The argument, key, place or slice; for tags, the argument.
      data: The new value, as a record with variables; None where there is none.
      tag: The tag.
    """

    thing: ConfigNode
    form: Literal["set", "del", "insert", "add_tag", "remove_tag"]
    part: Any
    data: Any = None
    tag: str = ""


class Edits:
    """Finds the edits of one comparison.

    Args:
      comparison: What `compare` returned.
    """

    def __init__(self, comparison: Comparison):
        self.a, self.b = comparison.a.root, comparison.b.root
        self.differ = comparison.differ
        self.problems: list[Problem] = []
        self.captured: dict[int, ConfigNode] = {}
        self.above: dict[
            int, tuple[ConfigNode, Any]
        ] = {}  # the first place of each thing of the first
        self.places: dict[int, int] = {}  # how many places things of the second have
        self._first_paths = comparison.b.first_paths
        self._known_same: dict[tuple[int, int], bool] = {}
        self.is_root_kept = self._same(self.a, self.b)
        self._ids: dict[int, int] = {}
        self._is_plain = False
        order: list[ConfigNode] = []
        self._visit(self.a, order)
        self._count(self.b)
        self.edits = [edit for thing in order for edit in self._edits(thing)]
        self.root = None if self.is_root_kept else self.data(self.b)

    def parts(self, thing: ConfigNode) -> tuple[Any, ...]:
        """Return the first path of a thing of the first graph, part by part."""
        parts: list[Any] = []
        while id(thing) in self.above:
            thing, part = self.above[id(thing)]
            parts.append(part)
        return tuple(reversed(parts))

    def data(self, thing: ConfigNode) -> Any:
        """Return the JSON of something of the second graph, with variables for what is kept."""
        kept = self.differ.kept_b.get(id(thing)) if thing.is_shared else None
        if kept is not None:
            self.captured[id(kept)] = kept
            return {VARIABLE: id(kept)}
        if self._is_plain and thing.is_value_node:
            return self._value(thing)
        if thing.kind == LEAF:
            if isinstance(thing.data, dict) and "object" in thing.data:
                return self._unwritable(thing, "has no form that code can write")
            return thing.data
        if thing.name and thing.content != (thing.kind, thing.name):
            return self._unwritable(thing, "has no public name")
        is_repeated = thing.is_shared and self.places[id(thing)] > 1
        if is_repeated and id(thing) in self._ids:
            return {"ref": self._ids[id(thing)]}
        number = len(self._ids) + 1
        if is_repeated:
            self._ids[id(thing)] = number
        data = self._inside(thing)
        return {"id": number, **data} if is_repeated else data

    def fresh(self, thing: ConfigNode) -> Any:
        """Return the JSON of something of the second graph as if all of it were new.

        Returns:
          None where something in it stands in other places too.
        """
        kept, self.differ.kept_b = self.differ.kept_b, {}
        try:
            return None if self._holds_shared(thing) else self.data(thing)
        finally:
            self.differ.kept_b = kept

    def plain(self, thing: ConfigNode) -> Any:
        """Return the JSON of something of the second graph with values in the place of value nodes.

        What shares a value there has a copy of it here.

        Returns:
          None where a value cannot be computed.
        """
        kept, self.differ.kept_b = self.differ.kept_b, {}
        self._is_plain = True
        try:
            return self.data(thing)
        except (ArithmeticError, TypeError, ValueError):
            return None
        finally:
            self.differ.kept_b, self._is_plain = kept, False

    def _value(self, thing: ConfigNode) -> Any:
        """Return the value that a value node stands for, as JSON."""
        if not thing.is_value_node:
            return self.data(thing)
        if "right" not in thing.by_part:
            return self._value(thing.by_part["value"])
        sides = [self._value(thing.by_part[side]) for side in ("left", "right")]
        (compute,) = (made for made in OPERATIONS if thing.name.endswith(f".{made.__name__}"))
        return compute(*sides)

    def _holds_shared(self, thing: ConfigNode) -> bool:
        is_shared = thing.is_shared and self.places[id(thing)] > 1
        return is_shared or any(self._holds_shared(child) for child in children(thing))

    def _visit(self, thing: ConfigNode, order: list[ConfigNode]) -> None:
        for part, child in thing.parts:
            if child.kind != LEAF and id(child) not in self.above and child is not self.a:
                self.above[id(child)] = (thing, part)
                self._visit(child, order)
        if id(thing) in self.differ.kept_a:
            order.append(thing)

    def _count(self, thing: ConfigNode) -> None:
        if thing.is_shared:
            self.places[id(thing)] = self.places.get(id(thing), 0) + 1
            if self.places[id(thing)] > 1:
                return
        for child in children(thing):
            self._count(child)

    def _same(self, a: ConfigNode, b: ConfigNode) -> bool:
        """Say whether a place that holds `a` need not be set to hold `b`."""
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
        inserted = [self.data(child) for child in new[head : len(new) - tail]]
        end = len(old) - tail
        if not inserted:
            yield Edit(a, "del", head if end == head + 1 else slice(head, end))
        elif end == head and len(inserted) == 1:
            yield Edit(a, "insert", head, inserted[0])
        else:
            yield Edit(a, "set", slice(head, end), {"list": inserted})

    def _is_reordered(self, old: list[ConfigNode], new: list[ConfigNode]) -> bool:
        """Say whether an element of a list left its place for another one of the list."""
        places = list(zip(old, new, strict=True))
        changed = [(left, right) for left, right in places if not self._same(left, right)]
        gone = {id(left) for left, _ in changed}
        gone -= {id(left) for left, right in places if self._same(left, right)}
        return any(id(self.differ.kept_b.get(id(right))) in gone for _, right in changed)

    def _inside(self, thing: ConfigNode) -> dict[str, Any]:
        if thing.kind == "dict":
            if all(type(part) is str for part, _ in thing.parts):
                return {"dict": {part: self.data(child) for part, child in thing.parts}}
            pairs = [[key_data(part), self.data(child)] for part, child in thing.parts]
            return {"dict": pairs}
        if not thing.is_node and thing.kind not in ("instance", "namedtuple"):
            return {thing.kind: [self.data(child) for child in children(thing)]}
        given = {part: self.data(child) for part, child in thing.parts}
        if not thing.is_node:
            return {thing.kind: thing.name, "fields": given}
        if not all(isinstance(part, str) for part in given) or thing.kind not in KINDS.values():
            return self._unwritable(thing, "is a node that code cannot write")
        if thing.kind == "tagged" and not thing.tags:
            return self._unwritable(thing, "has no tag")
        tags = {"tags": {part: list(found) for part, found in thing.tags}} if thing.tags else {}
        return {thing.kind: thing.name, **tags, "arguments": given}

    def _unwritable(self, thing: ConfigNode, why: str) -> dict[str, Any]:
        what = f"{things.text_of(thing)[:60]} {why}"
        self.problems.append(Problem(what, self._first_paths.get(id(thing), "")))
        return {UNWRITABLE: what}


def key_data(part: Any) -> Any:
    """Return the JSON of a key of a dict."""
    return _key_data(part.thing) if isinstance(part, Key) else part


def _key_data(thing: ConfigNode) -> Any:
    if thing.kind == LEAF:
        return thing.data
    given = {part: _key_data(child) for part, child in thing.parts}
    if thing.kind in ("instance", "namedtuple"):
        return {thing.kind: thing.name, "fields": given}
    return {thing.kind: list(given.values())}
