"""`+=`, `-=` and `*=`: a current value and an operand."""

from __future__ import annotations

import operator
import re
from typing import Any

from luthier.graph import values
from luthier.graph.grammar import expressions, fitting, literals, types
from luthier.graph.grammar.unreadable import Unreadable

_ON_NUMBERS = {"+=": operator.add, "-=": operator.sub, "*=": operator.mul}
_ON_NODES = {"+=": values.add, "-=": values.subtract, "*=": values.multiply}


def combine(
    symbol: str, current: Any, text: str, annotation: Any, around: expressions.Surroundings
) -> Any:
    """Return what a value becomes.

    Args:
      symbol: `+=` adds to numbers, text, lists, tuples and dicts; `-=` and `*=` work on numbers.
      current: The value now, or a value node: arithmetic nodes stay live.
      text: The operand, as it was written.
      annotation: The annotation of the place.
      around: Where names and references are looked up.

    Raises:
      Unreadable: They do not go together.
    """
    plain = values.evaluate(current)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        operand = literals.read(text, types.NUMBER, plain, around)
        if values.is_value_node(operand) or values.is_operation(current):
            base = plain if values.is_constant(current) else current
            return _ON_NODES[symbol](base, operand)
        try:
            return fitting.coerce(_ON_NUMBERS[symbol](plain, operand), annotation)
        except OverflowError as error:
            raise Unreadable(f"{plain} {symbol} {text}: {error}") from None
    if symbol != "+=":
        raise Unreadable(f"{symbol} works on numbers, and it is {fitting.shown(plain)}")
    if isinstance(plain, str):
        return plain + literals.read(text, str, plain, around)
    if type(plain) in (list, tuple):
        return _extended(plain, text, annotation, around)
    if type(plain) is dict:
        added = literals.read(text, annotation, plain, around)
        if not isinstance(added, dict):
            raise Unreadable(f"{text!r} is not a dict, which += adds to a dict")
        return plain | added
    said = fitting.shown(plain)
    raise Unreadable(f"+= works on numbers, text, lists, tuples and dicts, and it is {said}")


def _extended(
    current: list | tuple, text: str, annotation: Any, around: expressions.Surroundings
) -> list | tuple:
    inside = types.element(annotation, type(current), 0)
    is_many = re.match(r"[\[(].*[\])]$|[^(\[{'\"]*,", text, re.DOTALL) is not None
    if is_many:
        added = literals.read(text, annotation, current, around)
    else:
        sample = current[-1] if current else None
        added = [literals.read(text, inside, sample, around)]
    if not isinstance(added, list | tuple):
        added = [added]
    return type(current)([*current, *added])
