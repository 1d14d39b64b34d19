"""Macros as constants of a graph: one live value node for all places that use the macro.

A macro that is, or holds, a reference has no value that could be shared: as in gin, every use of it
makes a node of its own. Where the graph has a constant of a macro's name, the macro is that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import fiddle as fdl
from fiddle import history

from luthier.errors import BadInput, Problem
from luthier.graph import signatures, values
from luthier.graph.edits import origins, setting
from luthier.graph.formats.gin import fitted
from luthier.graph.formats.gin.directives import Directives
from luthier.graph.formats.gin.lookup import Lookup, constants
from luthier.graph.formats.gin.statements import Binding, MacroUse, Reference
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.load import decode
from luthier.graph.paths import nearest, walk


class Constants:
    """The macros of a unit, and the constants of the graph that it changes.

    Args:
      macros: The definitions of macros, later ones before earlier ones.
      nodes: The nodes of the graph.
      said: What the directives say.
      lookup: Finds what is no macro.
    """

    def __init__(
        self,
        macros: Iterable[Binding],
        nodes: Iterable[fdl.Buildable],
        said: Directives,
        lookup: Lookup,
    ):
        self.macros = {macro.target: macro for macro in macros}
        self.singletons: dict[str, Binding] = {}
        self._said = said
        self._lookup = lookup
        self._made: dict[str, fdl.Config] = {}
        self._others: dict[str, Any] = {}
        self._assigned: dict[int, tuple[Any, Any, str]] = {}
        self._asked: list[str] = []
        self._of_graph: dict[str, fdl.Config] = {}
        for node in nodes:
            if values.is_constant(node) and node.__arguments__.get("name"):
                self._of_graph.setdefault(node.__arguments__["name"], node)

    def has(self, name: str) -> bool:
        """Return whether there is a macro of this name."""
        return name in self.macros

    def is_live(self, name: str) -> bool:
        """Return whether a macro, or constant of the graph, is one value for all its places."""
        if name not in self.macros:
            return name in self._of_graph
        return _is_plain(self.macros[name].value, self.macros)

    def node(self, name: str) -> fdl.Config:
        """Return the constant of a macro.

        Args:
          name: The macro's name; it is live.

        Raises:
          Unreadable: It is made of itself.
        """
        if name in self._of_graph:
            return self._of_graph[name]
        if name not in self._made:
            if name in self._asked:
                raise Unreadable(f"%{name} contains itself")
            self._asked.append(name)
            macro = self.macros[name]
            inside = macro.value
            if isinstance(inside, MacroUse):
                inside = self.node(inside.name)
            called = self._said.called.get(name, name)
            with history.suspend_tracking():
                made = values.value(inside, name=called)
            origins.stamp(made, "__fn_or_cls__", made.__fn_or_cls__, macro.where)
            self._made[name] = made
            self._asked.remove(name)
        return self._made[name]

    def other(self, name: str) -> Any:
        """Return what a name means that is no macro.

        Args:
          name: What stands behind the `%`.

        Raises:
          Unreadable: It means nothing.
        """
        if name not in self._others:
            self._others[name] = self._find(name)
        return self._others[name]

    def _find(self, name: str) -> Any:
        if name in self._said.values:
            data, where = self._said.values[name]
            try:
                return decode(data, self._lookup.packages)
            except BadInput as error:
                problem = error.problems[0]
                raise Unreadable(Problem(problem.what, "", where, problem.remedy)) from None
        try:
            return self._lookup.constant(name)
        except Unreadable as error:
            known = [*self.macros, *self._of_graph, *constants()]
            near = nearest(name, known) or error.problem.nearest
            remedy = "" if near else error.problem.remedy or f"define it: {name} = ..."
            raise Unreadable(Problem(error.problem.what, "", "", remedy, near)) from None

    def plain(self, node: Any) -> Any:
        """Return what a constant holds, or the node itself where that is no constant."""
        return values.evaluate(node) if values.is_value_node(node) else node

    def assign(self, node: fdl.Config, value: Any, where: str) -> None:
        """Note that a constant of the graph gets another value.

        Args:
          node: The constant.
          value: Its new value.
          where: Who says so.

        Raises:
          Unreadable: Another binding gives it another value.
        """
        _, before, first = self._assigned.setdefault(id(node), (node, value, where))
        if type(before) is not type(value) or before != value:
            name = values.expression(node)
            what = f"the constant {name} would be {value!r} here and {before!r} by {first}"
            remedy = f"set {name} itself" if node.__arguments__.get("name") else "set them alike"
            raise Unreadable(Problem(what, remedy=remedy))

    def settle(self, graph: Any, checked: bool) -> list[Problem]:
        """Give the constants of a graph their values, and check them where they are used.

        Args:
          graph: The graph, all nodes of which are bound.
          checked: Whether values must fit the annotations of their places.

        Returns:
          What is wrong.
        """
        problems: list[Problem] = []
        for name, macro in self.macros.items():
            if name in self._of_graph and self.is_live(name):
                self._reassign(name, macro, problems)
        for name, made in self._made.items():  # last, for its value is what people look for
            origins.stamp(made, "value", made.value, self.macros[name].where)
        for node, value, where in self._assigned.values():
            setting.replace(node, "value", value, where)
        users = _users(graph) if graph is not None and checked else {}
        for name, macro in self.macros.items():
            if macro.is_word and name not in self._made and name not in self._of_graph:
                if self.is_live(name):
                    known = [*self._made, *self._of_graph]
                    what = f"nothing uses the macro {name!r}"
                    problems.append(Problem(what, origin=macro.where, nearest=nearest(name, known)))
                continue
            made = self._made.get(name) or self._of_graph.get(name)
            if made is not None and users:
                problems += self._fit(made, users.get(id(made), ()), macro.where)
        return problems

    def _reassign(self, name: str, macro: Binding, problems: list[Problem]) -> None:
        node, value = self._of_graph[name], macro.value
        try:
            if isinstance(value, MacroUse):
                value = self.node(value.name)
                with history.suspend_tracking():
                    before, node.value = node.__arguments__.get("value"), value
                try:
                    values.evaluate(node)
                except ValueError:
                    node.value = before
                    raise Unreadable(f"%{name} contains itself") from None
            self.assign(node, value, macro.where)
        except Unreadable as error:
            problem = error.problem
            problems.append(Problem(problem.what, "", macro.where, problem.remedy))

    def _fit(self, made: fdl.Config, users: Sequence[tuple[Any, str]], where: str) -> list[Problem]:
        """Convert a constant for the places that use it: `'bfloat16'` where dtypes are wanted."""
        holder = made
        while values.is_constant(holder.__arguments__.get("value")):
            holder = holder.__arguments__["value"]
        for annotation, path in users:
            try:
                before = holder.__arguments__["value"]
                value = fitted.fit(before, annotation, signatures.UNSET, self._lookup)
                if value is not before:
                    with history.suspend_tracking():
                        holder.value = value
            except Unreadable as error:
                return [Problem(error.problem.what, path, where, error.problem.remedy)]
        for annotation, path in users:
            try:
                fitted.check(made, annotation)
            except Unreadable as error:
                return [Problem(error.problem.what, path, where, error.problem.remedy)]
        return []


def _users(graph: Any) -> dict[int, list[tuple[Any, str]]]:
    """Return the annotation and path of every place that holds a constant, by its id."""
    found: dict[int, list[tuple[Any, str]]] = {}
    for place in walk(graph, defaults=False, once=True):
        if values.is_constant(place.value):
            annotation = Any
            if isinstance(place.owner, fdl.Buildable) and isinstance(place.part, str):
                hints = signatures.type_hints(place.owner.__fn_or_cls__)
                annotation = hints.get(place.part, Any)
            node = place.value  # and the macro that has taken it over
            while values.is_constant(node):
                found.setdefault(id(node), []).append((annotation, place.path))
                node = node.__arguments__.get("value")
    return found


def _is_plain(value: Any, macros: dict[str, Binding], above: tuple[str, ...] = ()) -> bool:
    """Say whether a macro's value is a literal, or another macro whose value is one."""
    if isinstance(value, Reference):
        return False
    if isinstance(value, MacroUse):
        if value.name in above:
            return True  # a circle, which is told where it is made
        if value.name not in macros:
            return False
        return _is_plain(macros[value.name].value, macros, (*above, value.name))
    if isinstance(value, list | tuple):
        return not any(isinstance(item, MacroUse) or not _is_plain(item, macros) for item in value)
    if isinstance(value, dict):
        inside = [*value, *value.values()]
        return not any(isinstance(item, MacroUse) or not _is_plain(item, macros) for item in inside)
    return True
