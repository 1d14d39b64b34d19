"""Overrides: a graph and statements such as `optimizer.b2=0.95` in, a changed copy out.

The one function through which every front end edits a graph: the command line, gin, ConfigDict
and sweeps. All statements are read first, then applied in order; all that is wrong is reported
together.
The forms are listed in `luthier.graph.grammar.statements` and `luthier.graph.grammar.literals`.

A statement on a constant (`luthier.graph.value`) changes the constant, so all its users move; `:=`
replaces it at this one path. A plain value cannot replace a node by `=`, and by `:=` only where the
annotation admits it. A new key of a dict needs `:=`, so that a misspelt key is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from luthier.errors import BadInput, OverrideError, Problem
from luthier.graph import signatures, values
from luthier.graph.edits import copies, origins, setting, sharing
from luthier.graph.grammar import arithmetic, expressions, fitting, literals, selection, types
from luthier.graph.grammar.statements import Statement, parse_statement
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import (
    Path,
    Place,
    child_of,
    children,
    format_path,
    is_container,
    is_dataclass_instance,
    is_node,
    join,
    locate,
    nearest,
    parse_path,
    unknown_path,
)
from luthier.graph.signatures import UNSET

Override = str | tuple[str, Any]


def apply(graph: Any, overrides: Sequence[Override], origin: str = "argument") -> Any:
    """Return a copy of `graph` with every override applied, in order.

    Args:
      graph: A node; it is not changed. Sharing, tags and history are kept in the copy.
      overrides: Statements (`optimizer.b2=0.95`), or pairs of a path and a Python value.
      origin: What overrides are called in the history and in errors: the third one is
        `argument 3: optimizer.b2=0.95`.

    Raises:
      OverrideError: One or more cannot be read or applied; all problems are in it.
    """
    problems: list[Problem] = []
    statements: list[tuple[Statement, str]] = []
    for index, override in enumerate(overrides, 1):
        text = override if isinstance(override, str) else f"{override[0]}={override[1]!r}"
        where = f"{origin} {index}: {text.strip()}"
        try:
            if isinstance(override, str):
                statements.append((parse_statement(override), where))
            else:
                read = Statement("path", override[0], "=", "", override[1], has_value=True)
                statements.append((read, where))
        except Unreadable as error:
            problems.append(dataclasses.replace(error.problem, origin=where))
    editor = _Editor(copies.copy_graph(graph))
    for statement, where in statements:
        try:
            editor.apply(statement, where)
        except Unreadable as error:
            problems.append(dataclasses.replace(error.problem, origin=where))
        except BadInput as error:
            problems += [dataclasses.replace(problem, origin=where) for problem in error.problems]
    if problems:
        raise OverrideError(problems)
    return editor.graph


class _Editor:
    """Applies statements to a graph in place."""

    def __init__(self, graph: Any):
        self.graph = graph
        self._places: list[Place] | None = None
        self._read_before: dict[Any, Any] = {}

    def apply(self, statement: Statement, where: str) -> None:
        """Apply one statement to every place that it is about."""
        self._read_before.clear()
        if statement.selector == "path":
            places = [self._find(parse_path(statement.target), statement)]
        else:
            found = selection.select(self.graph, statement, self._every_place)
            # What earlier statements set is not in the places that were found before them.
            places = [place._replace(value=child_of(place.owner, place.part)[0]) for place in found]
        for place in places:
            try:
                self._edit(place, statement, where)
            except Unreadable as error:
                problem = error.problem
                if not problem.path:
                    problem = dataclasses.replace(problem, path=place.path)
                raise Unreadable(problem) from error

    def _every_place(self) -> list[Place]:
        if self._places is None:
            self._places = selection.every_place(self.graph)
        return self._places

    def _find(self, parts: Path, statement: Statement) -> Place:
        place, depth = locate(self.graph, parts)
        if not parts:
            raise Unreadable("the graph itself cannot be replaced")
        if depth == len(parts):
            return place
        is_new_key = depth == len(parts) - 1 and isinstance(place.value, dict)
        if is_new_key and isinstance(parts[-1], str):
            if statement.operator == ":=":
                return Place(format_path(parts), UNSET, place.value, parts[-1], place.is_default)
            remedy = f"to add a key, write {format_path(parts)}:=..."
            near = nearest(parts[-1], [key for key in place.value if isinstance(key, str)])
            near = [join(place.path, key) for key in near]
            raise Unreadable(Problem("does not exist", format_path(parts), "", remedy, near))
        leaves, places = _is_scalar(statement), _Lazy(self._every_place)
        raise Unreadable(unknown_path(self.graph, parts, depth, place.value, leaves, places))

    def _edit(self, place: Place, statement: Statement, where: str) -> None:
        if statement.operator == "~":
            setting.reset(self.graph, place.path, where)
            self._places = None
            return
        annotation = annotation_at(self.graph, place)
        start = origins.now()
        source = "" if statement.has_value else _alias_of(statement.text)
        if source:
            value = sharing.alias(self.graph, parse_path(place.path), parse_path(source))
            fitting.check(value, annotation)
            self._put(place, value, where, at_constant=False)
            return
        if statement.operator in ("+=", "-=", "*="):
            value = self._combined(place, annotation, statement)
        else:
            value = self._read(place, annotation, statement)
        if statement.operator != ":=":
            _refuse_scalar_on_node(place, value, annotation)
        fitting.check(value, fitting.expected(annotation, place.value))
        if values.is_value_node(value):
            into_constant = statement.operator != ":="
            sharing.refuse_circle(self.graph, parse_path(place.path), value, into_constant)
        if not statement.has_value:
            origins.stamp_since(start, value, where)
        self._put(place, value, where, at_constant=statement.operator != ":=")

    def _read(self, place: Place, annotation: Any, statement: Statement) -> Any:
        if statement.has_value:
            value = statement.value
            if is_node(value):
                value = copies.copy_graph(value)
            return value if is_container(value) else fitting.coerce(value, annotation)
        # A pattern may mean thousands of places, all of one kind.
        like = (id(annotation), type(place.value))
        if like in self._read_before:
            return self._read_before[like]
        try:
            around = self._around(place)
            value = literals.interpret(statement.text, annotation, place.value, around)
        except Unreadable as error:
            if statement.operator == "=" and not error.problem.nearest and _is_scalar(statement):
                _refuse_scalar_on_node(place, statement.text, annotation)
            raise
        if type(value) in (bool, int, float, str) and not is_container(place.value):
            self._read_before[like] = value
        return value

    def _around(self, place: Place) -> expressions.Surroundings:
        near = [place.value] if callable(place.value) and not is_node(place.value) else []
        near += [type(place.value)] if is_dataclass_instance(place.value) else []
        near += [node.__fn_or_cls__ for node in (place.value, place.owner) if _is_node(node)]
        return expressions.Surroundings(near, lambda parts: sharing.refer(self.graph, parts))

    def _combined(self, place: Place, annotation: Any, statement: Statement) -> Any:
        if _is_node(place.value):
            _refuse_scalar_on_node(place, statement.text, Any)
        if place.value is UNSET or place.value is None:
            raise Unreadable(f"is not set, so {statement.operator} has nothing to work on; write =")
        around = self._around(place)
        return arithmetic.combine(
            statement.operator, place.value, statement.text, annotation, around
        )

    def _put(self, place: Place, value: Any, where: str, at_constant: bool) -> None:
        holds = is_node(place.owner) or isinstance(place.owner, list | dict)
        keeps_places = holds and not (
            is_container(value) or is_container(place.value) or place.is_default
        )
        if at_constant and values.is_constant(place.value):
            if value is not place.value:  # `steps=$steps` says nothing
                setting.replace(place.value, "value", value, where)
        else:
            setting.replace_at(self.graph, place, value, where)
            keeps_places = keeps_places and not values.is_value_node(place.value)
        if not keeps_places or values.is_value_node(value) or place.value is UNSET:
            self._places = None


def _alias_of(text: str) -> str:
    for word in ("alias:", "&"):
        if text.startswith(word):
            return text.removeprefix(word).strip()
    return ""


def _is_scalar(statement: Statement) -> bool:
    if statement.has_value:
        return not is_node(statement.value)
    return "(" not in statement.text and not _alias_of(statement.text)


class _Lazy:
    """Every place of the graph, found when somebody asks."""

    def __init__(self, places: Callable[[], list[Place]]):
        self._places = places

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places())


def _is_node(value: Any) -> bool:
    return is_node(value) and not values.is_value_node(value)


def _refuse_scalar_on_node(place: Place, value: Any, annotation: Any) -> None:
    """Raise where a plain value would silently throw a node away."""
    is_node = _is_node(place.value) or is_dataclass_instance(place.value)
    if not is_node or _is_node(value) or is_dataclass_instance(value):
        return
    if value is None and types.fits(None, annotation):
        return
    if callable(value) and not isinstance(value, type) and not values.is_value_node(value):
        return
    target = place.value.__fn_or_cls__ if _is_node(place.value) else type(place.value)
    name = getattr(target, "__name__", str(target))
    hidden = signatures.inherited(target)
    fields = [
        join(place.path, part)
        for part, child, _ in children(place.value, unset=True)
        if not (child is UNSET and part in hidden)
    ]
    given = value if isinstance(value, str) else fitting.shown(value)
    remedy = f"set one of its fields ({', '.join(fields[:6])}{', ...' if len(fields) > 6 else ''})"
    if not fields:
        remedy = "replace it by another node"
    if isinstance(value, type):
        remedy = f"to replace the node, write {value.__name__}()"
    raise Unreadable(Problem(f"is a {name} node, which {given} cannot replace", remedy=remedy))


def annotation_at(graph: Any, place: Place) -> Any:
    """Return the resolved annotation of a place; `Any` where there is none.

    Args:
      graph: A node.
      place: A place of it, or a new key of a dict.
    """
    if is_node(place.owner) and isinstance(place.part, str):
        return signatures.type_hints(place.owner.__fn_or_cls__).get(place.part, Any)
    annotation, value = Any, graph
    for part in parse_path(place.path):
        if is_node(value) or is_dataclass_instance(value):
            target = value.__fn_or_cls__ if is_node(value) else type(value)
            if isinstance(part, int):
                positional = signatures.arguments(target).positional_only
                part = positional[part] if part < len(positional) else part
            annotation = signatures.type_hints(target).get(part, Any)
        else:
            annotation = types.element(annotation, type(value), part)
        if value is not place.owner:
            value, _ = child_of(value, part)
    return annotation
