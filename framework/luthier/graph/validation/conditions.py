"""Declared conditions: `RANGES` of single arguments and `RELATIONS` between them.

    RANGES = {"b2": "0 <= x < 1"}
    RELATIONS = ("dim % num_heads == 0",)

They are attributes of a class or function, because constructors must not check values (a swept
value is a tracer there). They are computed from their syntax tree, never with `eval`.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

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


@functools.lru_cache(maxsize=4096)
def _parse(condition: str) -> ast.expr:
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError):
        raise Malformed(f"{condition!r} is not a condition") from None


@functools.lru_cache(maxsize=4096)
def names_in(condition: str) -> frozenset[str]:
    """Return the argument names that a condition is about.

    Raises:
      Malformed: It cannot be read.
    """
    tree = ast.walk(_parse(condition))
    return frozenset(node.id for node in tree if isinstance(node, ast.Name))


def with_name(condition: str, name: str) -> str:
    """Return a range with the argument's name for `x`: `0 <= b2 < 1`."""
    return re.sub(r"\bx\b", name, condition)


def holds(condition: str, known: Mapping[str, Any]) -> bool:
    """Return whether a condition holds.

    Args:
      condition: `0 <= x < 1`, `dim % num_heads == 0`, `warmup_steps < total_steps`.
      known: Value by name.

    Raises:
      Malformed: It cannot be read, or a name in it has no value.
    """
    return bool(_compute(_parse(condition), condition, known))


def _compute(tree: ast.expr, condition: str, known: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return tree.value
    if isinstance(tree, ast.Name) and tree.id in known:
        return known[tree.id]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.Not):
        inside = _compute(tree.operand, condition, known)
        return not inside if isinstance(tree.op, ast.Not) else -inside
    if isinstance(tree, ast.BinOp) and type(tree.op) in _COMPUTE:
        left = _compute(tree.left, condition, known)
        return _COMPUTE[type(tree.op)](left, _compute(tree.right, condition, known))
    if isinstance(tree, ast.BoolOp):
        # Not all at once: `a == 0 or b % a == 0` must not divide by zero.
        found = (_compute(part, condition, known) for part in tree.values)
        return all(found) if isinstance(tree.op, ast.And) else any(found)
    if isinstance(tree, ast.Compare) and all(type(op) in _COMPARE for op in tree.ops):
        terms = [_compute(part, condition, known) for part in (tree.left, *tree.comparators)]
        pairs = zip(tree.ops, terms, terms[1:], strict=False)
        return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)
    raise Malformed(f"{condition!r} is not a condition that can be checked")
