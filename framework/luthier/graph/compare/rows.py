"""The aligned tree of two documents as rows, for side by side and unified views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from luthier.graph.compare import nodes
from luthier.graph.compare.changes import Pair, Row
from luthier.graph.compare.differ import Comparison, holds_node
from luthier.graph.compare.document import Document
from luthier.graph.compare.nodes import ConfigNode
from luthier.graph.paths import join


def rows_of(comparison: Comparison) -> list[Row]:
    """Return the aligned tree of a comparison, line by line, unchanged settings included.

    Args:
      comparison: The result of `compare`.

    Returns:
      Rows in the order of the graph. A shared node is written out at its first place; a container
      without nodes is one row unless something in it differs.
    """
    return list(_Rows(comparison).of_pair(comparison.root, 0))


class _Rows:
    """Writes the rows of one comparison."""

    def __init__(self, comparison: Comparison):
        self.a, self.b = comparison.a, comparison.b
        self.changes = comparison.changes
        drafts = comparison.differ.drafts
        self.index = {id(draft): index for index, draft in enumerate(drafts)}
        self.differing: dict[int, bool] = {}

    def of_pair(self, pair: Pair, depth: int) -> Iterator[Row]:
        """Yield the rows of a place and of the places below it."""
        # A draft that was merged into a move is shown as that move, at both of its places.
        indices = [self.index[id(draft.into or draft)] for draft in pair.changes]
        if pair.a is None or pair.b is None:
            yield from self._of_one_side(pair, depth, indices)
            return
        replaced = [] if pair.below else list(self._replaced(pair, indices))
        differs = bool(pair.below) and (self._differs(pair) or holds_node(pair.b))
        opens = bool(replaced) or differs
        before, after = (_cell(*side, opens) for side in self._sides(pair))
        name = _name(pair.part)
        change = indices[0] if indices else None
        yield Row(depth, pair.path_b, pair.path_a, name, before, after, change, opens)
        for index in indices[1:]:
            yield self._of_change(index, pair, depth)
        for below in pair.below if opens else ():
            yield from self.of_pair(below, depth + 1)
        for is_before, part, child, path in replaced:
            yield from self._of_node(child, path, part, depth + 1, is_before, change)

    def _replaced(
        self, pair: Pair, indices: Sequence[int]
    ) -> Iterator[tuple[bool, Any, ConfigNode, str]]:
        """Yield what is in the sides of a place where one value took the place of another.

        Nothing where they are compared part by part, or where a shared node is met again.
        """
        if any(self.changes[index].kind == "changed" for index in indices):
            sides = zip((True, False), self._sides(pair), strict=True)
            for is_before, (node, path, document) in sides:
                if holds_node(node) and _first(node, path, document) == path:
                    for part, child in node.parts:
                        yield is_before, part, child, join(path, part)  # type: ignore[arg-type]

    def _sides(self, pair: Pair) -> Iterator[tuple[ConfigNode, str, Document]]:
        assert pair.a is not None
        assert pair.b is not None
        yield pair.a, pair.path_a, self.a
        yield pair.b, pair.path_b, self.b

    def _of_change(self, index: int, pair: Pair, depth: int) -> Row:
        change = self.changes[index]
        name = f"{_name(pair.part)} (tags)" if change.kind == "tags" else _name(pair.part)
        return Row(depth, pair.path_b, pair.path_a, name, change.before, change.after, index)

    def _of_one_side(self, pair: Pair, depth: int, indices: Sequence[int]) -> Iterator[Row]:
        change = indices[0] if indices else None
        if pair.a is None and pair.b is None:  # tags, or a default
            if change is not None:
                yield self._of_change(change, pair, depth)
            return
        # An argument that was set to, or reset from, its default exists on one side only, but the
        # row shows the default on the other. Not for a part that moved: it has another side.
        is_before = pair.a is not None
        for row in self._of_node(
            pair.a or pair.b, pair.path_a or pair.path_b, pair.part, depth, is_before, change
        ):
            default = pair.default_b if is_before else pair.default_a
            if row.depth == depth and default is not None and not self._has_moved(indices):
                text = nodes.text_of(default)
                row = dataclasses.replace(row, path=pair.path_b, path_before=pair.path_a)
                if is_before:
                    row = dataclasses.replace(row, after=text)
                else:
                    row = dataclasses.replace(row, before=text)
            yield row

    def _has_moved(self, indices: Sequence[int]) -> bool:
        return any(self.changes[index].kind == "moved" for index in indices)

    def _of_node(
        self, node: Any, path: str, part: Any, depth: int, is_before: bool, change: int | None
    ) -> Iterator[Row]:
        """Yield the rows of a node that exists in one of the two documents only."""
        document = self.a if is_before else self.b
        opens = holds_node(node) and _first(node, path, document) == path and bool(node.parts)
        text = _cell(node, path, document, opens)
        if is_before:
            yield Row(depth, "", path, _name(part), text, None, change, opens)
        else:
            yield Row(depth, path, "", _name(part), None, text, change, opens)
        for key, child in node.parts if opens else ():
            yield from self._of_node(child, join(path, key), key, depth + 1, is_before, change)

    def _differs(self, pair: Pair) -> bool:
        """Return whether something differs at a place or below it."""
        known = self.differing.get(id(pair))
        if known is None:
            known = bool(pair.changes) or any(self._differs(below) for below in pair.below)
            self.differing[id(pair)] = known
        return known


def _first(node: ConfigNode, path: str, document: Document) -> str:
    return document.first_paths.get(id(node), path) if node.is_shared else path


def _cell(node: ConfigNode, path: str, document: Document, opens: bool) -> str:
    if holds_node(node):
        first = _first(node, path, document)
        if first != path:
            return f"{'same settings as' if node.kind == 'partial' else 'same as'} {first}"
    return nodes.head(node) if opens and node.parts else nodes.text_of(node)


def _name(part: Any) -> str:
    return "" if part is None else join("", part)
