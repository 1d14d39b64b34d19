"""What components declare about their settings: ranges, relations, and when a setting is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.edits import origins
from luthier.graph.grammar import fitting, types
from luthier.graph.paths import child_of, is_node, join, parse_path
from luthier.graph.signatures import UNSET
from luthier.graph.validation import conditions

_FLOATING = ("dtype", "param_dtype")


class Declared:
    """Checks the nodes of one graph against what their classes and functions declare.

    Args:
      graph: The root node.
      owners: For every node or container, by its id, what holds it at its first path; a template
        takes from above what it inherits.
    """

    def __init__(self, graph: Any, owners: Mapping[int, Any]):
        self._graph = graph
        self._owners = owners

    def problems(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        """Yield what `RANGES`, `RELATIONS` and `READ_WHEN` of a node's callable say against it.

        Args:
          path: Where the node is.
          node: The node.
        """
        target = node.__fn_or_cls__
        for part, condition in (getattr(target, "RANGES", None) or {}).items():
            value = self._value(node, part)
            if part in node.__arguments__ and type(value) in (int, float):
                yield from self._range(path, node, part, condition, value)
        yield from self._types(path, node)
        relations = getattr(target, "RELATIONS", None) or ()
        for condition in relations:
            remedy = relations[condition] if isinstance(relations, Mapping) else ""
            yield from self._relation(path, node, condition, remedy)
        for part, condition in (getattr(target, "READ_WHEN", None) or {}).items():
            yield from self._unread(path, node, part, condition)

    def _types(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        """Yield the types that a module cannot compute in, or keep parameters in."""
        target = node.__fn_or_cls__
        inherited = getattr(target, "INHERITED", None) or ()
        is_module = "rngs" in signatures.arguments(target).names
        for part in _FLOATING:
            if part not in node.__arguments__ or not (is_module or part in inherited):
                continue
            value = self._value(node, part)
            if not types.is_dtype(value):
                continue
            # JAX is not imported to look at a graph: `bfloat16` is no `numpy.floating`, but named.
            found = str(getattr(value, "dtype", None) or getattr(value, "__name__", value))
            if not found.startswith(("float", "bfloat")):
                what = f"{found} is not a floating-point type"
                remedy = f"{_name(node)} needs one, such as bfloat16 or float32"
                yield self._at(join(path, part), Problem(what, remedy=remedy))

    def _range(
        self, path: str, node: fdl.Buildable, part: str, condition: str, value: Any
    ) -> Iterator[Problem]:
        at, name = join(path, part), _name(node)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        try:
            if is_finite and conditions.holds(condition, {"x": value}):
                return
        except conditions.Malformed as error:
            yield Problem(f"RANGES of {name}: {error}", path=at)
            return
        needs = f"{name} needs {conditions.with_name(condition, part)}"
        what = f"{value!r} is {'out of range' if is_finite else 'no finite number'}"
        yield self._at(at, Problem(what, remedy=needs))

    def _relation(
        self, path: str, node: fdl.Buildable, condition: str, remedy: str
    ) -> Iterator[Problem]:
        name, given = _name(node), {}
        try:
            given = self._given(node, condition)
            if conditions.holds(condition, given):
                return
        except conditions.Malformed as error:
            yield Problem(f"RELATIONS of {name}: {error}", path=path)
            return
        except ArithmeticError as error:
            told = f"{condition} cannot be computed with {_listed(given)}: {error}"
            yield Problem(told, path=path)
            return
        set_by = [origins.origin_of(self._graph, _below(path, key)) for key in given]
        origin = ", ".join(dict.fromkeys(where for where in set_by if where))
        what = f"{name} needs {condition}, and {_listed(given)}"
        yield Problem(what, path=path, origin=origin, remedy=remedy)

    def _unread(
        self, path: str, node: fdl.Buildable, part: str, condition: str
    ) -> Iterator[Problem]:
        """Yield a problem where a setting is set, to something of its own, and never looked at."""
        name, at = _name(node), join(path, part)
        try:
            given = self._given(node, condition)
            is_read = conditions.holds(condition, given)
        except conditions.Malformed as error:
            yield Problem(f"READ_WHEN of {name}: {error}", path=path)
            return
        if is_read or part not in node.__arguments__:
            return
        value = self._value(node, part)
        default = signatures.arguments(node.__fn_or_cls__).defaults.get(part, UNSET)
        if type(value) is type(default) and value == default:
            return
        what = f"{fitting.shown(value)} has no effect: {name} reads it only where {condition}"
        change = " or ".join(_below(path, key) for key in given)
        yield self._at(at, Problem(what, remedy=f"leave it out, or change {change}"))

    def _given(self, node: fdl.Buildable, condition: str) -> dict[str, Any]:
        return {key: self._named(node, key) for key in conditions.names_in(condition)}

    def _named(self, node: fdl.Buildable, name: str) -> Any:
        """Return what a name in a condition stands for: an argument, or a path below the node."""
        first, *rest = parse_path(name)
        value = self._value(node, str(first))
        for part in rest:
            try:
                value = UNSET if value is UNSET else child_of(value, part)[0]
            except KeyError:
                return conditions.UNKNOWN
            value = _evaluated(value)
        return conditions.UNKNOWN if value is UNSET else value

    def _value(self, node: fdl.Buildable, name: str) -> Any:
        """Return an argument's value, its default, or what a template inherits."""
        known = signatures.arguments(node.__fn_or_cls__)
        if name in node.__arguments__:
            return _evaluated(node.__arguments__[name])
        if isinstance(node, fdl.Partial) and name in signatures.inherited(node.__fn_or_cls__):
            return self._inherited(node, name)
        if name not in known.names:
            raise conditions.Malformed(f"{_name(node)} has no argument {name!r}")
        return known.defaults.get(name, UNSET)

    def _inherited(self, node: fdl.Buildable, name: str) -> Any:
        owner = self._owners.get(id(node))
        while owner is not None:
            if is_node(owner) and name in owner.__arguments__:
                return _evaluated(owner.__arguments__[name])
            owner = self._owners.get(id(owner))
        return UNSET

    def _at(self, path: str, problem: Problem) -> Problem:
        origin = origins.origin_of(self._graph, path)
        return dataclasses.replace(problem, path=path, origin=origin)


def _evaluated(value: Any) -> Any:
    """Return what a value node stands for, or `UNSET` where that is told as a problem elsewhere."""
    try:
        return values.evaluate(value)
    except (ValueError, ArithmeticError, TypeError):
        return UNSET


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {given[key]!r}" for key in sorted(given))


def _name(node: fdl.Buildable) -> str:
    return getattr(node.__fn_or_cls__, "__name__", str(node.__fn_or_cls__))
