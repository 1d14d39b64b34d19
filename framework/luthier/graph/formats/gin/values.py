"""Values of gin files: constants and macros, nodes, and values fitted to annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import fiddle as fdl
from fiddle import history

from luthier.errors import BadInput, Problem
from luthier.graph import origins, setting, signatures, values
from luthier.graph.formats.gin.lookup import Lookup, constants, key
from luthier.graph.formats.gin.statements import Binding, Directives, GinReference, MacroUse
from luthier.graph.grammar import expressions, literals, types
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.load import decode
from luthier.graph.paths import is_node, nearest, walk
from luthier.graph.values import Graph

# Type coercion: values of gin as the annotations of their places require.

# Gin writes these without quotes, so text in quotes that looks like one of them stays text.
_SPELLED = (bool, int, float, type(None))


def fit(value: Any, annotation: Any, current: Any, lookup: Lookup) -> Any:
    """Return a value of gin converted to the annotation of its place.

    Args:
      value: The value, as gin's parser read it.
      annotation: The annotation of the place.
      current: The current value of the place, or its default.
      lookup: The lookup, for the user's packages.

    Raises:
      Unreadable: It does not fit, nor does the override grammar read it as something that does.
    """
    # Gin has no types: `dtype = 'bfloat16'` and `activation = 'gelu'` are text in most files. Where
    # text does not fit, it is read as the value of an override would be at the same place.
    if values.is_value_node(value):
        return value  # checked by `settle`, when its value is final
    if is_node(value):
        # Without an annotation, the type of the current value is no limit, as for references of the
        # override grammar: `rate = @Cosine()` is common where the default is a number.
        types.check(value, annotation)
        return value
    wanted = types.expected(annotation, current)
    if _fits(value, wanted):
        return value
    converted = types.coerce(value, annotation)
    if isinstance(converted, str) and not _fits(converted, wanted):
        around = expressions.Surroundings(packages=lookup.packages)
        read = literals.read(converted, annotation, current, around)
        if type(read) not in _SPELLED:
            return read
    types.check(converted, wanted)
    return converted


def check(value: Any, annotation: Any) -> None:
    """Raise where a value or value node does not fit an annotation.

    Args:
      value: The value.
      annotation: The annotation.

    Raises:
      Unreadable: It does not fit.
    """
    types.check(value, annotation)


def _fits(value: Any, annotation: Any) -> bool:
    try:
        types.check(value, annotation)
    except Unreadable:
        return False
    return True


# Macros as constants of a graph: one live value node for all places that use the macro, so that an
# override of the constant reaches all of them, as a binding of the macro would in gin.
#
# A macro that is, or holds, a reference has no value that could be shared: as in gin, every use of
# it makes a node of its own. Where the graph has a constant of a macro's name, the macro is that
# constant.


class Constants:
    """The macros of a unit, and the constants of the graph that it changes.

    Args:
      macros: The definitions of macros, later ones before earlier ones.
      nodes: The nodes of the graph.
      directives: The directives of the file.
      lookup: Finds names that are not macros.
    """

    def __init__(
        self,
        macros: Iterable[Binding],
        nodes: Iterable[fdl.Buildable],
        directives: Directives,
        lookup: Lookup,
    ):
        self.macros = {macro.target: macro for macro in macros}
        self.singletons: dict[str, Binding] = {}
        self._directives = directives
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
        # `_asked` holds the macros on the way: `a = %b` and `b = %a` would recurse without end.
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
            called = self._directives.called.get(name, name)
            with history.suspend_tracking():
                made = values.value(inside, name=called)
            origins.stamp(made, "__fn_or_cls__", made.__fn_or_cls__, macro.where)
            self._made[name] = made
            self._asked.remove(name)
        return self._made[name]

    def other(self, name: str) -> Any:
        """Return the value of a name that is not a macro, such as a constant of gin.

        Args:
          name: The name behind the `%`.

        Raises:
          Unreadable: The name is unknown.
        """
        if name not in self._others:
            self._others[name] = self._find(name)
        return self._others[name]

    def _find(self, name: str) -> Any:
        if name in self._directives.values:
            data, where = self._directives.values[name]
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
        """Return the value of a value node; any other node itself.

        Args:
          node: A node.
        """
        return values.evaluate(node) if values.is_value_node(node) else node

    def assign(self, node: fdl.Config, value: Any, where: str) -> None:
        """Note the new value of a constant of the graph; `settle` sets it.

        Args:
          node: The constant.
          value: Its new value.
          where: The origin of the value.

        Raises:
          Unreadable: Another binding gives it another value.
        """
        # Set at the end, since bindings have no order: each of them must see the old graph. Two
        # bindings that reach the same constant by different users have to agree.
        _, before, first = self._assigned.setdefault(id(node), (node, value, where))
        if type(before) is not type(value) or before != value:
            name = values.expression(node)
            what = f"the constant {name} would be {value!r} here and {before!r} by {first}"
            remedy = f"set {name} itself" if node.__arguments__.get("name") else "set them alike"
            raise Unreadable(Problem(what, remedy=remedy))

    def settle(self, graph: Graph, checked: bool) -> list[Problem]:
        """Give the constants of a graph their values, and check them where they are used.

        Args:
          graph: The graph, all nodes of which are bound.
          checked: Whether values must fit the annotations of their places.

        Returns:
          The problems.
        """
        # Last of all, when every place that uses a constant exists: only then is it known which
        # annotations its value must fit, and which macros are used at all.
        problems: list[Problem] = []
        for name, macro in self.macros.items():
            if name in self._of_graph and self.is_live(name):
                self._reassign(name, macro, problems)
        # The history ends with the binding's line and not with the line that made the constant.
        for name, made in self._made.items():
            origins.stamp(made, "value", made.value, self.macros[name].where)
        for node, value, where in self._assigned.values():
            setting.replace(node, "value", value, where)
        users = _users(graph) if graph is not None and checked else {}
        for name, macro in self.macros.items():
            # Files define macros that only some experiments use; on the command line, one that
            # nothing uses is misspelt.
            if macro.is_word and name not in self._made and name not in self._of_graph:
                # One that holds references makes its nodes at each use and leaves no constant, so
                # whether anything uses it is not known here.
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
        # A macro may be another macro (`a = %b`): the value is in the innermost constant. It is
        # converted for each user in turn and then checked for all, because the conversion for one
        # may not fit another.
        holder = made
        while values.is_constant(holder.__arguments__.get("value")):
            holder = holder.__arguments__["value"]
        for annotation, path in users:
            try:
                before = holder.__arguments__["value"]
                value = fit(before, annotation, signatures.UNSET, self._lookup)
                if value is not before:
                    with history.suspend_tracking():
                        holder.value = value
            except Unreadable as error:
                return [Problem(error.problem.what, path, where, error.problem.remedy)]
        for annotation, path in users:
            try:
                check(made, annotation)
            except Unreadable as error:
                return [Problem(error.problem.what, path, where, error.problem.remedy)]
        return []


def _users(graph: Graph) -> dict[int, list[tuple[Any, str]]]:
    """Return the annotation and path of every place that holds a constant, by its id."""
    found: dict[int, list[tuple[Any, str]]] = {}
    for place in walk(graph, defaults=False, once=True):
        if values.is_constant(place.value):
            annotation = Any
            if isinstance(place.owner, fdl.Buildable) and isinstance(place.part, str):
                hints = signatures.type_hints(place.owner.__fn_or_cls__)
                annotation = hints.get(place.part, Any)
            node = place.value  # and the constants behind it, of macros that refer to macros
            while values.is_constant(node):
                found.setdefault(id(node), []).append((annotation, place.path))
                node = node.__arguments__.get("value")
    return found


def _is_plain(value: Any, macros: dict[str, Binding], above: tuple[str, ...] = ()) -> bool:
    """Return whether a macro's value is a literal, or another macro whose value is one."""
    if isinstance(value, GinReference):
        return False
    if isinstance(value, MacroUse):
        if value.name in above:
            return True  # a cycle, which is reported where the constant is made
        if value.name not in macros:
            return False
        return _is_plain(macros[value.name].value, macros, (*above, value.name))
    if isinstance(value, list | tuple):
        return not any(isinstance(item, MacroUse) or not _is_plain(item, macros) for item in value)
    if isinstance(value, dict):
        inside = [*value, *value.values()]
        return not any(isinstance(item, MacroUse) or not _is_plain(item, macros) for item in inside)
    return True


