"""Hoisted hyperparameters: leaves of the graph that enter the compiled step as arguments.

The graph is built inside the trace with a `Scalar` in the place of every hoisted leaf, so that
trials which differ only in such leaves share one compiled program.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.graph import Graph

HOISTABLE_FIELDS = ("model", "task", "optimizer", "training", "seed")
"""Fields of the experiment that are built inside the trace."""

_INT32 = np.iinfo(np.int32)


class InexactError(TypeError):
    """A hoisted float meets arithmetic that Python does in double and a float32 cannot follow."""


# Comparisons are allowed with any partner: both sides are rounded to float32, which keeps the order
# of two numbers, except that numbers within one rounding of each other become equal.
def _compared(function: Callable[..., Any]) -> Any:
    return lambda self, other: function(self.value, _raw(other))


# A trial with a hoisted leaf must give what a trial gives that was compiled with the leaf as a
# constant. A constant is a Python float: `1 - b2`, `rate * 0.1` and `2 ** k` are then computed in
# double, and rounded to float32 once, where the result meets an array. A hoisted leaf is float32
# from the start, and each operation rounds. What that costs decides between two kinds of operation:
#
#   * products and quotients keep the relative error: one or two units in the last place more;
#   * sums, remainders and powers may cancel or amplify: 1 - 0.9999 in float32 has 3 digits.
#
# The former are computed, the latter raise, which makes the leaf a constant of its program. Both
# only concern partners that Python computes with: with an array the constant would be rounded to
# float32 as well, so the bits are the same and every operation is allowed.
def _scaled(function: Callable[..., Any], reflected: bool = False) -> Any:
    """Return a method for an operation that float32 does to within two units in the last place."""

    def method(self: Scalar, other: Any) -> Any:
        operands = (_raw(other), self.value) if reflected else (self.value, _raw(other))
        result = function(*operands)
        # Still a Scalar: a sum that follows the product is as inexact as one before it.
        return Scalar(result) if _is_host(other) else result

    return method


def _cancelling(function: Callable[..., Any], reflected: bool = False) -> Any:
    """Return a method for an operation that may cancel all digits of a float32, not of a double."""

    def method(self: Scalar, other: Any) -> Any:
        if _is_host(other):
            reason = "is computed in double where the leaf is a constant, and in float32 here"
            raise InexactError(f"{function.__name__} of a hoisted leaf and {other!r} {reason}")
        return function(other, self.value) if reflected else function(self.value, other)

    return method


def _raw(operand: Any) -> Any:
    return operand.value if isinstance(operand, Scalar) else operand


def _is_host(operand: Any) -> bool:
    """Return whether Python computes with an operand in double when the leaf is a constant."""
    return isinstance(operand, int | float | Scalar)


@dataclasses.dataclass(frozen=True, eq=False)
class Scalar:
    """A traced hyperparameter that knows its complement to full precision.

    `1 - b2` in float32 loses half of the digits of a `b2` near one, and a Python constant does not:
    Python subtracts in double. So the complement travels beside the value, subtracted in double
    on the host, and `1 - scalar` returns it. Other sums and powers with Python numbers raise
    `InexactError`, so that such a leaf stays a constant; products and quotients are as exact as a
    float32 can be. With arrays, every operation acts on `value`.

    Args:
      value: The hyperparameter, a weakly typed float scalar.
      complement: `1 - value`, computed in double, rounded once; None where that is not known.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import program
      >>> b2 = program.Scalar(jnp.asarray(0.999), jnp.asarray(0.001))
      >>> print((1 - b2).value)
      0.001
    """

    value: jax.Array
    complement: jax.Array | None = None

    def __jax_array__(self) -> jax.Array:  # `jnp` functions take a Scalar as its value
        return self.value

    def __rsub__(self, other: Any) -> Any:
        # The one difference that optimizers need, exact; and 1 - (1 - x) is x again.
        if self.complement is not None and _is_one(other):
            return Scalar(self.complement, self.value)
        return _cancelling(operator.sub, reflected=True)(self, other)

    __add__ = _cancelling(operator.add)
    __radd__ = _cancelling(operator.add, reflected=True)
    __sub__ = _cancelling(operator.sub)
    __floordiv__ = _cancelling(operator.floordiv)
    __rfloordiv__ = _cancelling(operator.floordiv, reflected=True)
    __mod__ = _cancelling(operator.mod)
    __rmod__ = _cancelling(operator.mod, reflected=True)
    __pow__ = _cancelling(operator.pow)
    __rpow__ = _cancelling(operator.pow, reflected=True)
    __mul__ = _scaled(operator.mul)
    __rmul__ = _scaled(operator.mul, reflected=True)
    __truediv__ = _scaled(operator.truediv)
    __rtruediv__ = _scaled(operator.truediv, reflected=True)
    __lt__ = _compared(operator.lt)
    __le__ = _compared(operator.le)
    __gt__ = _compared(operator.gt)
    __ge__ = _compared(operator.ge)
    __eq__ = _compared(operator.eq)  # type: ignore[assignment]
    __ne__ = _compared(operator.ne)  # type: ignore[assignment]
    # `==` gives a traced array, so the hash is that of the object; to define `__eq__` alone would
    # make a Scalar, and every frozen dataclass that holds one, unhashable.
    __hash__ = object.__hash__

    def __neg__(self) -> Scalar:
        return Scalar(-self.value)

    def __pos__(self) -> Scalar:
        return self

    def __abs__(self) -> Scalar:
        return Scalar(abs(self.value))

    # These two raise ConcretizationTypeError while tracing, as they should: a leaf that steers
    # Python stays a constant.
    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def values_of(graph: Graph, paths: Sequence[str]) -> tuple[jax.Array, ...]:
    """Return the hoisted leaves of `graph` as the arguments that the compiled step takes.

    Args:
      graph: An experiment graph.
      paths: Paths of numeric leaves, in the order in which the program was compiled.

    Returns:
      For every float leaf its value and its complement, for every int leaf its value: weakly
      typed scalars, so that they promote as the Python numbers that they stand for.

    Raises:
      BadInput: A path is outside the traced fields, does not exist, or is not a number.

    Example:
      >>> import luthier
      >>> from luthier import program
      >>> config = luthier.experiment("quickstart")
      >>> b2, complement = program.values_of(config, ["optimizer.b2"])
      >>> print(b2, complement)
      0.98 0.02
    """
    arguments: list[jax.Array] = []
    problems = []
    for path in paths:
        problem, leaf = _leaf(graph, path)
        if problem:
            problems.append(problem)
        elif isinstance(leaf, float):
            # `asarray` of a Python number is weakly typed: beside a bfloat16 array it becomes
            # bfloat16, as the constant would. A float32 scalar would widen the array.
            arguments += [jnp.asarray(leaf), jnp.asarray(1.0 - leaf)]
        else:
            arguments.append(jnp.asarray(leaf))
    if problems:
        raise BadInput(problems)
    return tuple(arguments)


def substitutions(
    graph: Graph, paths: Sequence[str], values: Sequence[jax.Array]
) -> Mapping[str, Any]:
    """Return the traced replacement of each hoisted leaf, by path.

    Args:
      graph: The experiment graph that the program was made from; its leaves are floats or ints.
      paths: Paths of the hoisted leaves.
      values: The scalars that `values_of` returned, traced.

    Returns:
      A scalar for each path: one with its own complement for a float, a plain array for an int; for
      `luthier.graph.build`.
    """
    remaining = iter(values)
    scalars: dict[str, Any] = {}
    for path in paths:
        leaf = _leaf(graph, path)[1]
        if isinstance(leaf, float):
            scalars[path] = Scalar(next(remaining), next(remaining))
        else:  # integers are exact in int32, so a plain array serves
            scalars[path] = next(remaining)
    return scalars


def problem_with(graph: Graph, path: str) -> Problem | None:
    """Return the reason why a leaf can never be an argument of a compiled step, or None."""
    return _leaf(graph, path)[0]


def _leaf(graph: Graph, path: str) -> tuple[Problem | None, Any]:
    if path.partition(".")[0] not in HOISTABLE_FIELDS:
        fields = ", ".join(HOISTABLE_FIELDS)
        return Problem("cannot be hoisted: only leaves of " + fields + " are traced", path), None
    # To Python a bool is an int, but here it is a switch that decides what is traced.
    leaf = graphs.evaluate(graphs.get(graph, path))
    if isinstance(leaf, bool) or not isinstance(leaf, int | float):
        return Problem(f"cannot be hoisted: {leaf!r} is not a number", path), None
    if isinstance(leaf, int) and not _INT32.min <= leaf <= _INT32.max:
        return Problem(f"cannot be hoisted: {leaf!r} does not fit in 32 bits", path), None
    return None, leaf
