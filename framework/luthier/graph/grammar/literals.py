"""Values of the override grammar: text and an annotation in, a value or node out. Never `eval`.

The annotation directs the reading: `1e3` is an int where an int is wanted, `bf16` a dtype, a bare
word a string where a string is wanted, a member of an enum by name or value. `pkg.Mlp(dim=3)`
becomes a node, `$model.dim * 4` a live value node.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import math
import operator
import pathlib
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl
import typing_extensions

from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.grammar import calls, names, types
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.paths import Part, Path, nearest
from luthier.graph.signatures import UNSET

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
_LONGEST = 100_000


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What is around the place that a value is for.

    Args:
      near: Callables whose modules are searched for bare names.
      reference: Returns the value node for a path that the value refers to; None where references
        have no meaning.
      only_references: Whether every name is a path of the graph (`ref:model.dim * 4`).
    """

    near: Sequence[Any] = ()
    reference: Callable[[Path], Any] | None = None
    only_references: bool = False


def read(
    text: str,
    annotation: Any = Any,
    current: Any = UNSET,
    around: Surroundings = Surroundings(),
) -> Any:
    """Return the value that `text` means at a place, checked against the annotation.

    Args:
      text: What was written.
      annotation: The resolved annotation of the place; `Any` where there is none.
      current: What is there now, or the default.
      around: Where names and references are looked up.

    Raises:
      Unreadable: It means nothing, or does not fit the annotation.
    """
    value = interpret(text, annotation, current, around)
    check(value, expected(annotation, current))
    return value


def expected(annotation: Any, current: Any) -> Any:
    """Return the annotation of a place, or the one that its value suggests where there is none."""
    if not types.admits_anything(annotation) or current is UNSET:
        return annotation
    return types.inferred(current)


def interpret(
    text: str,
    annotation: Any = Any,
    current: Any = UNSET,
    around: Surroundings = Surroundings(),
) -> Any:
    """Return the value that `text` means at a place, whether it fits there or not.

    Args:
      text: What was written.
      annotation: The resolved annotation of the place; `Any` where there is none.
      current: What is there now, or the default: its type directs where the annotation says
        nothing, and a template (`fdl.Partial`) is replaced by a template.
      around: Where names and references are looked up.

    Raises:
      Unreadable: It means nothing.
    """
    text = text.strip()
    annotation = expected(annotation, current)
    if text[:1] == "$" and not text[1:2].isdigit():
        around = dataclasses.replace(around, only_references=False)
    elif text.startswith("ref:"):
        text, around = text[4:].strip(), dataclasses.replace(around, only_references=True)
    return coerce(_read(text, annotation, current, around), annotation)


def check(value: Any, annotation: Any) -> None:
    """Raise `Unreadable` where a value or node does not fit an annotation."""
    try:
        fitting = types.fits(value, annotation)
    except (ValueError, ArithmeticError, TypeError) as error:  # of a value node's arithmetic
        raise Unreadable(f"{values.expression(value)} cannot be computed: {error}") from None
    if fitting:
        return
    remedy = ""
    wanted = types.members(annotation)
    if value is None and str in wanted:
        remedy = f"for the text, write it in quotes: '{value}'"
    elif isinstance(value, type):
        remedy = f"for a node, write {value.__name__}()"
    raise Unreadable(Problem(f"{shown(value)} is not {types.describe(annotation)}", remedy=remedy))


def shown(value: Any) -> str:
    """Return a value in an error message: short, and nodes by what they build."""
    if values.is_value_node(value):
        return f"{values.expression(value)} = {shown(values.evaluate(value))}"
    if isinstance(value, fdl.Buildable):
        name = getattr(value.__fn_or_cls__, "__name__", str(value.__fn_or_cls__))
        return f"{'a template of ' if isinstance(value, fdl.Partial) else ''}{name}(...)"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."


