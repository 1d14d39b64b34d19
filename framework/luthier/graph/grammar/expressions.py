"""Calls in values: `optax.sgd(1e-2, momentum=.9)` becomes a node, its arguments checked by name."""

from __future__ import annotations

import ast
import dataclasses
import operator
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import fiddle as fdl

from luthier.durations import Epochs
from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.grammar import names, types
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.grammar.types import NOTHING, choice
from luthier.graph.paths import Part, Path, nearest
from luthier.graph.signatures import UNSET


def slots(target: Any, taken: int = 0) -> list[Part]:
    """Return the arguments that can be passed by position: as an index if positional-only.

    Args:
      target: A class or function.
      taken: How many of the first ones are passed by the caller already.
    """
    known = signatures.arguments(target)
    return [*range(len(known.positional_only)), *known.names][taken:]


def bind(target: Any, name: str, tree: ast.Call, taken: int = 0) -> dict[Part, ast.expr]:
    """Return the arguments of a call by name, unread.

    Args:
      target: The class or function.
      name: Its name in the text.
      tree: The call.
      taken: How many of the first arguments the caller passes itself.

    Raises:
      Unreadable: It takes no such argument, or cannot be a node at all.
    """
    # Names are assigned before any value is read, because the annotation of the argument directs
    # the reading. `inspect.Signature.bind` does not serve: it knows neither positional-only
    # arguments by index nor close names for its message.
    _check_callable(target, name)
    known = signatures.arguments(target)
    if any(isinstance(item, ast.Starred) for item in tree.args):
        raise Unreadable("* is not allowed in a value")
    free = slots(target, taken)
    names = [part for part in free if isinstance(part, str)]
    if len(tree.args) > len(free):
        takes = f"{name} takes {len(free)} arguments, not {len(tree.args)}"
        raise Unreadable(f"{takes} without a name")
    assigned: dict[Part, ast.expr] = dict(zip(free, tree.args, strict=False))
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise Unreadable("** is not allowed in a value")
        if keyword.arg in assigned:
            raise Unreadable(f"{name} is given {keyword.arg!r} twice")
        if keyword.arg not in names and not known.has_kwargs:
            close = nearest(keyword.arg, names)
            remedy = "" if close else f"it takes {', '.join(names) or 'none'}"
            what = f"{name} has no argument {keyword.arg!r}"
            raise Unreadable(Problem(what, nearest=close, remedy=remedy))
        assigned[keyword.arg] = keyword.value
    return assigned


def _check_callable(target: Any, name: str) -> None:
    if not callable(target):
        raise Unreadable(f"{name} is not callable")
    if signatures.arguments(target).has_args:
        remedy = "wrap it in a function that takes a list"
        raise Unreadable(Problem(f"{name} takes *args, which a graph cannot name", remedy=remedy))


def kind_of(
    target: Any, given: Collection[Part], current: Any = UNSET, annotation: Any = Any
) -> type[fdl.Buildable]:
    """Return whether a call makes a template or a node.

    A call makes a template where it replaces one or the annotation wants one, and so does a call of
    an NNX module without its `rngs`: the parent calls it with them.

    Args:
      target: The class or function.
      given: The names of its arguments in the call.
      current: The current value of the place.
      annotation: The resolved annotation of the place.
    """
    if isinstance(current, fdl.Partial) or types.is_template_at(target, annotation):
        return fdl.Partial
    needs_rngs = "rngs" in signatures.arguments(target).names and "rngs" not in given
    return fdl.Partial if signatures.is_module_class(target) and needs_rngs else fdl.Config


