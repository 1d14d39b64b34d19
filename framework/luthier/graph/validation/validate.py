"""Check a whole graph: names, types, what components declare, sharing, seeds, what is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import fiddle as fdl

from luthier.errors import Problem, ValidationError
from luthier.graph import signatures, values
from luthier.graph.edits import origins
from luthier.graph.grammar import fitting, types
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import (
    children,
    is_container,
    is_dataclass_instance,
    join,
    nearest,
    walk,
)
from luthier.graph.validation import callables, seeds, sharing
from luthier.graph.validation.declared import Declared


def validate(graph: Any, packages: Sequence[str] = ()) -> None:
    """Check that a graph can be recorded and built.

    Args:
      graph: The root node.
      packages: The user's packages that a recorded graph may name (`[tool.luthier] packages`).

    Raises:
      ValidationError: It cannot; every problem is in it, each with its path, where it was set and
        the remedy.
    """
    checker = _Checker(graph, tuple(packages))
    problems = [
        *checker.problems(),
        *sharing.shared_between_parts(graph),
        *seeds.equal_by_accident(graph),
    ]
    if problems:
        raise ValidationError(list(dict.fromkeys(map(_frozen, problems))))


def _frozen(problem: Problem) -> Problem:
    return dataclasses.replace(problem, nearest=tuple(problem.nearest))


class _Checker:
    """Walks a graph once, and yields what is wrong with each node."""

    def __init__(self, graph: Any, packages: tuple[str, ...]):
        self._graph = graph
        self._packages = packages
        self._checked: set[int] = set()
        self._told: set[str] = set()
        self._recordable: dict[int, tuple[Any, Problem | None]] = {}
        self._owners: dict[int, Any] = {}
        self._declared = Declared(graph, self._owners)

    def problems(self) -> Iterator[Problem]:
        """Yield every problem of every node, in the order of the graph."""
        if not isinstance(self._graph, fdl.Buildable):
            yield Problem(f"{fitting.shown(self._graph)} is no graph")
            return
        yield from self._node("", self._graph)
        for place in walk(self._graph, defaults=False, once=True):
            value = place.value
            if is_container(value):
                self._owners.setdefault(id(value), place.owner)
            if isinstance(value, fdl.Buildable):
                if id(value) not in self._checked:
                    self._checked.add(id(value))
                    check = self._value_node if values.is_value_node(value) else self._node
                    yield from check(place.path, value)
            elif is_dataclass_instance(value):
                yield from self._leaf(place.path, type(value))
            elif not is_container(value):
                yield from self._leaf(place.path, value)

    def _leaf(self, path: str, value: Any) -> Iterator[Problem]:
        problem = self._recording_problem(value)
        if problem is not None:
            yield self._at(path, problem)

    def _recording_problem(self, value: Any) -> Problem | None:
        if type(value) in (bool, int, float, str, type(None)):
            return None
        if id(value) in self._recordable:
            return self._recordable[id(value)][1]
        problem = callables.unrecordable(value)
        if problem is None:
            package = callables.foreign_package(value, self._packages)
            if package and package not in self._told:
                self._told.add(package)  # once: one line of pyproject.toml cures all of them
                problem = callables.not_listed(value, package)
        # The value is kept, so that its id stays its own.
        self._recordable[id(value)] = (value, problem)
        return problem

    def _at(self, path: str, problem: Problem) -> Problem:
        return dataclasses.replace(
            problem, path=path, origin=problem.origin or origins.origin_of(self._graph, path)
        )

    def _value_node(self, path: str, node: fdl.Config) -> Iterator[Problem]:
        try:
            found = values.evaluate(node)
        except (ValueError, ArithmeticError, TypeError) as error:
            what = f"{values.expression(node)} cannot be computed: {error}"
            yield self._at(path, Problem(what))
            return
        yield from self._leaf(path, found)

    def _node(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        target = node.__fn_or_cls__
        problem = self._recording_problem(target)
        if problem is not None:
            yield dataclasses.replace(problem, path=path, origin=origins.made_at(node))
        known = signatures.arguments(target)
        yield from self._names(path, node, known)
        yield from self._types(path, node)
        yield from self._declared.problems(path, node)
        yield from seeds.own_streams(self._graph, path, node)

    def _names(
        self, path: str, node: fdl.Buildable, known: signatures.Arguments
    ) -> Iterator[Problem]:
        name = _name(node)
        slots = len(known.positional_only)
        for part in node.__arguments__:
            at = join(path, part)
            if isinstance(part, int) and part >= slots:
                remedy = "wrap it in a function that takes a list"
                what = f"{name} takes *args, which a graph cannot name"
                yield self._at(at, Problem(what, remedy=remedy))
            elif isinstance(part, str) and part not in known.names and not known.has_kwargs:
                near = nearest(part, known.names)
                remedy = "" if near else f"it takes {', '.join(known.names) or 'none'}"
                problem = Problem(f"{name} has no argument {part!r}", remedy=remedy, nearest=near)
                yield self._at(at, problem)
        for part in self._missing(node, known):
            remedy = f"set {join(path, part)}=..."
            if part == "rngs":
                remedy = f"describe an NNX module with fdl.Partial({name}, ...)"
            problem = Problem(f"is not set, and {name} needs it", remedy=remedy)
            yield dataclasses.replace(problem, path=join(path, part), origin=origins.made_at(node))

    def _missing(self, node: fdl.Buildable, known: signatures.Arguments) -> Iterator[str]:
        """Yield the arguments that nobody gives: a template's caller gives what is inherited."""
        target = node.__fn_or_cls__
        is_template = isinstance(node, fdl.Partial)
        if is_template and not signatures.is_module_class(target):
            return  # what is left open is what it is called with
        inherited = signatures.inherited(target) if is_template else ()
        for index, name in enumerate(known.positional_only):
            if index not in node.__arguments__ and name not in known.defaults:
                yield name
        for name in known.required:
            if name not in node.__arguments__ and name not in inherited:
                yield name

    def _types(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        hints = signatures.type_hints(node.__fn_or_cls__)
        positional = signatures.arguments(node.__fn_or_cls__).positional_only
        for part, value in node.__arguments__.items():
            name = part
            if isinstance(part, int):
                name = positional[part] if part < len(positional) else ""
            if name not in hints:
                continue
            for at, child, hint in _misfits(join(path, part), value, hints[name]):
                try:
                    fitting.check(child, hint)
                except Unreadable as error:
                    yield self._at(at, error.problem)


def _misfits(path: str, value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value, annotation) of what to blame: elements, where a container is right."""
    found = False
    if type(value) in (list, tuple, dict):
        for part, child, _ in children(value):
            inside = types.element(annotation, type(value), part)
            for misfit in _misfits(join(path, part), child, inside):
                found = True
                yield misfit
    if found:
        return
    try:
        fitting = types.fits(value, annotation)
    except (ValueError, ArithmeticError, TypeError):
        return  # told where the value node is checked
    if not fitting:
        yield path, value, annotation


def _name(node: fdl.Buildable) -> str:
    return getattr(node.__fn_or_cls__, "__name__", str(node.__fn_or_cls__))
