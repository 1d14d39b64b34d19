"""Builds the objects that a graph describes, with replaced values and one-line errors.

`build` follows the rules of `fdl.build`: a shared node is built once; a Partial becomes a partial
function; an ArgFactory makes a new value at each call. It differs in two ways: leaves can be
replaced by path (by tracers, so that one compiled program serves many values), and an error names
the path, the class, and where the offending argument was set, instead of printing every argument.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from luthier import user_code
from luthier.errors import BadInput, LuthierError, Problem, UnknownReference, UserCodeError
from luthier.graph import signatures
from luthier.graph import values as value_nodes
from luthier.graph.origins import made_at, origin_of
from luthier.graph.paths import Path, find, format_path, join, nearest, parse_path
from luthier.graph.public_names import display_name
from luthier.graph.record.structure import nodes
from luthier.graph.values import Graph

_LONGEST = 240  # characters of the message of an exception, which may print whole arrays
_LEAVES = frozenset((bool, int, float, complex, str, bytes, type(None), type))
_UNDER_WAY = object()

# Where the walk is, as a linked list: (the way to the parent, the part below it). A path is only
# needed for an error message, so no string is formatted for the nodes that build without one.
_Way = tuple[Any, Any] | None


def build(graph: Graph, values: Mapping[str, Any] | None = None) -> Any:
    """Build the objects that `graph` describes.

    Args:
      graph: A node, or a list, tuple or dict of nodes.
      values: Replacements of leaves or whole nodes, by path relative to `graph`
        (`{"optimizer.b2": 0.9}`). An argument left at its default can be replaced too. The path of
        any user of a value node replaces the node, for all its users. The empty path replaces the
        whole graph. Replacements are passed on untouched, so they may be tracers.

    Returns:
      The built object.

    Raises:
      BadInput: A class or function raised for its arguments, or a path does not exist. Errors that
        jax raises for tracers, and our own errors that are not about input, pass through unchanged.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.Constant, value=0.5)
      >>> graph.build(config)
      Constant(value=0.5)
      >>> graph.build(config, {"value": 0.25})
      Constant(value=0.25)
    """
    builder, values = _Builder(graph), values or {}
    for path, value in values.items():
        if path:
            builder.replace(path, value)
    # The root has no owner that a replacement could be stored at.
    return values[""] if "" in values else builder.build(graph, None)


class _Inside(dict[Any, Any]):
    """Replacements of some elements of a tuple; values may be `_Inside` again."""


class _Builder:
    """Builds one graph, with a memo of built objects and a table of replacements.

    This is `fdl.build` written again, because Fiddle's version replaces no leaves and prints every
    built argument when a call fails. Objects are memoized by the identity of their node, as Fiddle
    does, since sharing a node means sharing the object (tied weights).
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.built: dict[int, Any] = {}
        self.replaced: dict[int, dict[Any, Any]] = {}

    def replace(self, path: str, value: Any) -> None:
        """Put `value` in the place of what is at `path`."""
        # The graph itself is not edited: one graph is built with many values, tracers among them.
        # Replacements are looked up by the identity of the owner, so that all paths to a shared
        # owner see them.
        place = find(self.graph, path)
        if value_nodes.is_value_node(place.value) and not place.is_default:
            # A value node is replaced as if it had been built already, so its users get the value.
            # One that is a default is never built, so there the argument itself is replaced.
            self.built[id(place.value)] = value
            return
        parts = parse_path(path)
        owners = [self.graph]
        for depth in range(1, len(parts)):
            owners.append(find(self.graph, parts[:depth]).value)
        # Equal constant tuples may be one object (Python interns them), so identity says nothing
        # about them: a replacement inside a tuple is stored at the innermost owner that is none,
        # as nested `_Inside` tables.
        # A tuple at the root has no such owner, and is refused below.
        depth = max(
            (i for i, owner in enumerate(owners) if not isinstance(owner, tuple)), default=0
        )
        owner = owners[depth]
        below_default = depth > 0 and find(self.graph, parts[:depth]).is_default
        # Below a default the owner belongs to the class and not to this graph, and dataclass
        # instances are leaves for `build`: neither is walked, so a replacement would be ignored.
        if below_default or not isinstance(owner, fdl.Buildable | list | dict):
            remedy = f"set all of {format_path(parts[: max(depth, 1)])} in the graph first"
            raise BadInput(Problem("only parts of nodes can be replaced", path, remedy=remedy))
        table = self.replaced.setdefault(id(owner), {})
        for part in parts[depth:-1]:
            table = table.setdefault(part, _Inside())
        table[parts[-1]] = value

    def build(self, value: Any, way: _Way, inside: _Inside | None = None) -> Any:
        """Return the object that `value`, met on `way`, describes."""
        kind = type(value)
        # Exact types first, as most values are plain leaves and `isinstance` of a Buildable asks an
        # abstract base class. Subclasses of dict and list are opaque leaves, as for Fiddle.
        if kind in _LEAVES:
            return value
        if isinstance(value, fdl.Buildable):
            return self._once(value, way, self._node)
        if kind is dict:
            return self._once(value, way, self._dict)
        if kind is list:
            return self._once(value, way, self._list)
        if kind is tuple:
            return tuple(self._children(value, enumerate(value), inside, way).values())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = zip(value._fields, value, strict=True)
            return kind(**self._children(value, fields, inside, way))
        return value

    def _once(self, value: Any, way: _Way, make: Any) -> Any:
        key = id(value)
        result = self.built.get(key, self)  # `self` as the sentinel: nothing builds to it
        if result is self:
            # Marked while it is being built, so that a cycle is an error and not a RecursionError.
            self.built[key] = _UNDER_WAY
            result = self.built[key] = make(value, way)
        elif result is _UNDER_WAY:
            raise BadInput(Problem("the config contains a cycle here", _written(way)))
        return result

    def _children(self, owner: Any, entries: Any, table: Any, way: _Way) -> dict[Any, Any]:
        """Return the built parts of one node or container, replaced ones included."""
        if not table:
            return {part: self.build(child, (way, part)) for part, child in entries}
        # A replaced child is not built at all, so it need not be buildable.
        built = {}
        for part, child in entries:
            new = table.get(part, table)
            if new is table:
                built[part] = self.build(child, (way, part))
            elif isinstance(new, _Inside):
                built[part] = self.build(child, (way, part), new)
            else:
                built[part] = new
        if isinstance(owner, fdl.Buildable):  # arguments that were left at their default
            built |= {part: new for part, new in table.items() if part not in built}
        return built

    def _dict(self, value: dict[Any, Any], way: _Way) -> Any:
        return self._children(value, value.items(), self.replaced.get(id(value)), way)

    def _list(self, value: list[Any], way: _Way) -> Any:
        table = self.replaced.get(id(value))
        return list(self._children(value, enumerate(value), table, way).values())

    def _node(self, node: fdl.Buildable, way: _Way) -> Any:
        unbuilt = node.__arguments__
        table = self.replaced.get(id(node))
        arguments = self._children(node, unbuilt.items(), table, way)
        # Fiddle stores positional-only arguments by index; a call needs them in order.
        positional: list[Any] = []
        if not all(isinstance(part, str) for part in arguments):
            arguments = _without_gaps(node, arguments, way)
            positional, arguments = node.__signature_info__.transform_to_args_kwargs(arguments)
        kind = type(node)
        # The common template, without Fiddle: `Partial.__build__` walks through all built arguments
        # in search of factories. Only nodes and containers can hold one.
        if kind is fdl.Partial and not any(_may_hold_factory(child) for child in unbuilt.values()):
            return functools.partial(node.__fn_or_cls__, *positional, **arguments)
        # Fiddle would pass the built factory on as an argument, and some class would store it.
        # Only direct arguments are looked at: one in a list is passed on, as by Fiddle.
        # Only a Config refuses one: an outer ArgFactory calls it whenever it makes its own value.
        factories = [part for part, child in unbuilt.items() if type(child) is fdl.ArgFactory]
        part = next((part for part in factories if part not in (table or ())), None)
        if kind is fdl.Config and part is not None:
            what = "an ArgFactory is only allowed in a Partial, which calls it at every call"
            raise BadInput(Problem(what, _written((way, part)), remedy="use fdl.Config here"))
        try:
            return node.__build__(*positional, **arguments)
        except BadInput as error:
            # Our own components report paths relative to themselves.
            raise _under(error, _written(way)) from error
        except (LuthierError, MemoryError):  # not about the arguments: never blamed on the config
            raise
        except Exception as error:
            if _is_of_jax(error):
                raise
            refusal = _refused(self.graph, node, _written(way), error)
            if user_code.frames(error):
                (problem,) = refusal.problems
                raise UserCodeError(problem, user_code.details(error)) from error
            raise refusal from error


