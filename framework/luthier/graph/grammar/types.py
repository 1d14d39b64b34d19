"""Annotations of arguments: which values they admit, and conversion of values to them."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import inspect
import math
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import fiddle as fdl
import typing_extensions

from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import is_node
from luthier.graph.signatures import UNSET

# Strict checks of values against annotations: `True` is not an int, an int is a float.
#
# Nodes count as what they build: `fdl.Config(Mlp)` fits an annotation that `Mlp` fits, value nodes
# fit where their value does, a protocol admits every node.
#
# Why not pydantic for all of it? Nodes stand inside unions and containers (`list[Layer]` holds
# nodes of layers), so the annotation has to be walked anyway; pydantic serves the rest.

_UNIONS = (typing.Union, types.UnionType)  # `Optional[int]` and `int | None`
_SEQUENCES = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
NUMBER = int | float
_PLAIN = (bool, int, float, complex, str, bytes)


_MEMBERS: dict[int, tuple[Any, tuple[Any, ...]]] = {}
_MOST_MEMBERS = 10_000


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of an annotation: `int | None` has two, `int` one.

    Args:
      annotation: Any annotation; aliases, `Annotated`, new types and type variables count as what
        they stand for.
    """
    # By identity, because `int | str` and `str | int` are equal, and their order is shown.
    known = _MEMBERS.get(id(annotation))
    if known is None:
        if len(_MEMBERS) >= _MOST_MEMBERS:
            _MEMBERS.clear()
        # The annotation is kept, so that its id stays its own.
        known = _MEMBERS[id(annotation)] = (annotation, _find_members(annotation))
    return known[1]


