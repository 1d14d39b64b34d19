"""A comparison as a fiddler: Python that turns the first graph into the second.

Parts of the first graph that the second has in another place are assigned to variables before
anything is changed.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

from luthier.errors import RecordError
from luthier.graph.compare import nodes
from luthier.graph.compare.differ import Comparison
from luthier.graph.compare.edits import VARIABLE, Edit, Edits, key_data
from luthier.graph.compare.nodes import ConfigNode, Key
from luthier.graph.export.layout import Expression, Text, lay_out, string
from luthier.graph.export.python import KINDS, PythonWriter
from luthier.graph.paths import Path

FUNCTION = "patch"


def patch_of(comparison: Comparison, function: str = FUNCTION) -> str:
    """Return a module with one fiddler (a function that edits the config).

    Args:
      comparison: The result of `compare`.
      function: The name of the fiddler.

    Returns:
      Python. The function takes the first graph, changes it, and returns a graph that is equal to
      the second: classes, values, sharing and tags.

    Raises:
      RecordError: New values cannot be named or written; all of them are listed.
    """
    return _Patch(comparison, function).text()


class _Patch:
    """Writes one fiddler."""

    def __init__(self, comparison: Comparison, function: str):
        self.a, self.b = comparison.a, comparison.b
        self.edits = Edits(comparison)
        if self.edits.problems:
            raise RecordError(self.edits.problems)
        self.function = function
        found = [*(edit.data for edit in self.edits.edits), self.edits.root]
        tags = [edit.tag for edit in self.edits.edits if edit.tag]
        self.writer = _PatchWriter(found, tags, function, comparison.b.is_live)
        self.graph = self.writer.names.give((), "graph")

    def text(self) -> str:
        """Return the module."""
        writer = self.writer
        # Paths lead where they should only as long as nothing has been changed: first variables for
        # all that is taken from elsewhere, then the edits.
        for node in self.edits.captured.values():
            wished = nodes.shared_name(node)
            parts = tuple(str(p) if isinstance(p, Key) else p for p in self.edits.parts(node))
            name = writer.variable(Text(self._place(node)), parts, wished)
            writer.variables[id(node)] = name
        for edit in self.edits.edits:
            writer.statements.append(self._statement(edit))
        is_kept = self.edits.is_root_kept
        returned = Text(self.graph) if is_kept else writer.expression(self.edits.root, ())
        writer.statements.append(f"return {lay_out(returned, 4, len('    return '))}")
        # The roots may differ in kind, and one that is no node is annotated as `object`.
        kinds = [KINDS.get(side.root.kind, "") for side in (self.a, self.b)]
        taken, given = (writer.fiddle(kind) if kind else "object" for kind in kinds)
        # The imports are known only here: each expression above adds those that it needs.
        return "\n".join(
            [
                f'"""Written by `luthier diff`: turns {self.a.fingerprint} '
                f'into {self.b.fingerprint}."""',
                "",
                "from __future__ import annotations",
                "",
                *writer.imports.lines(),
                "",
                "",
                f"def {self.function}({self.graph}: {taken}) -> {given}:",
                f'    """Return the graph {self.b.fingerprint}, made of {self.a.fingerprint}."""',
                *[f"    {statement}" for statement in writer.statements],
                "",
            ]
        )

    def _place(self, node: ConfigNode) -> str:
        """Return the expression that leads to a node of the first graph."""
        if id(node) not in self.edits.above:
            return self.graph
        owner, part = self.edits.above[id(node)]
        place = self._place(owner)
        if owner.kind in ("dict", "list", "tuple") or isinstance(part, int):
            return f"{place}[{self._index(part)}]"
        return f"{place}.{part}" if _is_name(part) else f"getattr({place}, {string(part)})"

    def _statement(self, edit: Edit) -> str:
        # Attribute syntax where the name allows it; `getattr`, `setattr` and `delattr` for keywords
        # that are not identifiers, as functions with `**kwargs` take; brackets for keys of dicts,
        # places of lists, and positional arguments of nodes, which Fiddle indexes by number.
        place, writer = self._place(edit.node), self.writer
        if edit.tag:
            given = f"{place}, {self._index(edit.part)}, {writer.imports.name(edit.tag)}"
            return f"{writer.fiddle(edit.form)}({given})"
        key = self._index(edit.part)
        is_item = not edit.node.is_node or isinstance(edit.part, int)
        by_function = not is_item and not _is_name(edit.part)
        target = f"{place}[{key}]" if is_item else f"{place}.{edit.part}"
        if edit.form == "del":
            return f"delattr({place}, {key})" if by_function else f"del {target}"
        named = (edit.part,) if isinstance(edit.part, str | int) else ()
        parts = tuple(str(p) if isinstance(p, Key) else p for p in self.edits.parts(edit.node))
        made = writer.expression(edit.data, (*parts, *named))
        before, after = f"{target} = ", ""
        if edit.form == "insert":
            before, after = f"{place}.insert({edit.part}, ", ")"
        elif by_function:
            before, after = f"setattr({place}, {key}, ", ")"
        return f"{before}{lay_out(made, 4, 4 + len(before), len(after))}{after}"

    def _index(self, part: Any) -> str:
        """Return a part of a path as it is written in brackets."""
        if isinstance(part, slice):
            return f"{part.start}:{part.stop}"
        if isinstance(part, Key):
            return lay_out(self.writer.expression(key_data(part), ()), 4, 4)
        return string(part) if isinstance(part, str) else repr(part)


class _PatchWriter(PythonWriter):
    """Writes new values as expressions, with variables for parts of the first graph."""

    def __init__(self, data: Sequence[Any], tags: Sequence[str], function: str, is_live: bool):
        super().__init__([*data, *({"name": tag} for tag in tags)], function)
        self.variables: dict[int, str] = {}
        self._is_live = is_live

    def expression(self, data: Any, path: Path) -> Expression:
        """Return the expression of a new value, or the variable of a kept node."""
        if isinstance(data, dict) and VARIABLE in data:
            return Text(self.variables[data[VARIABLE]])
        return super().expression(data, path)

    def annotated_tags(self, name: str) -> dict[str, list[str]]:
        """Return the tags that Fiddle adds to a new node by itself; none where that is unknown."""
        # They follow from annotations of the class, and classes of a record are not imported.
        return super().annotated_tags(name) if self._is_live else {}


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and part.isidentifier() and not keyword.iskeyword(part)
