"""Export of a graph as a Python module that makes an equal one: imports and one function.

def experiment() -> fdl.Config:
    steps = value(900, name="steps")
    return fdl.Config(program.Experiment, name="quickstart", training=...)

Shared parts become local variables, and so do parts that would be nested too deeply to read.

This does not use Fiddle's code generation, which loses the imports of tags and arrays.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem, RecordError
from luthier.graph import values
from luthier.graph.export import names as importing
from luthier.graph.export.layout import Expression, Group, Text, lay_out, literal, string
from luthier.graph.export.names import Names
from luthier.graph.fingerprint import fingerprint
from luthier.graph.paths import Path, format_path
from luthier.graph.public_names import public_name
from luthier.graph.record.encode import encode
from luthier.graph.values import Graph

KINDS: Mapping[str, str] = {"config": "Config", "partial": "Partial", "factory": "ArgFactory"}
# The functions of value nodes -> the public function that makes such a node.
_MAKERS: Mapping[str, Callable[..., Any]] = {
    "total": values.add,
    "difference": values.subtract,
    "product": values.multiply,
    "quotient": values.true_divide,
    "floor_quotient": values.floor_divide,
    "remainder": values.modulo,
    "raised": values.power,
}
_VALUES = values.__name__
_CONSTANT = f"{_VALUES}.constant"
_CONTAINERS = ("list", "tuple", "set", "frozenset")
# The largest depth of nested brackets that take several lines each.
_DEEPEST = 4


def to_python(graph: Graph, function: str = "experiment") -> str:
    """Return a module with one function that makes an equal graph.

    Args:
      graph: A node or value.
      function: The name of the function.

    Returns:
      Python as ruff formats it. Its graph is equal: classes, values, sharing and tags.

    Raises:
      RecordError: Parts of the graph cannot be named or written; all of them are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> text = graph.to_python(fdl.Config(optim.adamw, learning_rate=3e-4))
      >>> print(text.splitlines()[-1].strip())
      return fdl.Config(optim.adamw, learning_rate=0.0003)
    """
    # From the record, not from the live graph: everything that a record can hold can be written,
    # names are public ones, and sharing has its numbers already. The body is written first, because
    # it decides which imports are used.
    data = encode(graph)
    writer = PythonWriter(data, function)
    result = lay_out(writer.expression(data, ()), 4, len("    return "))
    statements = [*writer.statements, f"return {result}"]
    kind = next((KINDS[key] for key in KINDS if isinstance(data, dict) and key in data), "")
    returns = f" -> {writer.fiddle(kind)}" if kind else ""
    made_of = fingerprint(graph)[:16]
    return "\n".join(
        [
            f'"""Exported by luthier from the graph with the fingerprint {made_of}."""',
            "",
            "from __future__ import annotations",
            "",
            *writer.imports.lines(),
            "",
            "",
            f"def {function}(){returns}:",
            f'    """Return the graph with the fingerprint {made_of}."""',
            *[f"    {statement}" for statement in statements],
            "",
        ]
    )


class PythonWriter:
    """Writes one record as expressions; collects local variables on the way.

    Args:
      data: The JSON value of the record.
      function: The name of the function that is written.
    """

    def __init__(self, data: Any, function: str):
        # All names that imports may bind are known before the first variable is named; otherwise a
        # variable `optim` could shadow the module in the lines below it.
        self.imports = importing.Imports(_names(data))
        taken = {*self.imports.taken(), *importing.ALIASES.values(), "pathlib", "jax", function}
        makers = {"value", *(maker.__name__ for maker in _MAKERS.values())}
        self.names = Names(taken | makers)
        self.statements: list[str] = []
        self.shared: dict[int, str] = {}
        self.annotated: dict[str, dict[str, list[str]]] = {}

    def fiddle(self, name: str) -> str:
        """Return the expression of a function or class of Fiddle.

        Args:
          name: Its name in Fiddle.
        """
        return f"{self.imports.module('fiddle')}.{name}"

    def expression(self, data: Any, path: Path) -> Expression:
        """Return the expression of a value; a variable for a shared one.

        Args:
          data: The JSON of the value.
          path: Its path, from which variables are named.
        """
        # Children are written before their parents, so that a variable is assigned before the
        # statement that uses it. `remove_tag` needs a variable too: an expression of Fiddle's
        # config adds the tags of annotations, and there is none that leaves them out.
        if not isinstance(data, dict):
            if not isinstance(data, list):
                return literal(data, self.imports)
            data = {"list": data}
        if "ref" in data:
            return Text(self.shared[data["ref"]])
        made, lost = self._made(data, path), list(self._lost_tags(data))
        if "id" not in data and not lost:
            return made
        name = self.variable(made, path, wished_name(data))
        for part, tag in lost:
            remove = (
                f"{self.fiddle('remove_tag')}({name}, {string(part)}, {self.imports.name(tag)})"
            )
            self.statements.append(remove)
        if "id" in data:
            self.shared[data["id"]] = name
        return Text(name)

    def variable(self, made: Expression, path: Path, wished: str = "") -> str:
        """Assign an expression to a new variable, and return the variable's name.

        Args:
          made: The expression.
          path: The path of the value, from which the variable is named.
          wished: The value's own name, if it has one.
        """
        name = self.names.give(path, wished)
        self.statements.append(f"{name} = {lay_out(made, 4, 4 + len(name) + 3)}")
        return name

    def _below(self, data: Any, path: Path) -> Expression:
        """Return the expression of a part; a variable where it would be nested too deeply."""
        made = self.expression(data, path)
        is_part_of_root = (
            len(path) == 1 and isinstance(data, dict) and any(k in data for k in KINDS)
        )
        if made.height >= (1 if is_part_of_root else _DEEPEST):
            return Text(self.variable(made, path))
        return made

    def _made(self, data: dict[str, Any], path: Path) -> Expression:
        for key in KINDS:
            if key in data:
                return self._node(key, data, path)
        if "tagged" in data:
            return self._tagged(data["tags"]["value"], data["arguments"], path)
        if "dict" in data:
            return self._dict(data["dict"], path)
        for key in ("instance", "namedtuple"):
            if key in data:
                items = self._keywords(data["fields"], {}, path)
                return Group(f"{self.imports.name(data[key])}(", items, ")", is_call=True)
        for key in _CONTAINERS:
            if key in data:
                return self._sequence(key, data[key], path)
        return literal(data, self.imports)

    def _node(self, kind: str, data: dict[str, Any], path: Path) -> Expression:
        arguments, tags = data["arguments"], data.get("tags", {})
        module, _, name = data[kind].rpartition(".")
        is_plain = kind == "config" and module == _VALUES and not tags
        if is_plain and (made := self._value_node(name, arguments, path)) is not None:
            return made
        target = ("", Text(self.imports.name(data[kind])))
        items = self._keywords(arguments, self._new_tags(data[kind], tags), path)
        return Group(f"{self.fiddle(KINDS[kind])}(", [target, *items], ")", is_call=True)

    def _value_node(self, name: str, arguments: dict[str, Any], path: Path) -> Expression | None:
        """Return a value node as `value(...)` or the like; None where that makes another node."""
        is_constant = name == "constant" and set(arguments) in ({"value"}, {"value", "name"})
        if is_constant and arguments.get("name", "some"):
            named = [("name=", arguments["name"])] if "name" in arguments else []
            return self._call("value", [("", arguments["value"]), *named], path)
        if name in _MAKERS and set(arguments) == {"left", "right"}:
            given = [("", arguments["left"]), ("", arguments["right"])]
            return self._call(_MAKERS[name].__name__, given, path)
        return None

    def _call(self, function: str, given: list[tuple[str, Any]], path: Path) -> Expression:
        items = [(prefix, self._below(part, path)) for prefix, part in given]
        return Group(f"{self.imports.member('luthier.graph', function)}(", items, ")", is_call=True)

    def _keywords(
        self, arguments: dict[str, Any], tags: Mapping[str, list[str]], path: Path
    ) -> list[tuple[str, Expression]]:
        """Return keyword arguments; tagged ones with their tags."""
        # Keywords that are not identifiers go into `**{...}`: functions with `**kwargs` take any.
        items, others = [], []
        for part in dict.fromkeys((*arguments, *tags)):
            of_part = {"value": arguments[part]} if part in arguments else {}
            if _is_tagged(of_part.get("value")):
                what = "a tagged value that is an argument cannot be written as Python"
                remedy = "tag the argument of the node instead, with fdl.add_tag"
                raise RecordError(Problem(what, format_path((*path, part)), remedy=remedy))
            if part in tags:
                made = self._tagged(tags[part], of_part, path, part)
            else:
                made = self._below(of_part["value"], (*path, part))
            if part.isidentifier() and not keyword.iskeyword(part):
                items.append((f"{part}=", made))
            else:
                others.append((f"{string(part)}: ", made))
        return [*items, ("**", Group("{", others, "}"))] if others else items

    def _tagged(
        self, tags: list[str], arguments: dict[str, Any], path: Path, part: str = "value"
    ) -> Expression:
        """Return a value with its tags, as `Tag.new(value)`."""
        value = [("", self._below(x, (*path, part))) for x in arguments.values()]
        names = [("", Text(self.imports.name(tag))) for tag in tags]
        if len(names) == 1:
            return Group(f"{names[0][1].flat}.new(", value, ")", is_call=True)
        items = [("", Group("[", names, "]")), *value]
        return Group(f"{self.fiddle('TaggedValue')}(", items, ")", is_call=True)

    def _new_tags(self, name: str, tags: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return the tags that Fiddle does not add by itself."""
        given = self.annotated_tags(name)
        new = {
            part: [t for t in found if t not in given.get(part, ())] for part, found in tags.items()
        }
        return {part: found for part, found in new.items() if found}

    def annotated_tags(self, name: str) -> dict[str, list[str]]:
        """Return the tags that Fiddle adds to a new node, because of annotations.

        Args:
          name: The public name of the node's class or function.
        """
        if name not in self.annotated:
            tags = fdl.Config(importing.find(name)).__argument_tags__
            self.annotated[name] = {k: sorted(map(public_name, found)) for k, found in tags.items()}
        return self.annotated[name]

    def _lost_tags(self, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (argument, tag) for tags of annotations that the node does not have."""
        kind = next((kind for kind in KINDS if kind in data), None)
        for part, found in self.annotated_tags(data[kind]).items() if kind else ():
            for tag in found:
                if tag not in data.get("tags", {}).get(part, ()):
                    yield part, tag

    def _dict(self, inside: Any, path: Path) -> Expression:
        pairs = list(inside.items()) if isinstance(inside, dict) else inside
        items = []
        for key, child in pairs:
            written = self.expression(key, path)
            text = self.variable(written, path) if written.flat is None else written.flat
            part = key if isinstance(key, str | int) else text
            items.append((f"{text}: ", self._below(child, (*path, part))))
        return Group("{", items, "}")

    def _sequence(self, kind: str, inside: list[Any], path: Path) -> Expression:
        items = [("", self._below(child, (*path, i))) for i, child in enumerate(inside)]
        if kind == "tuple":
            return Group("(", items, ")", comma=len(items) == 1)
        if kind == "list":
            return Group("[", items, "]")
        made = Group("{", items, "}") if items else Text("set()")
        if kind == "set":
            return made
        return Group("frozenset(", [("", made)] if items else [], ")", is_call=True)


def _names(data: Any) -> Iterator[str]:
    """Yield the public names in a record."""
    if isinstance(data, list):
        for child in data:
            yield from _names(child)
    if not isinstance(data, dict):
        return
    for key in (*KINDS, "name", "enum", "instance", "namedtuple"):
        if isinstance(data.get(key), str):
            yield data[key]
    for found in data.get("tags", {}).values():
        yield from found
    for key in ("arguments", "fields", "dict"):
        if isinstance(data.get(key), dict):
            for child in data[key].values():
                yield from _names(child)
    for key in (*_CONTAINERS, "dict"):
        if isinstance(data.get(key), list):
            yield from _names(data[key])


def wished_name(data: dict[str, Any]) -> str:
    """Return the name of a shared constant; empty for anything else.

    Args:
      data: The JSON of a node.
    """
    name = data.get("arguments", {}).get("name") if data.get("config") == _CONSTANT else ""
    return name if isinstance(name, str) else ""


def _is_tagged(data: Any) -> bool:
    return isinstance(data, dict) and "tagged" in data
