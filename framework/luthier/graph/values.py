"""Value nodes: one named constant, used in many places, with live arithmetic on it.

    dim = value(256, name="dim")
    model.dim, model.mlp.hidden = dim, multiply(dim, 4)

Set `model.dim` to 512 and `model.mlp.hidden` is 2048: setting a path that holds a constant changes
the constant, so all its users move. Value nodes are the only nodes that may be shared by parts that
are built separately (model and data, say). They are ordinary `fdl.Config` nodes of the plain
functions below, so they are recorded, compared and built like any other node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import fiddle as fdl

from luthier.durations import Epochs

# A config: the root of a graph of Fiddle nodes, or a node with everything below it.
Graph: TypeAlias = fdl.Buildable[Any]


# The functions of value nodes; records hold their names. `operator.add` and the like take their
# operands by position only, so that nodes of them would have no argument names.


def constant(value: Any, name: str = "") -> Any:
    """Return `value`; `name` is only shown."""
    return value


def total(left: Any, right: Any) -> Any:
    """Return `left + right`."""
    return left + right


def difference(left: Any, right: Any) -> Any:
    """Return `left - right`."""
    return left - right


def product(left: Any, right: Any) -> Any:
    """Return `left * right`."""
    return left * right


def quotient(left: Any, right: Any) -> Any:
    """Return `left / right`."""
    return left / right


def floor_quotient(left: Any, right: Any) -> Any:
    """Return `left // right`."""
    return left // right


def remainder(left: Any, right: Any) -> Any:
    """Return `left % right`."""
    return left % right


def raised(left: Any, right: Any) -> Any:
    """Return `left ** right`."""
    return left**right


OPERATIONS = {
    total: ("+", 1),
    difference: ("-", 1),
    product: ("*", 2),
    quotient: ("/", 2),
    floor_quotient: ("//", 2),
    remainder: ("%", 2),
    raised: ("**", 3),
}
"""The function of every arithmetic node, with its symbol and how tightly it binds."""


def value(value: Any, name: str = "") -> fdl.Config:
    """Return a constant that many places of a graph can share.

    Args:
      value: A number, string, dtype or other plain value.
      name: Its name (`dim`), shown at every use.

    Returns:
      A node, `fdl.Config`. Put the same node at several places: an override of one changes all.

    Example:
      >>> from luthier import graph
      >>> dim = graph.value(128, name="dim")
      >>> graph.evaluate(dim)
      128
    """
    return fdl.Config(constant, value=value, name=name) if name else fdl.Config(constant, value)


def add(left: Any, right: Any) -> fdl.Config:
    """Return the live sum of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.add(graph.value(3), 4))
      7
    """
    return fdl.Config(total, left, right)


def subtract(left: Any, right: Any) -> fdl.Config:
    """Return the live difference of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.subtract(graph.value(3), 4))
      -1
    """
    return fdl.Config(difference, left, right)


def multiply(left: Any, right: Any) -> fdl.Config:
    """Return the live product of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> dim = graph.value(128, name="dim")
      >>> hidden_dim = graph.multiply(dim, 4)
      >>> graph.evaluate(hidden_dim)
      512
      >>> dim.value = 256
      >>> graph.evaluate(hidden_dim)
      1024
    """
    return fdl.Config(product, left, right)


def true_divide(left: Any, right: Any) -> fdl.Config:
    """Return the live quotient of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node; not zero when it is read.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.true_divide(graph.value(3), 4))
      0.75
    """
    return fdl.Config(quotient, left, right)


def floor_divide(left: Any, right: Any) -> fdl.Config:
    """Return the live quotient, rounded down, of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node; not zero when it is read.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> steps = graph.value(900, name="steps")
      >>> graph.evaluate(graph.floor_divide(steps, 12))
      75
    """
    return fdl.Config(floor_quotient, left, right)


def modulo(left: Any, right: Any) -> fdl.Config:
    """Return the live remainder of `left` and `right`, values or value nodes.

    Args:
      left: A number or a value node.
      right: A number or a value node; not zero when it is read.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.modulo(graph.value(7), 4))
      3
    """
    return fdl.Config(remainder, left, right)


def power(left: Any, right: Any) -> fdl.Config:
    """Return the live power of `left` and `right`, values or value nodes.

    Args:
      left: The base, a number or a value node.
      right: The exponent, a number or a value node.

    Returns:
      A value node, computed whenever it is read.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.power(graph.value(2), 10))
      1024
    """
    return fdl.Config(raised, left, right)


# Python's message for an operator that a node does not have: `steps // 10`.
_OPERATOR_ON_NODE = re.compile(r"unsupported operand type\(s\) for .*'(Config|Partial)'")


def arithmetic_remedy(error: BaseException) -> str:
    """Return a remedy for an error of Python's operators on a value node; empty for other errors.

    Args:
      error: What an experiment or a fiddler raised.
    """
    if not isinstance(error, TypeError) or not _OPERATOR_ON_NODE.match(str(error)):
        return ""
    return "compute on shared values with luthier.graph, as multiply(dim, 4)"


def is_constant(node: Any) -> bool:
    """Return whether `node` is a constant, as `value` makes them.

    Args:
      node: Any value.

    Returns:
      True for a result of `value`; False for arithmetic and for plain values.

    Example:
      >>> from luthier import graph
      >>> dim = graph.value(128)
      >>> graph.is_constant(dim), graph.is_constant(graph.add(dim, 1)), graph.is_constant(128)
      (True, False, False)
    """
    return type(node) is fdl.Config and node.__fn_or_cls__ is constant


def is_value_node(node: Any) -> bool:
    """Return whether `node` is a constant or arithmetic on constants.

    Args:
      node: Any value.

    Returns:
      True for results of `value`, `add` and the like; False for other nodes and for plain values.

    Example:
      >>> from luthier import graph
      >>> dim = graph.value(128)
      >>> graph.is_value_node(graph.add(dim, 1)), graph.is_value_node(128)
      (True, False)
    """
    return type(node) is fdl.Config and (node.__fn_or_cls__ is constant or is_operation(node))


def is_operation(node: Any) -> bool:
    """Return whether `node` is arithmetic on values."""
    if type(node) is not fdl.Config:
        return False
    # By the function, not by a class of its own: then Fiddle builds, copies and records it as any
    # other node.
    try:
        return node.__fn_or_cls__ in OPERATIONS
    except TypeError:  # a callable that cannot be hashed
        return False


class Deferred(ValueError):
    """A value depends on a number of steps that is written in epochs, and so on the data."""


def is_deferred(node: Any) -> bool:
    """Return whether `node` is `Epochs(n)`, which stands for a number of steps in an `int` slot.

    It becomes a number when the length of the data is known (`luthier.program.with_known_steps`).

    Args:
      node: Any value.

    Returns:
      True for a node of `durations.Epochs`.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import durations, graph
      >>> graph.is_deferred(fdl.Config(durations.Epochs, 3)), graph.is_deferred(900)
      (True, False)
    """
    return type(node) is fdl.Config and node.__fn_or_cls__ is Epochs


def evaluate(node: Any) -> Any:
    """Compute a value node; anything else, such as `Epochs(n)`, is returned as it is.

    Args:
      node: A value node or a plain value.

    Returns:
      The plain value.

    Raises:
      Deferred: It is arithmetic on a number of steps that is written in epochs.
      ValueError: An operand is not set, or the nodes form a cycle.
      ArithmeticError: The arithmetic itself fails (a division by zero).
      TypeError: Operands do not go together.

    Example:
      >>> from luthier import graph
      >>> graph.evaluate(graph.multiply(graph.value(128), 4)), graph.evaluate("text")
      (512, 'text')
    """
    return _evaluate(node, ())


def _evaluate(node: Any, above: tuple[int, ...]) -> Any:
    # `above` holds the nodes on the way here, to find cycles. Results are not cached, since
    # constants change in place.
    if not is_value_node(node):
        return node
    if id(node) in above:
        raise ValueError("the value depends on itself")
    given = node.__arguments__
    names = ("value",) if node.__fn_or_cls__ is constant else ("left", "right")
    missing = [name for name in names if name not in given]
    if missing:
        if missing[0] == "value":
            raise ValueError(f"{given.get('name') or 'it'} is not set")
        raise ValueError(f"a value node has no {missing[0]!r}")
    found = [_evaluate(given[name], (*above, id(node))) for name in names]
    if is_operation(node) and any(map(is_deferred, found)):
        raise Deferred("it depends on the length of the data")
    return node.__fn_or_cls__(*found)


def operands(node: fdl.Config) -> Iterator[Any]:
    """Yield the operands of a value node: the value of a constant, the two sides of arithmetic.

    Args:
      node: A value node.

    Yields:
      One value for a constant and two for arithmetic; operands that are not set are left out.

    Example:
      >>> from luthier import graph
      >>> list(graph.operands(graph.add(1, 2)))
      [1, 2]
    """
    for name in ("value",) if is_constant(node) else ("left", "right"):
        if name in node.__arguments__:
            yield node.__arguments__[name]


def expression(node: Any) -> str:
    """Return a value node as an expression with the names of its constants: `dim * 4`.

    Args:
      node: A value node or a plain value.

    Returns:
      The expression as text, with brackets only where precedence needs them.

    Example:
      >>> from luthier import graph
      >>> dim = graph.value(128, name="dim")
      >>> graph.expression(graph.multiply(graph.add(dim, 1), 4))
      '(dim + 1) * 4'
    """
    return _expression(node, 0)


def _expression(node: Any, outer: int) -> str:
    if is_constant(node):
        name = node.__arguments__.get("name", "")
        return name or _expression(node.__arguments__.get("value"), outer)
    if is_deferred(node):
        count = evaluate(node.__arguments__.get("count"))
        return f"Epochs({count:g})" if isinstance(count, float) else f"Epochs({count})"
    if not is_operation(node):
        return repr(node)
    symbol, binding = OPERATIONS[node.__fn_or_cls__]
    left, right = node.__arguments__.get("left"), node.__arguments__.get("right")
    # Operands at the same level need brackets on the right; for powers, on the left.
    inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
    text = f"{_expression(left, inner[0])} {symbol} {_expression(right, inner[1])}"
    return f"({text})" if binding < outer else text