def _find_members(annotation: Any) -> tuple[Any, ...]:
    # New types and aliases are recognized by what only they have: their classes differ between
    # typing, typing_extensions and versions of Python. An annotation that was not resolved admits
    # anything; rejecting a right value would be worse than missing a wrong one.
    origin = typing_extensions.get_origin(annotation)
    if origin in _UNIONS:
        arguments = typing_extensions.get_args(annotation)
        return tuple(part for argument in arguments for part in members(argument))
    if origin is typing.Annotated:
        return members(typing_extensions.get_args(annotation)[0])
    if isinstance(annotation, typing.TypeVar):
        if annotation.__constraints__:
            return tuple(part for bound in annotation.__constraints__ for part in members(bound))
        return members(annotation.__bound__) if annotation.__bound__ is not None else (Any,)
    if hasattr(annotation, "__supertype__"):
        return members(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return members(annotation.__value__)
    if type(origin).__name__ == "TypeAliasType" and (value := _substituted(annotation, origin)):
        return members(value)
    if annotation is None:
        return (type(None),)
    if annotation in (inspect.Parameter.empty, object) or isinstance(annotation, str):
        return (Any,)
    if isinstance(annotation, typing.ForwardRef):
        return (Any,)
    return (annotation,)


def _substituted(annotation: Any, alias: Any) -> Any:
    """Return what an alias with arguments, `Listed[int]`, stands for; None where it is unknown."""
    # The parameters of the value are in the order in which it names them, which need not be that of
    # the alias. Those that take several types are left to pydantic, with the whole annotation.
    given = dict(zip(alias.__type_params__, typing_extensions.get_args(annotation), strict=False))
    if isinstance(alias.__value__, typing.TypeVar):
        return given.get(alias.__value__)
    named = getattr(alias.__value__, "__parameters__", ())
    if not all(isinstance(one, typing.TypeVar) and one in given for one in named):
        return None
    return alias.__value__[tuple(given[one] for one in named)] if named else alias.__value__


TEMPLATE = "template"
"""Metadata of an annotation that wants a template: see `luthier.layers.Template`."""


def wants_template(annotation: Any) -> bool:
    """Return whether an annotation is for templates: callables that make the object.

    Args:
      annotation: A resolved annotation, such as `Template | None`.
    """
    origin = typing_extensions.get_origin(annotation)
    arguments = typing_extensions.get_args(annotation)
    if origin is typing.Annotated:
        inside, *metadata = arguments
        return TEMPLATE in [one for one in metadata if type(one) is str] or wants_template(inside)
    return origin in _UNIONS and any(map(wants_template, arguments))


def is_template_at(target: Any, annotation: Any) -> bool:
    """Return whether a call of `target` at a place means its template, which somebody else calls.

    Args:
      target: A class or function.
      annotation: The resolved annotation of the place.
    """
    # A callable is not enough to tell: an activation may be an object with a `__call__`, and so may
    # be a layer. Hence the marker; without it, only an object that does not fit makes a template.
    if wants_template(annotation):
        return True
    wanted = members(annotation)
    return not any(_call_fits(target, False, member) for member in wanted) and any(
        _call_fits(target, True, member) for member in wanted
    )


def admits_anything(annotation: Any) -> bool:
    """Return whether the annotation admits any value."""
    return Any in members(annotation) and not is_dtype_annotation(annotation)


def is_dtype(value: object) -> bool:
    """Return whether `value` is a dtype of NumPy or JAX."""
    # Looked up, not imported: a graph without numpy holds no dtypes, and start-up does not wait.
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(value, numpy.dtype):
        return True
    if not isinstance(value, type):
        return False
    return issubclass(value, numpy.generic) or isinstance(
        getattr(value, "dtype", None), numpy.dtype
    )


def is_dtype_annotation(annotation: Any) -> bool:
    """Return whether an annotation is for dtypes (`jax.typing.DTypeLike`, `jnp.dtype`)."""
    numpy = sys.modules.get("numpy")
    if numpy is None or annotation in _PLAIN:
        return False
    return any(
        member is numpy.dtype or typing_extensions.get_origin(member) is numpy.dtype
        for member in members(annotation)
    )


def inferred(value: Any) -> Any:
    """Return the annotation that a value suggests if its place has none; `Any` if it is unclear."""
    value = values.evaluate(value) if values.is_value_node(value) else value
    if isinstance(value, bool | str | enum.Enum):
        return type(value)
    if isinstance(value, int | float):
        return NUMBER
    if is_dtype(value):
        return sys.modules["numpy"].dtype
    if type(value) in (list, tuple, dict):
        return type(value)
    return Any


def element(annotation: Any, container: type, part: int | str = 0) -> Any:
    """Return the annotation of an element of a container with this annotation.

    Args:
      annotation: `tuple[int, ...]`, `dict[str, Path] | None`.
      container: `list`, `tuple` or `dict`.
      part: Which element.
    """
    for member in members(annotation):
        origin = typing_extensions.get_origin(member)
        arguments = typing_extensions.get_args(member)
        if not isinstance(origin, type) or not arguments or not issubclass(container, origin):
            continue
        if issubclass(container, dict):
            return arguments[1] if len(arguments) > 1 else Any
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
            is_inside = isinstance(part, int) and -len(arguments) <= part < len(arguments)
            return arguments[part] if is_inside else Any  # type: ignore[index]
        return arguments[0]
    return Any


def key(annotation: Any) -> Any:
    """Return the annotation of the keys of a dict that is annotated with `annotation`."""
    for member in members(annotation):
        if typing_extensions.get_origin(member) in _MAPPINGS:
            return next(iter(typing_extensions.get_args(member)), Any)
    return Any


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value or node fits an annotation.

    Args:
      value: A value, node or value node.
      annotation: A resolved annotation.
    """
    try:
        value = values.evaluate(value)
    except values.Deferred:
        return int in members(annotation)
    if values.is_deferred(value) and int in members(annotation):
        return True  # a number of steps, once the length of the data is known
    if value is signatures.UNSET or (annotation in _PLAIN and type(value) is annotation):
        return True
    if is_dtype_annotation(annotation) and not isinstance(value, fdl.Buildable):
        return _fits_dtype(value, annotation)
    return any(_fits_member(value, member) for member in members(annotation)) and _fits_limits(
        value, annotation
    )


def _fits_dtype(value: Any, annotation: Any) -> bool:
    # `jax.typing.DTypeLike` has `type[Any]` and a protocol among its members, and the walk over
    # members would let them admit every class.
    if value is None:
        return type(None) in members(annotation)
    if isinstance(value, str):
        try:
            sys.modules["numpy"].dtype(value)
        except TypeError:
            return False
        return str in members(annotation)
    return is_dtype(value)


def _fits_limits(value: Any, annotation: Any) -> bool:
    """Return whether the limits of an `Annotated` (`Annotated[int, Gt(0)]`) hold."""
    if typing_extensions.get_origin(annotation) is not typing.Annotated:
        return True
    if not isinstance(value, _PLAIN):
        return True
    return _fits_pydantic(value, annotation)


def _fits_member(value: Any, member: Any) -> bool:
    if member is Any:
        return True
    if is_node(value):
        return _node_fits(value, member)
    if member is type(None):
        return value is None
    # As the typing rules have it, an int is a float and both are complex; but not a bool, which is
    # an int only for Python: `steps=true` is a mistake.
    if member is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if member is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if member is complex:
        return isinstance(value, int | float | complex) and not isinstance(value, bool)
    if isinstance(member, type) and not typing_extensions.get_args(member):
        return _is_instance(value, member)
    return _fits_generic(value, member)


def _is_instance(value: Any, cls: type) -> bool:
    if typing_extensions.is_protocol(cls):
        if cls is collections.abc.Callable:
            return callable(value)
        wanted = typing_extensions.get_protocol_members(cls)
        return all(hasattr(value, name) and not _is_unbound(value, name) for name in wanted)
    if typing_extensions.is_typeddict(cls):
        return isinstance(value, dict)
    try:
        return isinstance(value, cls)
    except TypeError:  # a class whose metaclass refuses
        return True


def _is_unbound(value: Any, name: str) -> bool:
    """Return whether `value` is a class whose instances have the method, which lacks its `self`."""
    # `hasattr` alone takes the class for its instance: `optimizer=MyOptimizer` without brackets
    # would pass, and fail at the first call.
    if not isinstance(value, type) or name == "__call__":  # a class itself can be called
        return False
    return inspect.isfunction(inspect.getattr_static(value, name, None))


def _fits_generic(value: Any, member: Any) -> bool:
    # `isinstance` refuses parametrized generics, so their parts are checked one by one. Types with
    # a form of their own (`TypedDict` with generics, `Unpack`, ...) are left to pydantic.
    origin = typing_extensions.get_origin(member)
    arguments = typing_extensions.get_args(member)
    if origin is typing.Literal:  # with the type, because 1 == True == 1.0
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    # `typing.List` alone, like `list`, says nothing about elements; `tuple[()]` has no arguments
    # either, but is empty.
    is_bare = not arguments and (origin is not tuple or member is typing.Tuple)  # noqa: UP006
    if is_bare and isinstance(origin, type):
        return _is_instance(value, origin)
    if member is Callable or origin is collections.abc.Callable or member is typing.Callable:
        return callable(value)
    if origin is type:
        return isinstance(value, type) and _is_subclass(value, arguments[0])
    if origin in _MAPPINGS:
        return isinstance(value, dict) and all(
            fits(name, arguments[0]) and fits(child, arguments[1]) for name, child in value.items()
        )
    if origin in _SEQUENCES:
        # Text is a sequence of text, and a dict one of its keys, but nobody means either.
        if isinstance(value, str | bytes | dict) or not _is_instance(value, origin):
            return False
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
            if arguments == ((),):  # `tuple[()]`, as some versions of Python write it
                return value == ()
            return len(value) == len(arguments) and all(map(fits, value, arguments))
        return all(fits(child, arguments[0]) for child in value)
    if isinstance(origin, type):
        return _is_instance(value, origin)
    return _fits_pydantic(value, member)


def _fits_pydantic(value: Any, annotation: Any) -> bool:
    # Strict, since pydantic would otherwise convert "3" to 3 and report that it fits.
    import pydantic  # here, because it is slow to import and rarely needed

    config = pydantic.ConfigDict(arbitrary_types_allowed=True, strict=True)
    try:
        pydantic.TypeAdapter(annotation, config=config).validate_python(value)
    except pydantic.ValidationError:
        return False
    except Exception:  # pydantic cannot read the annotation: nothing is known against the value
        return True
    return True


def _is_subclass(cls: type, wanted: Any) -> bool:
    for member in members(wanted):
        origin = typing_extensions.get_origin(member) or member
        if member is Any or not isinstance(origin, type) or typing_extensions.is_protocol(origin):
            return True
        try:
            if issubclass(cls, origin):
                return True
        except TypeError:
            return True
    return False


def _node_fits(node: fdl.Buildable, member: Any) -> bool:
    return _call_fits(node.__fn_or_cls__, isinstance(node, fdl.Partial), member)


def _call_fits(target: Any, is_template: bool, member: Any) -> bool:
    # By what the node builds, without building it: an instance of its class, or what its function
    # is annotated to return. In doubt it fits; a wrong node is an error when it is built.
    origin = typing_extensions.get_origin(member) or member
    is_protocol = isinstance(origin, type) and typing_extensions.is_protocol(origin)
    if is_protocol or isinstance(origin, typing.TypeVar):
        return True
    if is_template:
        if origin in (collections.abc.Callable, typing.Callable):
            return True
        if origin is type:
            member = next(iter(typing_extensions.get_args(member)), Any)
    if isinstance(target, type):
        return _builds(target, member, exactly=True)
    produced = signatures.type_hints(target).get("return", Any)
    return any(_builds(part, member, exactly=False) for part in members(produced))


def _builds(produced: Any, member: Any, exactly: bool) -> bool:
    """Return whether an instance of `produced` fits; if not `exactly`, one of a subclass may."""
    wanted = typing_extensions.get_origin(member) or member
    produced = typing_extensions.get_origin(produced) or produced
    if produced is Any or wanted is Any or not isinstance(produced, type):
        return True
    if wanted in (collections.abc.Callable, typing.Callable):
        is_open = produced is collections.abc.Callable or typing_extensions.is_protocol(produced)
        return is_open or any("__call__" in cls.__dict__ for cls in produced.__mro__)
    if wanted is typing.Literal or not isinstance(wanted, type):
        return False
    if wanted is float and produced is int:
        return True
    try:
        return issubclass(produced, wanted) or (not exactly and issubclass(wanted, produced))
    except TypeError:
        return True


def describe(annotation: Any) -> str:
    """Return an annotation as a phrase with its article: `an int or None`."""
    # Unions of jax are long, and their members are nothing that people write.
    if is_dtype_annotation(annotation):
        return "a dtype or None" if type(None) in members(annotation) else "a dtype"
    names = {getattr(member, "__name__", "").split(".")[-1] for member in members(annotation)}
    if {"Array", "float"} <= names:
        return "a number, an array or a callable" if "Callable" in names else "a number or an array"
    words = list(dict.fromkeys(_describe_member(member) for member in members(annotation)))
    if "None" in words:
        words = [word for word in words if word != "None"] + ["None"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _describe_member(member: Any) -> str:
    origin, arguments = typing_extensions.get_origin(member), typing_extensions.get_args(member)
    if member is type(None):
        return "None"
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is collections.abc.Callable or member is typing.Callable:
        return "a callable"
    if origin in _MAPPINGS and arguments:
        return f"a dict of {_plain(arguments[0])} to {_plain(arguments[1])}"
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        inside = ", ".join(_plain(argument) for argument in arguments)
        return f"a tuple of ({inside})"
    if origin in _SEQUENCES and arguments:
        return f"a {origin.__name__.lower()} of {_plain(arguments[0])}"
    name = getattr(member, "__name__", None) or str(member).removeprefix("typing.")
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _plain(annotation: Any) -> str:
    return describe(annotation).replace("an ", "").replace("a ", "")


# Words with a meaning of their own under an annotation: members of enums and literal types, truth
# values.

NOTHING = object()
"""The result of `choice` for a text that names no member."""


def choice(text: str, annotation: Any) -> Any:
    """Return the member of an enum or literal type, or the truth value, that `text` names.

    Args:
      text: A bare word, or a quoted one.
      annotation: The annotation of the place that it is for.
    """
    # Exact names come before names in another case, and an inexact one must be the only one. None
    # comes between them, so that `None` is None beside a member called NONE.
    name = text.strip("'\"")
    exact: list[tuple[str, Any]] = []
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            last = name.removeprefix(f"{member.__name__}.")
            for option in member:
                if last == option.name or last == str(option.value):
                    return option
                exact.append((option.name, option))
        elif typing_extensions.get_origin(member) is typing.Literal:
            for option in typing_extensions.get_args(member):
                if name == str(option):
                    return option
        elif member is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        # Python has no literal for these: as an expression, the bare word would be a name.
        elif member is float and text.lower().lstrip("+-") in ("inf", "nan", "infinity"):
            return float(text)
    if text in ("None", "null"):
        return NOTHING
    loose = [option for other, option in exact if other.lower() == name.lower()]
    return loose[0] if len(loose) == 1 else NOTHING


def choices(annotation: Any) -> list[str]:
    """Return the members of enums and literal types that `choice` accepts for an annotation."""
    names: list[str] = []
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            names += [option.name for option in member]
        elif typing_extensions.get_origin(member) is typing.Literal:
            names += [str(option) for option in typing_extensions.get_args(member)]
    return names


# Conversion of values to annotations where nothing is lost, and errors where they do not fit.


def expected(annotation: Any, current: Any) -> Any:
    """Return the annotation of a place, or if it has none, the one that `current` suggests."""
    if not admits_anything(annotation) or current is UNSET:
        return annotation
    return inferred(current)


def _makes(value: Any, wanted: Sequence[Any]) -> bool:
    """Return whether calling a function gives what is wanted, by its annotation."""
    if not inspect.isroutine(value):
        return False
    returned = signatures.type_hints(value).get("return")
    return isinstance(returned, type) and any(
        isinstance(kind, type) and kind is not object and _is_kind_of(returned, kind)
        for kind in wanted
    )


def _is_kind_of(returned: type, kind: type) -> bool:
    if typing_extensions.is_protocol(kind):
        # As `_is_instance` judges an object; fields of a dataclass are no attributes of its class.
        known = {*dir(returned), *getattr(returned, "__dataclass_fields__", ())}
        return known >= typing_extensions.get_protocol_members(kind)
    try:
        return issubclass(returned, kind)
    except TypeError:  # a class whose metaclass refuses
        return False


def required_arguments(target: Any) -> str:
    """Return the arguments that a call of `target` needs, as text: `learning_rate=..., b1=...`."""
    missing = signatures.arguments(target).required if callable(target) else ()
    return ", ".join("..." if isinstance(name, int) else f"{name}=..." for name in missing)


def check(value: Any, annotation: Any) -> None:
    """Raise `Unreadable` if a value or node does not fit an annotation."""
    try:
        fitting = fits(value, annotation)
    except (ValueError, ArithmeticError, TypeError) as error:  # of a value node's arithmetic
        raise Unreadable(f"{values.expression(value)} cannot be computed: {error}") from None
    if fitting:
        return
    remedy = ""
    wanted = members(annotation)
    if value is None and str in wanted:
        remedy = f"for the text, write it in quotes: '{value}'"
    elif isinstance(value, type) or _makes(value, wanted):
        remedy = f"for a node, write {value.__name__}({required_arguments(value)})"
    raise Unreadable(Problem(f"{shown(value)} is not {describe(annotation)}", remedy=remedy))


def shown(value: Any) -> str:
    """Return a short text of a value for an error message; nodes as a call of their class."""
    if values.is_value_node(value):
        # Also called for messages about values that cannot be computed, as `seed // 0`.
        try:
            computed = shown(values.evaluate(value))
        except (ValueError, ArithmeticError, TypeError) as error:
            return f"{values.expression(value)} ({error})"
        return f"{values.expression(value)} = {computed}"
    if isinstance(value, fdl.Buildable):
        name = getattr(value.__fn_or_cls__, "__name__", str(value.__fn_or_cls__))
        return f"{'a template of ' if isinstance(value, fdl.Partial) else ''}{name}(...)"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def coerce(value: Any, annotation: Any) -> Any:
    """Convert `value` to its annotation where nothing is lost: `1e3` to the int 1000.

    Args:
      value: The value.
      annotation: The annotation of its place.
    """
    # It never fails: a value that cannot be converted is returned as it is, for `check` to report.
    # Where the annotation admits the value's own type, it stays (`1e3` for `int | float`).
    if isinstance(value, bool | fdl.Buildable) or value is None:
        return value
    if type(value) is dict:
        return {k: coerce(v, element(annotation, dict, k)) for k, v in value.items()}
    wanted = members(annotation)
    if type(value) in (list, tuple):
        return _coerce_sequence(value, annotation, wanted)
    value = _coerce_scalar(value, wanted)
    for member in wanted:
        # One element where a tuple of any length is wanted: `axes=fsdp`.
        arguments = typing_extensions.get_args(member)
        if typing_extensions.get_origin(member) is tuple and arguments[1:] == (...,):
            item = coerce(value, arguments[0])
            if fits(item, arguments[0]) and not fits(value, annotation):
                return (item,)
    return value


def _coerce_scalar(value: Any, wanted: Sequence[Any]) -> Any:
    if isinstance(value, float) and int in wanted and float not in wanted:
        return int(value) if math.isfinite(value) and value.is_integer() else value
    # An int for a float argument becomes one, so that `lr=1` and `lr=1.0` record the same graph.
    if isinstance(value, int) and float in wanted and int not in wanted:
        with contextlib.suppress(OverflowError):
            return float(value)
    if isinstance(value, str) and pathlib.Path in wanted and str not in wanted:
        return pathlib.Path(value)
    return value


def _coerce_sequence(value: Any, annotation: Any, wanted: Sequence[Any]) -> Any:
    # `[1, 2]` for a tuple becomes one and the other way round; where both are admitted, the kind
    # that was written stays.
    origins = [typing_extensions.get_origin(member) or member for member in wanted]
    container = type(value)
    if container not in origins and (list in origins or tuple in origins):
        container = list if list in origins else tuple
    return container(
        coerce(item, element(annotation, container, index)) for index, item in enumerate(value)
    )
