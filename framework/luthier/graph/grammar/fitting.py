"""Values and annotations: converted where nothing is lost, refused where they differ."""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import typing_extensions

from luthier.errors import Problem
from luthier.graph import values
from luthier.graph.grammar import types
from luthier.graph.grammar.unreadable import Unreadable
from luthier.graph.signatures import UNSET


def expected(annotation: Any, current: Any) -> Any:
    """Return the annotation of a place, or the one that its value suggests where there is none."""
    if not types.admits_anything(annotation) or current is UNSET:
        return annotation
    return types.inferred(current)


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
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."


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
