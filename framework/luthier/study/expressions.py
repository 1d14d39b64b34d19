"""Expressions of metrics: `held_out/loss + 0.1 * step_time`.

They are parsed with `ast` and evaluated by walking the tree: only numbers, references, arithmetic
and a few functions exist, and nothing is ever executed.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

FACTS = ("step_time", "device_hours", "peak_bytes", "parameters")
"""Names of what the system measures, which have no evaluation before them."""

_OPERATORS: Mapping[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
}
# `held_out/loss`, `held_out/loss:mean3`, `step_time`. The slash of a metric has no spaces around
# it, and does not follow a fact: `held_out/loss / 2` and `step_time/parameters` are divisions.
_REFERENCE = re.compile(
    rf"(?<![\w.])(?:(?:{'|'.join(FACTS)})(?!\w)|[A-Za-z_]\w*(?:/[A-Za-z_]\w*)+(?::\w+)?)"
)


def has_reference(text: str) -> bool:
    """Return whether a text has a reference in it, whether or not it is an expression.

    Args:
      text: `held_out/loss + 1`.
    """
    return _REFERENCE.search(text) is not None


class InvalidExpression(ValueError):
    """A text that is not an expression; the message is the reason."""


@functools.lru_cache(maxsize=128)
def _parse(text: str) -> tuple[ast.expr, Mapping[str, str]]:
    """Return the tree of an expression, and the reference of every name in it."""
    # A reference is not a Python name: each gets one of its own before the text is parsed.
    references: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        known = {reference: name for name, reference in references.items()}
        name = known.get(match[0], f"_{len(references)}_")
        references[name] = match[0]
        return name

    try:
        tree = ast.parse(_REFERENCE.sub(placeholder, text.strip()), mode="eval").body
        _require_known(tree, references)
    except (SyntaxError, RecursionError, MemoryError):
        raise InvalidExpression(f"{text!r} is not an expression") from None
    return tree, references


def _require_known(node: Any, references: Mapping[str, str]) -> None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    if isinstance(node, ast.Name):
        if node.id not in references:
            what = f"{node.id} is not EVALUATION/METRIC, train/METRIC or one of {', '.join(FACTS)}"
            raise InvalidExpression(what)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        _require_known(node.left, references)
        _require_known(node.right, references)
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        _require_known(node.operand, references)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name, count = node.func.id, len(node.args)
        if name not in _FUNCTIONS:
            raise InvalidExpression(
                f"there is no function {name}; there are {', '.join(_FUNCTIONS)}"
            )
        if not (count >= 2 if name in ("min", "max") else count == 1):
            wanted = "two arguments or more" if name in ("min", "max") else "one argument"
            raise InvalidExpression(f"{name} takes {wanted}, not {count}")
        for argument in node.args:
            _require_known(argument, references)
    else:
        what = "numbers, metrics, + - * / **, parentheses, "
        raise InvalidExpression(f"an expression has {what}{', '.join(_FUNCTIONS)} and nothing else")


def references(text: str) -> list[str]:
    """Return the references of an expression, in their order.

    Args:
      text: The expression.

    Raises:
      InvalidExpression: It cannot be read.

    Example:
      >>> from luthier.study import expressions
      >>> expressions.references("held_out/loss + 0.1 * step_time")
      ['held_out/loss', 'step_time']
    """
    return list(_parse(text)[1].values())


def is_reference(text: str) -> bool:
    """Return whether a text is one reference, and no expression.

    Args:
      text: `held_out/loss:mean3`.
    """
    return _REFERENCE.fullmatch(text.strip()) is not None


def evaluate(text: str, values: Mapping[str, float]) -> float:
    """Return the value of an expression.

    Args:
      text: The expression.
      values: The value of every reference.

    Returns:
      The value; NaN where it is undefined, as a division by zero.

    Raises:
      InvalidExpression: It cannot be read.

    Example:
      >>> from luthier.study import expressions
      >>> expressions.evaluate("max(held_out/loss, 1) / 2", {"held_out/loss": 3.0})
      1.5
    """
    tree, names = _parse(text)

    def value(node: Any) -> float:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]  # a number, by `_require_known`
        if isinstance(node, ast.Name):
            return float(values[names[node.id]])
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](value(node.operand))
        arguments = [value(argument) for argument in node.args]
        # Python's `min` and `max` depend on the order of their arguments where one is NaN.
        if any(map(math.isnan, arguments)):
            return math.nan
        return _FUNCTIONS[node.func.id](*arguments)

    try:
        found = value(tree)
    except (ArithmeticError, ValueError):
        return math.nan
    # The root of a negative number is complex in Python.
    return found if isinstance(found, float) else math.nan
