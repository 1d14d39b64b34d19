"""Validation of graphs: annotations, declarations of components, sharing, seeds, recording."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fiddle as fdl

from luthier import folders, project
from luthier.errors import Problem, RecordError, ValidationError
from luthier.graph import copies, lazy, origins, public_names, signatures, templates, values
from luthier.graph.grammar import types
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import (
    child_of,
    children,
    is_container,
    is_dataclass_instance,
    is_node,
    join,
    nearest,
    parse_path,
    walk,
)
from luthier.graph.record.leaves import encode_leaf
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

# Declared conditions: `RANGES` of arguments, `RELATIONS` between them, `READ_WHEN` they count.
#
#     RANGES = {"b2": "0 <= x < 1"}
#     RELATIONS = ("num_heads % num_kv_heads == 0", "data.length <= model.length")
#     READ_WHEN = {"decay": "spike_factor is not None"}
#
# They are attributes of a class or function, because constructors must not check values (a swept
# value is a tracer there). They are evaluated on their syntax tree, never with `eval`. A dotted
# name is a path below the node. A condition about a value that the graph does not have (an argument
# that is not set, a part that does not exist, arithmetic on None or on anything but numbers) counts
# as met: absent values are reported elsewhere.

UNKNOWN = object()
"""The value of a name that has no value in the graph."""

_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_COMPUTE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Malformed(Exception):
    """A declared condition cannot be read: a mistake of the component's author."""


class _Missing(Malformed):
    """A condition is about an argument that its component does not have."""


class _Unknown(Exception):
    """The condition needs a value that the graph does not have."""


@functools.lru_cache(maxsize=4096)
def _parse(condition: str) -> ast.expr:
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError):
        raise Malformed(f"{condition!r} is not a condition") from None


@functools.lru_cache(maxsize=4096)
def names_in(condition: str) -> tuple[str, ...]:
    """Return the arguments and the paths that a condition refers to, in its order.

    Args:
      condition: `dim % num_heads == 0`, say.

    Raises:
      Malformed: It cannot be read.
    """
    found: list[str] = []
    pending: list[ast.AST] = [_parse(condition)]
    while pending:
        tree = pending.pop()
        name = _dotted(tree)
        if name:
            found.append(name)
        else:
            pending += reversed(list(ast.iter_child_nodes(tree)))
    return tuple(dict.fromkeys(found))


def _dotted(tree: ast.AST) -> str:
    """Return `a.b.c` of a name or a chain of attributes; else nothing."""
    if isinstance(tree, ast.Name):
        return tree.id
    before = _dotted(tree.value) if isinstance(tree, ast.Attribute) else ""
    return f"{before}.{tree.attr}" if before else ""  # type: ignore[attr-defined]


def with_name(condition: str, name: str) -> str:
    """Return a range with the argument's name for `x`: `0 <= b2 < 1`.

    Args:
      condition: The range, of `x`.
      name: The argument.
    """
    return re.sub(r"\bx\b", name, condition)


def holds(condition: str, known: Mapping[str, Any]) -> bool:
    """Return whether a condition holds, or refers to something that has no value.

    Args:
      condition: `0 <= x < 1`, `dim % num_heads == 0`, `cap is None or cap < limit`.
      known: Value by name; `UNKNOWN` where it has none.

    Raises:
      Malformed: It cannot be read, or a name in it is not known at all.
    """
    try:
        return bool(_compute(_parse(condition), condition, known))
    except _Unknown:
        return True


def _compute(tree: ast.expr, condition: str, known: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return tree.value
    name = _dotted(tree)
    if name in known:
        if known[name] is UNKNOWN:
            raise _Unknown
        return known[name]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.Not):
        inside = _compute(tree.operand, condition, known)
        return not inside if isinstance(tree.op, ast.Not) else -inside
    if isinstance(tree, ast.BinOp) and type(tree.op) in _COMPUTE:
        left, right = _numbers((tree.left, tree.right), condition, known)
        return _COMPUTE[type(tree.op)](left, right)
    if isinstance(tree, ast.BoolOp):
        # A generator, so that `and` and `or` stop early: `a == 0 or b % a == 0` must not divide by
        # zero.
        found = (_compute(part, condition, known) for part in tree.values)
        return all(found) if isinstance(tree.op, ast.And) else any(found)
    if isinstance(tree, ast.Compare):
        return _compare(tree, condition, known)
    raise Malformed(f"{condition!r} is not a condition that can be checked")