def _read(text: str, annotation: Any, current: Any, around: Surroundings) -> Any:
    wanted = types.members(annotation)
    is_text = str in wanted and not types.is_dtype_annotation(annotation)
    kind: type[fdl.Buildable] | None = None
    for word, of_kind in (("partial:", fdl.Partial), ("config:", fdl.Config)):
        if text.startswith(word):
            text, kind = text.removeprefix(word).strip(), of_kind
    referring = around.only_references or (text[:1] == "$" and text[1:2].isidentifier())
    if kind is None and not referring:
        if (found := _choice(text, annotation)) is not _NOTHING:
            return found
        if text in ("None", "null"):
            return None
        if set(wanted) <= {str, type(None)}:
            return _text(text)
    try:
        source, tree = _parse(text)
        reader = _Reader(source, current, around, kind)
        value = reader.convert(tree, annotation)
        if kind is not None and not isinstance(value, fdl.Buildable):
            value = calls.make_node(value, kind)
        if is_text and not isinstance(value, str) and not types.fits(value, annotation):
            return _text(text)
        return value
    except Unreadable as error:
        is_call = re.match(r"[\w.]+\(", text) is not None
        if not is_call and not referring and kind is None:
            if is_text:
                return _text(text)
            if pathlib.Path in wanted or pathlib.PurePath in wanted:
                return pathlib.Path(_text(text))
            if types.element(annotation, tuple) is str and not text.startswith(("(", "[")):
                return tuple(part.strip() for part in text.split(",") if part.strip())
        _raise_better(error, text, annotation)


def _raise_better(error: Unreadable, text: str, annotation: Any) -> typing.NoReturn:
    """Say what was wanted, where an unknown bare word was given."""
    wanted = types.members(annotation)
    choices = _choices(annotation)
    if choices and re.fullmatch(r"[\w.\-']+", text):
        what = f"{text!r} is not {types.describe(annotation)}"
        remedy = f"choose from {', '.join(choices)}"
        near = nearest(text.split(".")[-1], choices)
        raise Unreadable(Problem(what, nearest=near, remedy=remedy)) from None
    plain = all(m in (bool, int, float, complex, type(None)) for m in wanted)
    if (plain or types.is_dtype_annotation(annotation)) and re.fullmatch(r"[^\W\d][\w\-]*", text):
        near = nearest(text, names.DTYPES) if types.is_dtype_annotation(annotation) else []
        what = f"{text!r} is not {types.describe(annotation)}"
        raise Unreadable(Problem(what, nearest=near)) from None
    raise error


