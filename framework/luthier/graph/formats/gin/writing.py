"""Export of a graph as a gin file, which gin accepts and `from_gin` reads back to an equal graph.

    dim = 256

    luthier.models.Decoder:
        dim = %dim
        norm = @luthier.layers.RMSNorm

A class that occurs more than once gets a scope for each node. Constants are macros, and arithmetic
on them is calls of functions. What gin cannot express (tags, sharing, dtypes) is written as
directives, in comments that begin with `# luthier:`; the head of the file counts them.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph import values
from luthier.graph.export.names import Names, find, split
from luthier.graph.export.python import wished_name
from luthier.graph.formats.gin.statements import VERSION
from luthier.graph.paths import Path, format_path
from luthier.graph.record.encode import encode
from luthier.graph.values import Graph

_WIDTH = 100
_NODES = ("config", "partial", "factory", "instance", "namedtuple")
_CONSTANT = f"{values.__name__}.constant"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def to_gin(graph: Graph) -> str:
    """Return a graph as a gin file.

    Args:
      graph: A node.

    Returns:
      Text that `gin.parse_config` accepts, and that `from_gin` reads to an equal graph.

    Raises:
      RecordError: Parts of the graph cannot be named or written; all of them are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> print(graph.to_gin(fdl.Config(optim.adamw, learning_rate=3e-4)), end="")
      # Written by luthier: gin.parse_config accepts it, luthier reads it to an equal graph.
      # luthier: format 1
      # luthier: root @luthier.optim.adamw()
      from __gin__ import dynamic_registration
      <BLANKLINE>
      import luthier.optim
      <BLANKLINE>
      <BLANKLINE>
      luthier.optim.adamw:
          learning_rate = 0.0003
    """
    data = encode(graph)
    if not isinstance(data, dict) or not any(kind in data for kind in _NODES[:3]):
        raise RecordError(Problem("only a node can be written as gin", remedy="show what holds it"))
    writer = _Writer(data)
    root = writer.node(data, ())
    if writer.problems:
        raise RecordError(writer.problems)
    return "\n".join(_lines(writer, root))


def _lines(writer: _Writer, root: str) -> Iterator[str]:
    """Yield the lines of the file."""
    yield "# Written by luthier: gin.parse_config accepts it, luthier reads it to an equal graph."
    counts = collections.Counter(kind for kind, _ in writer.directives)
    if counts:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))
        yield f"# Directives for luthier, which gin ignores: {kinds}."
    yield f"# luthier: format {VERSION}"
    yield f"# luthier: root {root}"
    # With gin's dynamic registration, the classes need no `@gin.configurable`: gin resolves names
    # by the imports of the file.
    yield "from __gin__ import dynamic_registration"
    yield ""
    yield from (f"import {module}" for module in sorted(writer.modules))
    yield ""
    yield from (f"# luthier: {kind} {text}" for kind, text in writer.directives)
    yield from writer.macros
    for head, bindings in writer.blocks:
        yield ""
        yield f"{head}:"
        for argument, value in bindings:
            yield from _bound(f"    {argument} = ", value)
    yield ""


def _bound(head: str, value: Any) -> Iterator[str]:
    """Yield the lines of one binding; a long list, tuple or dict has a line for each entry."""
    text = str(value)
    if len(head) + len(text) <= _WIDTH or not isinstance(value, _Group) or not value.items:
        yield head + text
        return
    pad = " " * (len(head) - len(head.lstrip()) + 4)
    yield head + value.opening
    for name, item in value.items:
        *lines, last = _bound(f"{pad}{name}", item)
        yield from lines
        yield f"{last},"
    yield f"{pad[4:]}{value.closing}"


class _Group:
    """A list, tuple or dict: (`'key': ` or nothing, entry)."""

    def __init__(self, opening: str, items: list[tuple[str, Any]], closing: str):
        self.opening, self.items, self.closing = opening, items, closing

    def __str__(self) -> str:
        inside = ", ".join(f"{name}{item}" for name, item in self.items)
        is_single = self.opening == "(" and len(self.items) == 1
        return f"{self.opening}{inside}{',' if is_single else ''}{self.closing}"


class _Writer:
    """Turns the objects of a record into blocks, macros and directives."""

    def __init__(self, data: Any):
        self.modules: set[str] = set()
        self.directives: list[tuple[str, str]] = []
        self.macros: list[str] = []
        self.blocks: list[tuple[str, list[tuple[str, Any]]]] = []
        self.problems: list[Problem] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._count(data)
        self._names = Names(("gin", "macro"))
        self._shared: dict[int, str] = {}
        self._values: dict[str, str] = {}

    def _count(self, data: Any) -> None:
        """Count how often each class and function occurs.

        A binding without a scope is for every use of a name, so only a name that occurs once can be
        written without one.
        """
        if isinstance(data, list):
            for item in data:
                self._count(item)
        if not isinstance(data, dict):
            return
        kind = next((kind for kind in _NODES if kind in data), "name")
        if kind in data:
            self._counts[data[kind]] += 1
        for inside in ("arguments", "fields", "dict"):
            if isinstance(data.get(inside), dict):
                self._count(list(data[inside].values()))
        for inside in ("list", "tuple", "dict"):
            self._count(data.get(inside) if isinstance(data.get(inside), list) else None)

    def text(self, data: Any, path: Path) -> Any:
        """Return the JSON of a value as gin writes it.

        Args:
          data: The JSON.
          path: Its path, from which names of scopes and macros are made.
        """
        if isinstance(data, list):
            return _Group("[", self._items(data, path), "]")
        if not isinstance(data, dict):
            return _scalar(data)
        if "ref" in data:
            return f"%{self._shared[data['ref']]}"
        if _is_simple_constant(data):
            return self._constant(data, path)
        if "id" in data:
            return self._share(data, path)
        return self._made(data, path)

    def _made(self, data: dict[str, Any], path: Path) -> Any:
        if any(kind in data for kind in _NODES):
            return self.node(data, path)
        if "list" in data:
            return self.text(data["list"], path)
        if "tuple" in data:
            return _Group("(", self._items(data["tuple"], path), ")")
        if "dict" in data:
            return self._dict(data["dict"], path)
        if "name" in data:
            return self._named(data["name"])
        if "enum" in data and _IDENTIFIER.fullmatch(str(data.get("member", ""))):
            return f"%{self._noted(data['enum'])}.{data['member']}"
        # Gin reads Python literals, which have none for infinity; a float that overflows is
        # infinite. NaN has no such spelling, and is written as a directive.
        if data.keys() == {"float"} and "inf" in data["float"]:
            return data["float"].replace("inf", "1e999")
        return self._value(data, path)

    def _items(self, data: list[Any], path: Path) -> list[tuple[str, Any]]:
        return [("", self.text(item, (*path, index))) for index, item in enumerate(data)]

    def _dict(self, inside: Any, path: Path) -> _Group:
        pairs = inside.items() if isinstance(inside, dict) else inside
        items = []
        for key, child in pairs:
            part = key if isinstance(key, str | int) else "key"
            items.append((f"{self.text(key, path)}: ", self.text(child, (*path, part))))
        return _Group("{", items, "}")

    def node(self, data: dict[str, Any], path: Path) -> str:
        """Return the reference to a node, and add the block with its bindings.

        Args:
          data: The JSON of the node.
          path: Its path.
        """
        kind = next(kind for kind in _NODES if kind in data)
        is_instance = kind in ("instance", "namedtuple")
        target = self._noted(data[kind])
        is_alone = self._counts[data[kind]] == 1
        scoped = target if is_alone else f"{self._names.give(path)}/{target}"
        # Children add their blocks while the bindings of their parent are written. The parent's is
        # inserted before them, so that the file reads from the root down.
        place = len(self.blocks)
        bindings = []
        for argument, child in data["fields" if is_instance else "arguments"].items():
            if not _IDENTIFIER.fullmatch(argument):
                at = format_path((*path, argument))
                self.problems.append(Problem(f"gin has no argument called {argument!r}", at))
            bindings.append((argument, self.text(child, (*path, argument))))
        if bindings:
            self.blocks.insert(place, (scoped, bindings))
        if is_instance:
            self.directives.append(("instance", scoped))
        # `@f` of a function to which nothing is bound is read as the function itself, while that of
        # a class is read as a template.
        elif kind == "factory" or (kind == "partial" and not bindings and _is_function(target)):
            self.directives.append((kind, scoped))
        for argument, tags in data.get("tags", {}).items():
            self.directives += [("tag", f"{scoped}.{argument} {self._noted(t)}") for t in tags]
        return f"@{scoped}{'' if kind in ('partial', 'factory') else '()'}"

    def _constant(self, data: dict[str, Any], path: Path) -> str:
        """Return the macro of a constant."""
        # The macro is named like the constant if that is possible; a directive keeps the real name
        # where it is not (it is taken, or not an identifier, or the constant has none).
        given = data["arguments"]
        name = self._names.give(path, given.get("name", ""))
        if "id" in data:
            self._shared[data["id"]] = name
        inside = self.text(given["value"], path)
        self.macros += _bound(f"{name} = ", inside)
        if given.get("name") != name:
            self.directives.append(("called", f"{name} {json.dumps(given.get('name'))}"))
        return f"%{name}"

    def _share(self, data: dict[str, Any], path: Path) -> str:
        """Return the macro of a shared value or node."""
        made = {key: value for key, value in data.items() if key != "id"}
        name = self._shared[data["id"]] = self._names.give(path, wished_name(data))
        text = self._made(made, path)
        # A value that is a macro already (an enum member, a directive's value) needs no second one.
        if isinstance(text, str) and text.startswith("%") and "(" not in text:
            self._shared[data["id"]] = text[1:]  # it has a name already
            return text
        self.macros += _bound(f"{name} = ", text)
        self.directives.append(("shared", name))
        return f"%{name}"

    def _named(self, name: str) -> str:
        # `@Name` of a class would be read as a template, so an object that is no function is named
        # by `%`. A function `@name` must not pick up the bindings of a node of the same function:
        # it gets a scope in which nothing is bound.
        target = self._noted(name)
        if not _is_function(target):
            return f"%{target}"
        if self._counts[name] == 1:
            return f"@{target}"
        return f"@{self._plain_scope()}/{target}"

    def _plain_scope(self) -> str:
        """Return a scope in which nothing is bound."""
        if "" not in self._values:
            self._values[""] = self._names.give((), "plain")
        return self._values[""]

    def _noted(self, name: str) -> str:
        module, _ = split(name)
        if module != "builtins":
            self.modules.add(module)
        return name

    def _value(self, data: dict[str, Any], path: Path) -> str:
        """Return the macro of a value that gin cannot express, with its directive."""
        text = json.dumps(data)
        if '"ref"' in text:
            what = "is shared inside of a value that gin cannot express"
            self.problems.append(Problem(what, format_path(path)))
        if text not in self._values:
            self._values[text] = self._names.give(path)
            self.directives.append(("value", f"{self._values[text]} {text}"))
        return f"%{self._values[text]}"


def _is_simple_constant(data: dict[str, Any]) -> bool:
    """Return whether a node is one that `graph.value` makes of a plain value."""
    if data.get("config") != _CONSTANT or "tags" in data:
        return False
    given = data["arguments"]
    return (
        given.keys() <= {"value", "name"}
        and "value" in given
        and isinstance(given.get("name", ""), str)
        and given.get("name") != ""
        and _is_literal(given["value"])
    )


def _is_literal(data: Any) -> bool:
    """Return whether a value is a literal, which a macro can hold and share."""
    if isinstance(data, list):
        return all(map(_is_literal, data))
    if not isinstance(data, dict):
        return True
    if "tuple" in data and "id" not in data:
        return all(map(_is_literal, data["tuple"]))
    return data.keys() == {"float"} and "inf" in data["float"]


def _is_function(name: str) -> bool:
    found = find(name)
    return callable(found) and not isinstance(found, type)


def _scalar(data: Any) -> str:
    return repr(data)