def _without_gaps(node: fdl.Buildable, arguments: dict[Any, Any], way: _Way) -> dict[Any, Any]:
    """Return arguments with the defaults of positional-only ones that are open before set ones."""
    # Fiddle passes those that are set one after the other, so the ones behind a gap would move up.
    known = signatures.arguments(node.__fn_or_cls__)
    last = max(part for part in arguments if isinstance(part, int))
    filled = dict(arguments)
    for index, name in enumerate(known.positional_only[:last]):
        if index in filled:
            continue
        if name not in known.defaults:
            what = f"{display_name(node.__fn_or_cls__)} needs {name}, since a later one is set"
            at = _written((way, index))
            raise BadInput(Problem(what, at, made_at(node), f"set {at}"))
        filled[index] = known.defaults[name]
    return filled


def _may_hold_factory(child: Any) -> bool:
    return isinstance(child, fdl.ArgFactory | list | tuple | dict)


def _is_of_jax(error: Exception) -> bool:
    """Return whether jax raised the error itself: a tracer used as a number, a full device."""
    # By module name, because this package must not import jax.
    return any(cls.__module__.split(".")[0] in ("jax", "jaxlib") for cls in type(error).__mro__)


def _parts(way: _Way) -> Path:
    parts = []
    while way is not None:
        way, part = way
        parts.append(part)
    return tuple(reversed(parts))


