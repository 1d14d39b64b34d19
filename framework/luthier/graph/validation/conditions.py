"""Declared conditions: `RANGES` of arguments, `RELATIONS` between them, `READ_WHEN` they count.

    RANGES = {"b2": "0 <= x < 1"}
    RELATIONS = ("num_heads % num_kv_heads == 0", "data.length <= model.length")
    READ_WHEN = {"decay": "spike_factor is not None"}

They are attributes of a class or function, because constructors must not check values (a swept
value is a tracer there). They are computed from their syntax tree, never with `eval`. A dotted name
is a path below the node. A condition about what is not said (an argument that is not set, a part
that is not there, arithmetic on None or on what is no number) counts as met.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

UNKNOWN = object()
"""The value of a name that the graph does not say."""

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


class _NotSaid(Exception):
    """The condition is about something that the graph does not say."""


@functools.lru_cache(maxsize=4096)
def _parse(condition: str) -> ast.expr:
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError):
        raise Malformed(f"{condition!r} is not a condition") from None


@functools.lru_cache(maxsize=4096)
def names_in(condition: str) -> tuple[str, ...]:
    """Return the arguments and the paths that a condition is about, in its order.

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
    """Return a range with the argument's name for `x`: `0 <= b2 < 1`."""
    return re.sub(r"\bx\b", name, condition)


def holds(condition: str, known: Mapping[str, Any]) -> bool:
    """Return whether a condition holds, or is about something that nobody said.

    Args:
      condition: `0 <= x < 1`, `dim % num_heads == 0`, `cap is None or cap < limit`.
      known: Value by name; `UNKNOWN` where the graph does not say it.

    Raises:
      Malformed: It cannot be read, or a name in it is not known at all.
    """
    try:
        return bool(_compute(_parse(condition), condition, known))
    except _NotSaid:
        return True


def _compute(tree: ast.expr, condition: str, known: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return tree.value
    name = _dotted(tree)
    if name in known:
        if known[name] is UNKNOWN:
            raise _NotSaid
        return known[name]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.Not):
        inside = _compute(tree.operand, condition, known)
        return not inside if isinstance(tree.op, ast.Not) else -inside
    if isinstance(tree, ast.BinOp) and type(tree.op) in _COMPUTE:
        left, right = _numbers((tree.left, tree.right), condition, known)
        return _COMPUTE[type(tree.op)](left, right)
    if isinstance(tree, ast.BoolOp):
        # Not all at once: `a == 0 or b % a == 0` must not divide by zero.
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
        raise _NotSaid  # None, a node, or of a wrong type, which is told elsewhere
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