def _numbers(
    trees: Sequence[ast.expr], condition: str, known: Mapping[str, Any]
) -> list[int | float]:
    found = [_compute(tree, condition, known) for tree in trees]
    if not all(type(value) in (int, float) for value in found):
        raise _Unknown  # None, a node, or of a wrong type, which is reported elsewhere
    return found


def _compare(tree: ast.Compare, condition: str, known: Mapping[str, Any]) -> bool:
    if len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Is | ast.IsNot):
        right = tree.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            is_none = _compute(tree.left, condition, known) is None
            return is_none == isinstance(tree.ops[0], ast.Is)
    if not all(type(op) in _COMPARE for op in tree.ops):
        raise Malformed(f"{condition!r} is not a condition that can be checked")
    terms = _numbers((tree.left, *tree.comparators), condition, known)
    pairs = zip(tree.ops, terms, terms[1:], strict=False)
    return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)


# Checks of the declarations of components: ranges, relations, and when a setting is read.
_FLOATING = ("dtype", "param_dtype")


class Declared:
    """Checks the nodes of one graph against the declarations of their classes and functions.

    Args:
      graph: The root node.
      owners: The container or node around every other one at its first path, by id; a template
        inherits arguments from them.
    """

    def __init__(self, graph: Graph, owners: Mapping[int, Any]):
        self._graph = graph
        self._owners = owners

    def problems(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        """Yield the violations of `RANGES`, `RELATIONS` and `READ_WHEN` of a node's callable.

        Args:
          path: The path of the node.
          node: The node.
        """
        target = node.__fn_or_cls__
        for part, condition in (getattr(target, "RANGES", None) or {}).items():
            yield from self._range(path, node, part, condition)
        yield from self._types(path, node)
        relations = getattr(target, "RELATIONS", None) or ()
        for condition in relations:
            remedy = relations[condition] if isinstance(relations, Mapping) else ""
            yield from self._relation(path, node, condition, remedy)
        for part, condition in (getattr(target, "READ_WHEN", None) or {}).items():
            yield from self._unread(path, node, part, condition)

    def _types(self, path: str, node: fdl.Buildable) -> Iterator[Problem]:
        """Yield the dtypes that a module can neither compute in nor keep parameters in."""
        target = node.__fn_or_cls__
        inherited = getattr(target, "INHERITED", None) or ()
        is_module = "rngs" in signatures.arguments(target).names
        for part in _FLOATING:
            if part not in node.__arguments__ or not (is_module or part in inherited):
                continue
            value = self._value(node, part)
            if not types.is_dtype(value):
                continue
            # By name and not by `jnp.issubdtype`: JAX is not imported to look at a graph, and for
            # NumPy alone `bfloat16` is not a `numpy.floating`.
            found = str(getattr(value, "dtype", None) or getattr(value, "__name__", value))
            if not found.startswith(("float", "bfloat")):
                what = f"{found} is not a floating-point type"
                remedy = f"{_name(node)} needs one, such as bfloat16 or float32"
                yield self._at(join(path, part), Problem(what, remedy=remedy))

    def _range(
        self, path: str, node: fdl.Buildable, part: str, condition: str
    ) -> Iterator[Problem]:
        at, name = join(path, part), _name(node)
        try:
            value = self._value(node, part)
        except Malformed as error:
            if _is_about(node, "RANGES", error):
                yield Problem(f"RANGES of {name}: {error}", path=path)
            return
        if part not in node.__arguments__ or type(value) not in (int, float):
            return
        is_finite = not isinstance(value, float) or math.isfinite(value)
        try:
            if is_finite and holds(condition, {"x": value}):
                return
        except Malformed as error:
            if _is_about(node, "RANGES", error):
                yield Problem(f"RANGES of {name}: {error}", path=at)
            return
        needs = f"{name} needs {with_name(condition, part)}"
        what = f"{value!r} is {'out of range' if is_finite else 'not a finite number'}"
        yield self._at(at, Problem(what, remedy=needs))

    def _relation(
        self, path: str, node: fdl.Buildable, condition: str, remedy: str
    ) -> Iterator[Problem]:
        # `given` is set before the `try`, because the message about failed arithmetic lists it: a
        # condition may divide by a value of the graph.
        name, given = _name(node), {}
        try:
            given = self._given(node, condition)
            if holds(condition, given):
                return
        except Malformed as error:
            if _is_about(node, "RELATIONS", error):
                yield Problem(f"RELATIONS of {name}: {error}", path=path)
            return
        except ArithmeticError as error:
            what = f"{condition} cannot be computed with {_listed(given)}: {error}"
            yield Problem(what, path=path)
            return
        set_by = [origins.origin_of(self._graph, _below(path, key)) for key in given]
        origin = ", ".join(dict.fromkeys(where for where in set_by if where))
        what = f"{name} needs {condition}, and {_listed(given)}"
        yield Problem(what, path=path, origin=origin, remedy=remedy)

    def _unread(
        self, path: str, node: fdl.Buildable, part: str, condition: str
    ) -> Iterator[Problem]:
        """Yield a problem where a setting is set to another value than its default and never read.

        A setting that nothing reads is an error: whoever set it expects an effect. A value that is
        equal to the default changes nothing, and is not reported.
        """
        name, at = _name(node), join(path, part)
        try:
            given = self._given(node, condition)
            is_read = holds(condition, given)
        except Malformed as error:
            if _is_about(node, "READ_WHEN", error):
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
        return {key: self._named(node, key) for key in names_in(condition)}

    def _named(self, node: fdl.Buildable, name: str) -> Any:
        """Return the value of a name in a condition: an argument, or a path below the node."""
        first, *rest = parse_path(name)
        value = self._value(node, str(first))
        for part in rest:
            try:
                value = UNSET if value is UNSET else child_of(value, part)[0]
            except KeyError:
                return UNKNOWN
            value = _evaluated(value)
        return UNKNOWN if value is UNSET else value

    def _value(self, node: fdl.Buildable, name: str) -> Any:
        """Return an argument's value, its default, or what a template inherits."""
        known = signatures.arguments(node.__fn_or_cls__)
        if name in node.__arguments__:
            return _evaluated(node.__arguments__[name])
        if isinstance(node, fdl.Partial) and name in signatures.inherited(node.__fn_or_cls__):
            return self._inherited(node, name)
        if name not in known.names:
            raise _Missing(f"{_name(node)} has no argument {name!r}")
        return known.defaults.get(name, UNSET)

    def _inherited(self, node: fdl.Buildable, name: str) -> Any:
        # A template (`fdl.Partial`) is called by its parent, which passes down its own `dim` or
        # `dtype`; so the value is that of the nearest node above which sets one.
        owner = self._owners.get(id(node))
        while owner is not None:
            if is_node(owner) and name in owner.__arguments__:
                return _evaluated(owner.__arguments__[name])
            owner = self._owners.get(id(owner))
        return UNSET

    def _at(self, path: str, problem: Problem) -> Problem:
        origin = origins.origin_of(self._graph, path)
        return dataclasses.replace(problem, path=path, origin=origin)


def _is_about(node: fdl.Buildable, attribute: str, error: Malformed) -> bool:
    """Return whether a condition that cannot be checked is a mistake in the node's component.

    A subclass with arguments of its own need not have those that the conditions of its base class
    are about.
    """
    target = node.__fn_or_cls__
    is_inherited = isinstance(target, type) and attribute not in vars(target)
    return not (is_inherited and isinstance(error, _Missing))


def _evaluated(value: Any) -> Any:
    """Return the value of a value node, or `UNSET` where its failure is reported elsewhere."""
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


# Values and names that a record can hold, so that another process can build the same graph.

_PLAIN = (bool, int, float, str, type(None))


def unrecordable(value: Any) -> Problem | None:
    """Return the reason why a record cannot hold `value`; None where it can.

    Args:
      value: The class or function of a node, or a leaf.
    """
    if type(value) in _PLAIN:
        return None
    # `configs` and `sweeps` are folders of the user's working directory, and `__main__` is another
    # module in every process: a run that names them could not be resumed or evaluated elsewhere.
    home, name = public_names.home(value), _name_of_callable(value)
    is_elsewhere = _root(value) == "__main__" or folders.is_experiment(home)
    if is_elsewhere and "<lambda>" not in name:
        root = folders.without_prefix(home).split(".")[0]
        what = f"{name} is defined in {root}, which a recorded graph cannot rely on"
        return Problem(what, remedy="move it to a module of a package, outside configs and sweeps")
    try:
        if _is_named(value):
            public_names.public_name(value)
        else:
            encode_leaf(value)
    except RecordError as error:
        return error.problems[0]
    return None


def foreign_package(value: Any, packages: tuple[str, ...]) -> str:
    """Return the package of a class, function or enum that a record may not name; empty for others.

    Args:
      value: Something that a record names.
      packages: The user's packages that a recorded graph may name.
    """
    if not _is_named(value) and not isinstance(value, enum.Enum):
        return ""
    is_known = _root(value) == "builtins" or public_names.may_name(value, packages)
    return "" if is_known else _root(value)


def not_listed(value: Any, package: str) -> Problem:
    """Return the problem that the package of a value is not on the allow-list of records.

    Args:
      value: A class, function or enum.
      package: Its package.
    """
    if package in public_names.libraries():
        name = public_names.display_name(value)
        what = f"{name} is not on the list of names that records may contain"
        return Problem(what, remedy="wrap it in a function of a package of your own")
    name = _name_of_callable(value)
    what = f"{name} is in the package {package}, which recorded graphs may not name"
    return Problem(what, remedy=f'if it is yours, add it: [tool.luthier] packages = ["{package}"]')


def _is_named(value: Any) -> bool:
    return isinstance(value, type) or hasattr(value, "__qualname__")


def _root(value: Any) -> str:
    return public_names.home(value).split(".")[0]


def _name_of_callable(value: Any) -> str:
    return f"{public_names.home(value)}.{getattr(value, '__qualname__', type(value).__name__)}"


# Seeds that are equal by accident: the same random numbers where independent ones were meant.


def equal_by_accident(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for every node that draws the same numbers as another one by accident.

    A class that draws by itself, such as a generated source of data, names in `STREAM` the
    settings that its draws depend on, the seed first. Two nodes of one class with equal settings
    draw the same. Where that is intended, they share the seed as a value node.

    Args:
      graph: The root node.
    """
    first: dict[Any, tuple[str, Any]] = {}
    for place in walk(graph, defaults=False, once=True):
        node = place.value
        names = getattr(node.__fn_or_cls__, "STREAM", ()) if is_node(node) else ()
        if not names:
            continue
        drawn = [_drawn(node, name) for name in names]
        key = (node.__fn_or_cls__, *map(repr, drawn))
        other, seed = first.setdefault(key, (place.path, node.__arguments__.get(names[0])))
        if other == place.path:
            continue
        if values.is_value_node(seed) and node.__arguments__.get(names[0]) is seed:
            continue
        yield _problem(graph, place.path, other, node, dict(zip(names, drawn, strict=True)))


def own_streams(graph: Graph, path: str, node: fdl.Buildable) -> Iterator[Problem]:
    """Yield a problem where a template has random streams of its own.

    Its parent hands it streams that come from the seed of the experiment; its own would be the same
    for every module that is made of it, and the seed would not reach them.

    Args:
      graph: The root node.
      path: The path of the node.
      node: The node.
    """
    is_template = isinstance(node, fdl.Partial) and "rngs" in node.__arguments__
    if is_template and "rngs" in signatures.inherited(node.__fn_or_cls__):
        at = join(path, "rngs")
        what = "is set: all modules made of this template draw the same numbers"
        remedy = "leave it out: the parent passes its own"
        yield Problem(what, at, origins.origin_of(graph, at), remedy)


def _drawn(node: fdl.Buildable, name: str) -> Any:
    default = signatures.arguments(node.__fn_or_cls__).defaults.get(name)
    try:
        return values.evaluate(node.__arguments__.get(name, default))
    except (ValueError, ArithmeticError, TypeError):
        return node  # reported elsewhere; equal to no other


def _problem(
    graph: Graph, path: str, other: str, node: fdl.Buildable, drawn: dict[str, Any]
) -> Problem:
    name, seed = node.__fn_or_cls__.__name__, next(iter(drawn))
    settings = ", ".join(f"{key}={types.shown(value)}" for key, value in drawn.items())
    what = f"draws the same examples as {other}: both are {name} with {settings}"
    at = join(path, seed)
    remedy = f"set {at} to another number, or share it if that is meant: {at}=alias:{other}.{seed}"
    return Problem(what, path, origins.origin_of(graph, at), remedy)


# Nodes that separately built parts (model and data, say) must not share.


def shared_between_parts(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for every node, other than a value node, in two top-level parts of `graph`.

    Args:
      graph: The root node. Its top-level parts are built one by one, so a shared node would become
        two objects.
    """
    # Fiddle builds a shared node once per `fdl.build`. The parts of an experiment are built by one
    # call each, so one node in the config would silently become two objects. Sharing within a part
    # is fine, hence the set per part. Value nodes may be shared, because both parts get an equal
    # value; `is_container` does not count them. The template of a model, as recipes return it, is
    # built by one call: its children may share settings.
    if isinstance(graph, fdl.Partial):
        return
    first: dict[int, tuple[str, Any]] = {}
    for part, child, is_default in children(graph):
        if is_default:
            continue
        here: set[int] = set()
        pending = [(join("", part), child)]
        while pending:
            path, value = pending.pop()
            if not is_container(value) or id(value) in here:
                continue
            here.add(id(value))
            if isinstance(value, fdl.Buildable):
                # What is in it is shared along with it, and is not reported again.
                if id(value) in first:
                    yield _problem_of_sharing(first[id(value)][0], path, value)
                    continue
                first[id(value)] = (path, value)
            below = [
                (join(path, name), inside)
                for name, inside, below_default in children(value)
                if not below_default
            ]
            pending += reversed(below)


def _problem_of_sharing(first: str, second: str, node: fdl.Buildable) -> Problem:
    what = f"is the same {_name(node)} node as {first}, but the two are built separately"
    remedy = "give each its own node (copy.deepcopy), and share values with luthier.graph.value"
    return Problem(what, path=second, remedy=remedy)


# The check of a whole graph: names, types, declarations, sharing, seeds, and recording.


def validate(graph: Graph, packages: Sequence[str] | None = None) -> None:
    """Check that a graph can be recorded and built.

    Args:
      graph: The root node.
      packages: The user's packages that a recorded graph may name; None means those of the
        project (`[tool.luthier] packages` of the nearest pyproject.toml).

    Raises:
      ValidationError: It cannot. All problems are listed, each with its path, its origin and the
        remedy.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.validate(fdl.Config(optim.sgd, learning_rate=0.1, momentum=2.0))
      Traceback (most recent call last):
          ...
      luthier.errors.ValidationError: ...
    """
    lazy.settle_graph(graph)
    copies.renew(graph)  # nodes from before the signature shim took any keyword
    checker = _Checker(graph, project.packages_of(packages))
    problems = [
        *checker.problems(),
        *shared_between_parts(graph),
        *equal_by_accident(graph),
    ]
    if problems:
        raise ValidationError(list(dict.fromkeys(map(_frozen, problems))))


def _frozen(problem: Problem) -> Problem:
    return dataclasses.replace(problem, nearest=tuple(problem.nearest))


def declared_problems(graph: Graph) -> list[Problem]:
    """Return the violations of `RANGES`, `RELATIONS` and `READ_WHEN` of all nodes of a graph.

    Args:
      graph: The root node.

    Returns:
      One problem for each violation, with the path of the argument; none if all constraints hold.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.WarmupCosine, peak=-1.0, total_steps=100)
      >>> [problem.path for problem in graph.declared_problems(config)]
      ['peak']
    """
    owners: dict[int, Any] = {}
    declared = Declared(graph, owners)
    found = list(declared.problems("", graph))
    for place in walk(graph, defaults=False, once=True):
        if not is_container(place.value) or id(place.value) in owners:
            continue
        owners[id(place.value)] = place.owner
        if isinstance(place.value, fdl.Buildable):
            found += declared.problems(place.path, place.value)
    return found


class _Checker:
    """Walks a graph once, and yields the problems of each node."""

    def __init__(self, graph: Graph, packages: tuple[str, ...]):
        self._graph = graph
        self._packages = packages
        self._checked: set[int] = set()
        self._reported_packages: set[str] = set()
        self._recordable: dict[int, tuple[Any, Problem | None]] = {}
        self._owners: dict[int, Any] = {}
        self._declared = Declared(graph, self._owners)

    def problems(self) -> Iterator[Problem]:
        """Yield every problem of every node, in the order of the graph."""
        if not isinstance(self._graph, fdl.Buildable):
            text = isinstance(self._graph, str)
            remedy = f"write luthier.experiment({self._graph!r})" if text else ""
            yield Problem(f"{fitting.shown(self._graph)} is not a graph", remedy=remedy)
            return
        yield from self._node("", self._graph)
        # The walk is parents first, so the owners of a node are known before its declarations look
        # for inherited values. A shared node is reported once, at its first path.
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
        problem = unrecordable(value)
        if problem is None:
            package = foreign_package(value, self._packages)
            if package and package not in self._reported_packages:
                self._reported_packages.add(
                    package
                )  # once: one line of pyproject.toml cures all of them
                problem = not_listed(value, package)
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
        except values.Deferred:
            return
        except (ValueError, ArithmeticError, TypeError) as error:
            what = f"{values.expression(node)} cannot be computed: {error}"
            yield self._at(path, Problem(what))
            return
        if values.is_deferred(found):
            yield from self._node(path, found)
        else:
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
        yield from own_streams(self._graph, path, node)

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
            elif isinstance(node, fdl.Partial) and not hasattr(node.__fn_or_cls__, "INHERITED"):
                # A module that was not written for luthier: only its author knows what is passed.
                remedy += f", or list {part!r} in {name}.INHERITED if its parent passes it"
            problem = Problem(f"is not set, and {name} needs it", remedy=remedy)
            yield dataclasses.replace(problem, path=join(path, part), origin=origins.made_at(node))

    def _missing(self, node: fdl.Buildable, known: signatures.Arguments) -> Iterator[str | int]:
        """Yield the required arguments without a value; inherited ones come from the caller."""
        target = node.__fn_or_cls__
        is_template = isinstance(node, fdl.Partial)
        if is_template and not signatures.is_module_class(target):
            return  # a partial function: its open arguments are given when it is called
        inherited = signatures.inherited(target) if is_template else ()
        # A module that was not written for luthier gets what its signature names, and every module
        # offers its children its width (`layers.create`). An experiment has none for its model.
        is_child = isinstance(self._owners.get(id(node)), fdl.Partial)
        if is_template and is_child and not hasattr(target, "INHERITED"):
            inherited += ("dim",)
        for part in known.required:
            if part not in node.__arguments__ and part not in inherited:
                yield part

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
            for at, node in templates.misplaced(join(path, part), value, hints[name]):
                name_of = _name(node)
                what = f"is a {name_of}, and its parent takes a template"
                remedy = f"write {name_of}(...), in Python fdl.Partial({name_of}, ...)"
                yield self._at(at, Problem(what, remedy=remedy))


def _misfits(path: str, value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value, annotation) of misfits: elements, where the container itself fits."""
    # A list of a hundred layers with one wrong entry is reported at that entry, not as a whole. The
    # elements are tried first; the container is blamed only if all of them fit.
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
        return  # reported where the value node is checked
    if not fitting:
        yield path, value, annotation