# Values of gin as values of a graph: references become nodes, macros constants.

# A file of a few lines, each of which uses the one before it twice, makes 2**n nodes.
_MOST_NODES = 100_000
_SINGLETON = ("singleton", "gin.singleton")
REQUIRED = ("gin.REQUIRED", "REQUIRED")
"""Names of gin's constant for a value that must be given."""


@dataclasses.dataclass(frozen=True)
class BindingTarget:
    """An argument of a class or function."""

    function: Any
    argument: str

    @property
    def annotation(self) -> Any:
        """The annotation of the argument; `Any` without one."""
        return signatures.type_hints(self.function).get(self.argument, Any)


class Binder(Protocol):
    """The bindings, as the maker of nodes needs them: `overlay.Overlay`."""

    def bound_to(self, target: Any, scope: str) -> list[Any]:
        """Return the bindings of a class or function in a scope."""

    def bind_new(self, node: fdl.Buildable, scope: str) -> None:
        """Apply the bindings of its class to a new node."""


class Maker:
    """Makes the values of bindings.

    Args:
      constants: The macros.
      lookup: Finds classes and functions.
      directives: The directives of the file.
      binder: Knows the bindings.
    """

    def __init__(
        self, constants: Constants, lookup: Lookup, directives: Directives, binder: Binder
    ):
        self._constants = constants
        self._lookup = lookup
        self._directives = directives
        self._binder = binder
        self._chain: list[Any] = []
        self._count = 0
        self._once: dict[str, Any] = {}

    def value(self, value: Any, scope: str, where: str) -> Any:
        """Return the value of a binding; every call makes new nodes.

        Args:
          value: The value, as gin's parser read it.
          scope: The scopes of the node that it is for: its references inherit them.
          where: The origin of the binding.

        Raises:
          Unreadable: A name in it is unknown, or it contains itself.
        """
        if isinstance(value, GinReference):
            return self._refer(value, scope, where)
        if isinstance(value, MacroUse):
            return self._macro(value.name, scope, where)
        if isinstance(value, list | tuple):
            return type(value)([self.value(item, scope, where) for item in value])
        if isinstance(value, dict):
            return {
                self._key(item, scope, where): self.value(value[item], scope, where)
                for item in value
            }
        return value

    def _key(self, item: Any, scope: str, where: str) -> Any:
        made = self.value(item, scope, where)
        if isinstance(made, fdl.Buildable):
            made = self._constants.plain(made)
        if isinstance(made, fdl.Buildable):
            raise Unreadable(f"{item} cannot be a key")
        return made

    def _macro(self, name: str, scope: str, where: str) -> Any:
        if name in REQUIRED:
            raise self._required()
        if name in self._directives.shared and self._constants.has(name):
            if name not in self._once:
                self._once[name] = self._inside(name, "", where)
            return self._once[name]
        if self._constants.is_live(name):
            return self._constants.node(name)
        if self._constants.has(name):
            return self._inside(name, scope, where)
        return self._constants.other(name)

    def _required(self) -> Unreadable:
        """Return the error of a value that a file leaves open: `TRAIN_STEPS = %gin.REQUIRED`."""
        open_macros = [name for kind, name, *_ in self._chain if kind == "%"]
        if not open_macros:
            return Unreadable(Problem("a value is required here", remedy="set it"))
        name = open_macros[-1]
        origin = self._constants.macros[name].where if self._constants.has(name) else ""
        remedy = f"set it: --gin.{name}=..."
        return Unreadable(Problem(f"{name} is required", "", origin, remedy))

    def _inside(self, name: str, scope: str, where: str) -> Any:
        """Return a macro's value, as if it were written where the macro is used."""
        with self._entered(("%", name), f"%{name}"):
            macro: Binding = self._constants.macros[name]
            return self.value(macro.value, scope, macro.where)

    def _entered(self, item: Any, written: str) -> _Entered:
        if item in self._chain:
            raise Unreadable(f"{written} contains itself")
        return _Entered(self._chain, item)

    def _refer(self, reference: GinReference, outer: str, where: str) -> Any:
        # `@Name()` is a call, so a config. `@Name` is the function itself, in gin; here a class
        # becomes a template (its parent calls it), and a function is itself unless something is
        # bound to it: then it must be a template too, to carry the arguments.
        own, _, name = reference.name.rpartition("/")
        scope = own or outer
        if name in _SINGLETON:
            return self._singleton(scope, where)
        target = self._lookup.configurable(name)
        wished = self._directives.kinds.get(reference.name)
        kind: type[fdl.Buildable] = fdl.Config
        if not reference.is_called:
            kind = fdl.ArgFactory if wished == "factory" else fdl.Partial
            # A dtype is a class as well (`@jnp.bfloat16`), and never a template of scalars.
            is_template = isinstance(target, type) and not types.is_dtype(target)
            is_plain = not is_template and wished is None
            if is_plain and not self._binder.bound_to(target, scope):
                return target
        with self._entered((key(target), scope, kind), str(reference)):
            node = self._node(target, kind, where)
            self._binder.bind_new(node, scope)
        return self._instance(node) if wished == "instance" else node

    def _node(self, target: Any, kind: type[fdl.Buildable], where: str) -> fdl.Buildable:
        self._count += 1
        if self._count > _MOST_NODES:
            raise Unreadable(f"this makes more than {_MOST_NODES:,} nodes")
        # Fiddle would record this line of Python as the origin; `stamp` gives it that of the file.
        with history.suspend_tracking():
            node = (
                kind(target) if self._directives.is_export else expressions.make_node(target, kind)
            )
        origins.stamp(node, "__fn_or_cls__", target, where)
        return node

    def _singleton(self, scope: str, where: str) -> Any:
        """Return the node of `@scope/gin.singleton()`: one for all places."""
        binding = self._constants.singletons.get(scope)
        if binding is None or not isinstance(binding.value, GinReference):
            what = f"{scope}/gin.singleton has no constructor"
            remedy = f"write {scope}/gin.singleton.constructor = @Name"
            raise Unreadable(Problem(what, remedy=remedy))
        once = f"{scope}/gin.singleton"
        if once not in self._once:
            made = GinReference(binding.value.name, is_called=True)
            with self._entered(("%", once), once):
                self._once[once] = self.value(made, "", binding.where)
        return self._once[once]

    def _instance(self, node: fdl.Buildable) -> Any:
        try:
            return node.__fn_or_cls__(**node.__arguments__)
        except Exception as error:  # whatever the class's own code raises
            name = getattr(node.__fn_or_cls__, "__name__", "it")
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise Unreadable(f"{name} refuses its fields: {message}") from error


class _Entered:
    """Keeps an item on a chain while it is made, to detect values that contain themselves."""

    def __init__(self, chain: list[Any], item: Any):
        self._chain, self._item = chain, item

    def __enter__(self) -> None:
        self._chain.append(self._item)

    def __exit__(self, *_: object) -> None:
        self._chain.pop()