def _text(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        with contextlib.suppress(Unreadable, ValueError):
            _, tree = _parse(text)
            if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
                return tree.value
    return text


_NOTHING = object()


def _choice(text: str, annotation: Any) -> Any:
    """Return the member of an enum or literal type, or the truth value, that `text` names."""
    name = text.strip("'\"")
    exact: list[tuple[str, Any]] = []
    for member in types.members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            last = name.removeprefix(f"{member.__name__}.")
            for choice in member:
                if last == choice.name or last == str(choice.value):
                    return choice
                exact.append((choice.name, choice))
        elif typing_extensions.get_origin(member) is typing.Literal:
            for choice in typing_extensions.get_args(member):
                if name == str(choice):
                    return choice
        elif member is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        elif member is float and text.lower().lstrip("+-") in ("inf", "nan", "infinity"):
            return float(text)
    if text in ("None", "null"):
        return _NOTHING
    loose = [choice for other, choice in exact if other.lower() == name.lower()]
    return loose[0] if len(loose) == 1 else _NOTHING


def _choices(annotation: Any) -> list[str]:
    found: list[str] = []
    for member in types.members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            found += [choice.name for choice in member]
        elif typing_extensions.get_origin(member) is typing.Literal:
            found += [str(choice) for choice in typing_extensions.get_args(member)]
    return found


def _parse(text: str) -> tuple[str, ast.expr]:
    if len(text) > _LONGEST:
        raise Unreadable(f"the value is longer than {_LONGEST} characters")
    source = _QUOTED_OR_DOLLAR.sub(lambda match: match[1] or f"{_REFERENCE}.", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `1is`: the text is the user's, not code of ours
            return source, ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        said = text if len(text) <= 80 else f"{text[:77]}..."
        raise Unreadable(f"cannot read {said!r}") from None


class _Reader:
    """Converts one parsed value; every node of the syntax tree that is not listed is refused."""

    def __init__(
        self, text: str, current: Any, around: Surroundings, kind: type[fdl.Buildable] | None
    ):
        self._text = text
        self._current = current
        self._around = around
        self._kind = kind

    def convert(self, tree: ast.expr, annotation: Any) -> Any:
        try:
            return self._convert(tree, annotation)
        except RecursionError:
            raise Unreadable("the value is nested too deeply") from None

    def _convert(self, tree: ast.expr, annotation: Any) -> Any:
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
        source = ast.get_source_segment(self._text, tree) or ast.unparse(tree)
        return source.replace(f"{_REFERENCE}.", "$")

    def _constant(self, tree: ast.Constant) -> Any:
        if isinstance(tree.value, bool | int | float | str) or tree.value is None:
            return tree.value
        raise Unreadable(f"{self._source(tree)!r} is not a value that a graph can hold")

    def _sequence(self, tree: ast.Tuple | ast.List | ast.Set, annotation: Any) -> Any:
        if isinstance(tree, ast.Set):
            raise Unreadable(f"{self._source(tree)!r}: a set has no order; write a tuple or list")
        container = tuple if isinstance(tree, ast.Tuple) else list
        made = []
        for index, item in enumerate(tree.elts):
            inside = types.element(annotation, container, index)
            if inside is Any:
                inside = types.element(annotation, tuple if container is list else list, index)
            made.append(self._item(item, inside))
        return container(made)

    def _item(self, tree: ast.expr, annotation: Any) -> Any:
        if isinstance(tree, ast.Name | ast.Attribute) and not self._is_reference(tree):
            found = _choice(ast.unparse(tree), annotation)
            if found is not _NOTHING:
                return found
        return self._convert(tree, annotation)

    def _dict(self, tree: ast.Dict, annotation: Any) -> dict[Any, Any]:
        made = {}
        for name, item in zip(tree.keys, tree.values, strict=True):
            if name is None:
                raise Unreadable("** is not allowed in a value")
            of_key = types.key(annotation)
            key = self._item(name, str if of_key is Any and isinstance(name, ast.Name) else of_key)
            if not isinstance(key, str | int):
                raise Unreadable(f"{self._source(name)!r} cannot be a key; keys are text or int")
            made[key] = self._item(item, types.element(annotation, dict, key))
        return made

    def _arithmetic(self, tree: ast.UnaryOp | ast.BinOp) -> Any:
        if isinstance(tree, ast.UnaryOp):
            inside = self._number(tree.operand)
            if isinstance(tree.op, ast.UAdd):
                return inside
            if isinstance(tree.op, ast.USub):
                return values.multiply(-1, inside) if values.is_value_node(inside) else -inside
            raise Unreadable(f"{self._source(tree)!r}: only + and - may stand before a number")
        if type(tree.op) not in _ARITHMETIC:
            raise Unreadable(f"{self._source(tree)!r}: only + - * / // % ** are allowed")
        on_numbers, on_nodes = _ARITHMETIC[type(tree.op)]
        left, right = self._number(tree.left), self._number(tree.right)
        if values.is_value_node(left) or values.is_value_node(right):
            return on_nodes(left, right)
        if isinstance(tree.op, ast.Pow) and _is_huge(left, right):
            raise Unreadable(f"{self._source(tree)!r} is too large")
        try:
            result = on_numbers(left, right)
        except (ArithmeticError, ValueError) as error:
            raise Unreadable(f"{self._source(tree)!r}: {error}") from None
        if isinstance(result, complex):
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
        text = ast.unparse(tree)
        if not re.fullmatch(r"\w+(\.\w+)*", text):
            raise Unreadable(f"{text!r} is not a name")
        lowered = text.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        if text == "null":
            return None
        wanted = types.members(annotation)
        if text in names.DTYPES and (Any in wanted or types.is_dtype_annotation(annotation)):
            return names.dtype(text)
        try:
            return names.find_object(text, annotation, self._around.near)
        except Unreadable:
            is_text = str in wanted or types.element(annotation, tuple) is str
            if is_text and not types.is_dtype_annotation(annotation):
                return self._source(tree)
            raise

    def _call(self, tree: ast.Call, annotation: Any) -> fdl.Buildable:
        kind, self._kind = self._kind, None
        current, self._current = self._current, UNSET
        name = ast.unparse(tree.func)
        if not re.fullmatch(r"\w+(\.\w+)*", name):
            raise Unreadable(f"{name!r} cannot be called in a value")
        target = names.find_object(name, annotation, self._around.near)
        arguments = calls.bind(target, name, tree)
        hints, defaults = signatures.type_hints(target), signatures.arguments(target).defaults
        outer = self._around
        self._around = dataclasses.replace(outer, near=(*outer.near, target))
        given: dict[Part, Any] = {}
        try:
            for part, item in arguments.items():
                hint = hints.get(part, Any) if isinstance(part, str) else Any
                given[part] = self._argument(f"{name}({part}=...)", item, hint, defaults.get(part))
        finally:
            self._around = outer
        return calls.make_node(target, kind or calls.kind_of(target, given, current), given)

    def _argument(self, where: str, tree: ast.expr, hint: Any, default: Any) -> Any:
        if types.admits_anything(hint):
            hint = types.inferred(default)
        try:
            value = self._item(tree, hint)
            if isinstance(value, int | float | list | tuple | str):
                value = coerce(value, hint)
            check(value, hint)
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
            raise Unreadable(f"{self._source(tree)!r}: there is no graph here to refer to")
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
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        return abs(base) > 1 and base.bit_length() * exponent > 4096
    return False


def coerce(value: Any, annotation: Any) -> Any:
    """Return `value` as the annotation wants it, where nothing is lost: `1e3` as the int 1000.

    Args:
      value: What was read.
      annotation: The annotation of its place.
    """
    if isinstance(value, bool | fdl.Buildable) or value is None:
        return value
    if type(value) is dict:
        return {k: coerce(v, types.element(annotation, dict, k)) for k, v in value.items()}
    wanted = types.members(annotation)
    if type(value) in (list, tuple):
        return _coerce_sequence(value, annotation, wanted)
    value = _coerce_scalar(value, wanted)
    for member in wanted:
        # One element where a tuple of any length is wanted: `axes=fsdp`.
        arguments = typing_extensions.get_args(member)
        if typing_extensions.get_origin(member) is tuple and arguments[1:] == (...,):
            item = coerce(value, arguments[0])
            if types.fits(item, arguments[0]) and not types.fits(value, annotation):
                return (item,)
    return value


def _coerce_scalar(value: Any, wanted: Sequence[Any]) -> Any:
    if isinstance(value, float) and int in wanted and float not in wanted:
        return int(value) if math.isfinite(value) and value.is_integer() else value
    if isinstance(value, int) and float in wanted and int not in wanted:
        with contextlib.suppress(OverflowError):
            return float(value)
    if isinstance(value, str) and pathlib.Path in wanted and str not in wanted:
        return pathlib.Path(value)
    return value


def _coerce_sequence(value: Any, annotation: Any, wanted: Sequence[Any]) -> Any:
    origins = [typing_extensions.get_origin(member) or member for member in wanted]
    container = type(value)
    if container not in origins and (list in origins or tuple in origins):
        container = list if list in origins else tuple
    return container(
        coerce(item, types.element(annotation, container, index))
        for index, item in enumerate(value)
    )