def make_node(
    target: Any, kind: type[fdl.Buildable], given: Mapping[Part, Any] | None = None
) -> fdl.Buildable:
    """Return a node of `target`.

    Args:
      target: A class or function.
      kind: `fdl.Config` or `fdl.Partial`.
      given: Arguments by name (by index for positional-only ones).

    Raises:
      Unreadable: It cannot be a node.
    """
    _check_callable(target, getattr(target, "__name__", repr(target)))
    try:
        node = kind(target)
        for part, value in (given or {}).items():
            if isinstance(part, int):
                node[part] = value
            else:
                setattr(node, part, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{target!r} cannot be a node: {' '.join(str(error).split())}") from None
    return node


# Expressions in values: an allow-list of Python's syntax trees with a meaning for each.
#
# Never `eval`, not even with empty builtins: overrides come from sweeps, files and gin configs of
# other people, and an attribute chain of any object leads to everything. What is not listed raises.

# `$model.dim` is not Python. It is parsed as an attribute chain of a name that nobody uses.
_REFERENCE = "reference_to_"
_QUOTED_OR_DOLLAR = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\$(?=[A-Za-z_])""")
_ARITHMETIC: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ast.Add: (operator.add, values.add),
    ast.Sub: (operator.sub, values.subtract),
    ast.Mult: (operator.mul, values.multiply),
    ast.Div: (operator.truediv, values.true_divide),
    ast.FloorDiv: (operator.floordiv, values.floor_divide),
    ast.Mod: (operator.mod, values.modulo),
    ast.Pow: (operator.pow, values.power),
}
_LONGEST = 100_000  # characters: the time and memory of Python's parser are bounded by it


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The context in which a value is read: where names and references are looked up.

    Args:
      near: Callables whose modules are searched for bare names.
      reference: Returns the value node for a path that the value refers to; None where references
        have no meaning.
      only_references: Whether every name is a path of the graph (`ref:model.dim * 4`).
      packages: Modules that values may name, beside those that every value may.
    """

    near: Sequence[Any] = ()
    reference: Callable[[Path], Any] | None = None
    only_references: bool = False
    packages: Sequence[str] = ()


def parse(text: str) -> tuple[str, ast.expr]:
    """Return the syntax tree of a value, and the source that it is the tree of.

    Args:
      text: The value as written; references (`$model.dim`) become names that Python can parse.

    Raises:
      Unreadable: It is not an expression, or too long or too deep.
    """
    if len(text) > _LONGEST:
        raise Unreadable(f"the value is longer than {_LONGEST} characters")
    source = _QUOTED_OR_DOLLAR.sub(lambda match: match[1] or f"{_REFERENCE}.", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `1is`: the text is the user's, not code of ours
            return source, ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        excerpt = text if len(text) <= 80 else f"{text[:77]}..."
        raise Unreadable(f"cannot read {excerpt!r}") from None


class ExpressionReader:
    """Converts one parsed value; syntax that is not listed is rejected.

    Args:
      source: The text that was parsed.
      current: The current value of the place: a template is replaced by a template.
      around: Where names and references are looked up.
      kind: The node that the outermost call becomes; None to derive it (`kind_of`).
    """

    def __init__(
        self, source: str, current: Any, around: Surroundings, kind: type[fdl.Buildable] | None
    ):
        self._source_text = source
        self._current = current
        self._around = around
        self._kind = kind

    def convert(self, tree: ast.expr, annotation: Any) -> Any:
        """Return the value of a syntax tree, directed by an annotation."""
        try:
            return self._convert(tree, annotation)
        except RecursionError:
            raise Unreadable("the value is nested too deeply") from None

    def _convert(self, tree: ast.expr, annotation: Any) -> Any:
        # The order matters: where only text is wanted, `a-b`, `x.y` and `1,2` are text as written
        # (except calls, which make a node that returns text), so this comes before all forms but
        # quoted constants and references.
        if isinstance(tree, ast.Constant):
            return self._constant(tree)
        if self._is_reference(tree):
            return self._refer(tree)
        wanted = set(types.members(annotation))
        if wanted <= {str, type(None)} and not isinstance(tree, ast.Call):
            return self._source(tree)
        if isinstance(tree, ast.Tuple | ast.List | ast.Set):
            return self._sequence(tree, annotation)
        if isinstance(tree, ast.Dict):
            return self._dict(tree, annotation)
        if isinstance(tree, ast.UnaryOp | ast.BinOp):
            return self._arithmetic(tree)
        if isinstance(tree, ast.Name | ast.Attribute):
            return self._name(tree, annotation)
        if isinstance(tree, ast.Call):
            return self._call(tree, annotation)
        raise Unreadable(f"{self._source(tree)!r}: {type(tree).__name__} is not allowed in a value")

    def _source(self, tree: ast.expr) -> str:
        source = ast.get_source_segment(self._source_text, tree) or ast.unparse(tree)
        return source.replace(f"{_REFERENCE}.", "$")

    def _constant(self, tree: ast.Constant) -> Any:
        if isinstance(tree.value, bool | int | float | str) or tree.value is None:
            return tree.value
        raise Unreadable(f"{self._source(tree)!r} is not a value that a graph can hold")

    def _sequence(self, tree: ast.Tuple | ast.List | ast.Set, annotation: Any) -> Any:
        if isinstance(tree, ast.Set):
            raise Unreadable(f"{self._source(tree)!r}: a set has no order; write a tuple or list")
        # `[0.9, 0.95]` for a tuple: the annotation of the elements is that of the other kind of
        # sequence if there is none for this one; `coerce` converts the whole afterwards.
        container = tuple if isinstance(tree, ast.Tuple) else list
        items = []
        for index, item in enumerate(tree.elts):
            inside = types.element(annotation, container, index)
            if inside is Any:
                inside = types.element(annotation, tuple if container is list else list, index)
            items.append(self._item(item, inside))
        return container(items)

    def _item(self, tree: ast.expr, annotation: Any) -> Any:
        if isinstance(tree, ast.Name | ast.Attribute) and not self._is_reference(tree):
            member = choice(ast.unparse(tree), annotation)
            if member is not NOTHING:
                return member
        return self._convert(tree, annotation)

    def _dict(self, tree: ast.Dict, annotation: Any) -> dict[Any, Any]:
        items = {}
        for name, item in zip(tree.keys, tree.values, strict=True):
            if name is None:
                raise Unreadable("** is not allowed in a value")
            of_key = types.key(annotation)
            key = self._item(name, str if of_key is Any and isinstance(name, ast.Name) else of_key)
            if not isinstance(key, str | int):
                raise Unreadable(f"{self._source(name)!r} cannot be a key; keys are text or int")
            items[key] = self._item(item, types.element(annotation, dict, key))
        return items

    def _arithmetic(self, tree: ast.UnaryOp | ast.BinOp) -> Any:
        if isinstance(tree, ast.UnaryOp):
            inside = self._number(tree.operand)
            if isinstance(tree.op, ast.UAdd):
                return inside
            if isinstance(tree.op, ast.USub):
                return values.multiply(-1, inside) if values.is_value_node(inside) else -inside
            raise Unreadable(f"{self._source(tree)!r}: only + and - are allowed before a number")
        if type(tree.op) not in _ARITHMETIC:
            raise Unreadable(f"{self._source(tree)!r}: only + - * / // % ** are allowed")
        on_numbers, on_nodes = _ARITHMETIC[type(tree.op)]
        left, right = self._number(tree.left), self._number(tree.right)
        if values.is_value_node(left) or values.is_value_node(right):
            return on_nodes(left, right)
        # `10**10**10` would take all memory before anybody could check its result.
        if isinstance(tree.op, ast.Pow) and _is_huge(left, right):
            raise Unreadable(f"{self._source(tree)!r} is too large")
        try:
            result = on_numbers(left, right)
        except (ArithmeticError, ValueError) as error:
            raise Unreadable(f"{self._source(tree)!r}: {error}") from None
        if isinstance(result, complex):  # (-1)**0.5
            raise Unreadable(f"{self._source(tree)!r} is not a real number")
        return result

    def _number(self, tree: ast.expr) -> Any:
        value = self._convert(tree, float)
        if values.is_value_node(value):
            return value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Unreadable(f"{self._source(tree)!r} is not a number, which arithmetic needs")
        return value

    def _name(self, tree: ast.Name | ast.Attribute, annotation: Any) -> Any:
        # A word without quotes: truth values, None and dtypes first, then objects by name, and text
        # last, and only where the annotation wants text. For `Any` an unknown name is an error: as
        # text, a misspelt class would train something else.
        text = ast.unparse(tree)
        if not re.fullmatch(r"\w+(\.\w+)*", text):
            raise Unreadable(f"{text!r} is not a name")
        # `True` and `None` are constants of Python's tree, so only other spellings arrive here.
        lowered = text.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        if text == "null":
            return None
        wanted = types.members(annotation)
        if text in names.DTYPES and (Any in wanted or types.is_dtype_annotation(annotation)):
            return names.dtype(text)
        try:
            return self._find(text, annotation)
        except Unreadable as error:
            is_text = str in wanted or types.element(annotation, tuple) is str
            if is_text and not types.is_dtype_annotation(annotation):
                return self._source(tree)
            if Any in wanted and isinstance(tree, ast.Name) and not error.problem.remedy:
                remedy = "in quotes, it would be text"
                raise Unreadable(dataclasses.replace(error.problem, remedy=remedy)) from None
            raise

    def _find(self, name: str, annotation: Any) -> Any:
        if name == Epochs.__name__ and int in types.members(annotation):
            return Epochs  # `training.steps=Epochs(3)`, as in `training.stop=Epochs(3)`
        return names.find_object(name, annotation, self._around.near, self._around.packages)

    def _call(self, tree: ast.Call, annotation: Any) -> fdl.Buildable:
        # `kind` and `current` are about the outermost call only, so they are used up by it; the
        # arguments are read with the module of the called function among those to search.
        kind, self._kind = self._kind, None
        current, self._current = self._current, UNSET
        name = ast.unparse(tree.func)
        if not re.fullmatch(r"\w+(\.\w+)*", name):
            raise Unreadable(f"{name!r} cannot be called in a value")
        target = self._find(name, annotation)
        arguments = bind(target, name, tree)
        hints, defaults = signatures.type_hints(target), signatures.arguments(target).defaults
        outer = self._around
        self._around = dataclasses.replace(outer, near=(*outer.near, target))
        converted: dict[Part, Any] = {}
        try:
            for part, item in arguments.items():
                hint = hints.get(part, Any) if isinstance(part, str) else Any
                converted[part] = self._argument(
                    f"{name}({part}=...)", item, hint, defaults.get(part)
                )
        finally:
            self._around = outer
        return make_node(target, kind or kind_of(target, converted, current, annotation), converted)

    def _argument(self, where: str, tree: ast.expr, hint: Any, default: Any) -> Any:
        if types.admits_anything(hint):
            hint = types.inferred(default)
        try:
            value = self._item(tree, hint)
            if isinstance(value, int | float | list | tuple | str):
                value = fitting.coerce(value, hint)
            fitting.check(value, hint)
        except Unreadable as error:
            problem = error.problem
            if not problem.what.startswith(where):
                problem = dataclasses.replace(problem, what=f"{where}: {problem.what}")
            raise Unreadable(problem) from error
        return value

    def _is_reference(self, tree: ast.expr) -> bool:
        while isinstance(tree, ast.Attribute | ast.Subscript):
            tree = tree.value
        if not isinstance(tree, ast.Name):
            return False
        return tree.id == _REFERENCE or self._around.only_references

    def _refer(self, tree: ast.expr) -> Any:
        parts = tuple(reversed(list(self._parts(tree))))
        if parts and parts[0] == _REFERENCE:
            parts = parts[1:]
        if self._around.reference is None:
            raise Unreadable(f"{self._source(tree)!r}: there is no config to refer to here")
        return self._around.reference(parts)

    def _parts(self, tree: Any) -> Iterator[Part]:
        while not isinstance(tree, ast.Name):
            if isinstance(tree, ast.Attribute):
                yield tree.attr
            elif isinstance(tree, ast.Subscript):
                inside = tree.slice
                if not isinstance(inside, ast.Constant) or not isinstance(inside.value, str | int):
                    raise Unreadable(f"{self._source(tree)!r} is not a path")
                yield inside.value
            tree = tree.value
        yield tree.id


def _is_huge(base: float, exponent: float) -> bool:
    # By the bits of the result, which are those of the base times the exponent. Floats overflow by
    # themselves, with an error.
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        return abs(base) > 1 and base.bit_length() * exponent > 4096
    return False