def _written(way: _Way) -> str:
    return format_path(_parts(way))


def _under(error: BadInput, path: str) -> BadInput:
    """Return `error` with `path` put before the paths of its problems."""

    def moved(problem: Problem) -> Problem:
        inner = problem.path
        if inner == path or (path and inner.startswith((f"{path}.", f"{path}["))):
            return problem
        dot = "." if path and inner and not inner.startswith("[") else ""
        return dataclasses.replace(problem, path=f"{path}{dot}{inner}")

    # The same class, since callers and exit codes distinguish kinds of bad input.
    try:
        return type(error)([moved(problem) for problem in error.problems])
    except TypeError:  # a subclass with another constructor
        return BadInput([moved(problem) for problem in error.problems])


def _refused(graph: Graph, node: fdl.Buildable, path: str, error: Exception) -> BadInput:
    """Return `error`, raised while the node at `path` was built, as bad input on one line."""
    # Python gives the argument at fault only in the text of the exception, so the text is searched:
    # for an unexpected or missing argument in the words of CPython's TypeError, then for the name
    # or the value of an argument that was set. The match decides only which path and origin the
    # message names; the original text is always part of it.
    path, node = _culprit(node, path, error)
    message = " ".join(str(error).split()) or "no reason is given"
    message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
    target = node.__fn_or_cls__
    what = f"{display_name(target)} refused: {type(error).__name__}: {message}"
    # Both names are checked against this node, since its code may make the same error in a call of
    # another function.
    known = signatures.arguments(target).names
    unknown = re.search(r"unexpected keyword argument '(\w+)'", message)
    if unknown and unknown[1] in node.__arguments__:
        at, near = join(path, unknown[1]), nearest(unknown[1], known)
        return BadInput(Problem(what, at, _origin(graph, node, at), nearest=near))
    if "missing" in message:
        missing = [name for name in re.findall(r"'(\w+)'", message) if name in known]
        if missing:
            remedy = " and ".join(f"set {join(path, name)}" for name in missing)
            return BadInput(Problem(what, path, made_at(node), remedy))
    # A value of a child can be at fault, too, or a combination: then only the node is named.
    part = _blamed(node, message)
    if part is None:
        return BadInput(Problem(what, path, made_at(node)))
    return BadInput(Problem(what, join(path, part), _origin(graph, node, join(path, part))))


def _origin(graph: Graph, node: fdl.Buildable, path: str) -> str:
    try:
        return origin_of(graph, path) or made_at(node)
    except (UnknownReference, KeyError):
        return made_at(node)


def _blamed(node: fdl.Buildable, message: str) -> Any:
    """Return the argument of `node` that a message is about; None where it is not clear."""
    # Quoted names before bare ones ("dim" is also an English word), and the first name in the
    # text before later ones, as in "heads must divide dim".
    arguments = node.__arguments__
    for pattern in (r"[`'\"]{}[`'\"]", r"\b{}\b"):
        named = {
            found.start(): part
            for part in arguments
            if (found := re.search(pattern.format(re.escape(str(part))), message))
        }
        if named:
            return named[min(named)]
    if len(arguments) == 1:
        return next(iter(arguments))
    for part, child in arguments.items():
        plain = value_nodes.evaluate(child) if value_nodes.is_value_node(child) else child
        mentioned = rf"(?<!\w){re.escape(repr(plain))}(?!\w)"
        if isinstance(plain, int | float | str) and re.search(mentioned, message):
            return part
    return None


def _culprit(node: fdl.Buildable, path: str, error: Exception) -> tuple[str, fdl.Buildable]:
    """Return the path and node of the template below `node` in whose call the error arose.

    A parent calls its templates in its own `__init__`, so an error of a child arises while the
    parent is built. The frames of the traceback show which classes were being constructed.
    """
    # Two templates of one class cannot be distinguished by frames; the last one in the graph is
    # named.
    frames = set()
    trace = error.__traceback__
    while trace is not None:
        frames.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    candidates = [(path, node)]
    for below, child in nodes(node):
        code = _code(child.__fn_or_cls__)
        if code in frames and isinstance(child, fdl.Partial) and child is not node:
            dot = "." if path and below and not below.startswith("[") else ""
            candidates.append((f"{path}{dot}{below}", child))
    return candidates[-1]


def _code(target: Any) -> Any:
    maker = getattr(target, "__init__", None) if isinstance(target, type) else target
    return getattr(maker, "__code__", None)
