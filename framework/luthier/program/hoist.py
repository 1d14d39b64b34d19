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

from luthier import graph as graphs
from luthier.errors import BadInput, Problem

HOISTABLE_FIELDS = ("model", "task", "optimizer", "training", "seed")
"""Fields of the experiment that are built inside the trace."""


def _delegate(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    if reflected:
        return lambda self, other: function(_raw(other), self.value)
    return lambda self, *others: function(self.value, *map(_raw, others))


def _raw(operand: Any) -> Any:
    return operand.value if isinstance(operand, Scalar) else operand


@dataclasses.dataclass(frozen=True, eq=False)
class Scalar:
    """A traced hyperparameter that knows its complement to full precision.

    `1 - b2` in float32 loses half of the digits of a `b2` near one, and a Python constant does not:
    Python subtracts in double. So the complement travels beside the value, subtracted in double
    on the host, and `1 - scalar` returns it. Every other operation acts on `value`.

    Args:
      value: The hyperparameter, a weakly typed float scalar.
      complement: `1 - value`, computed in double, rounded once.
    """

    value: jax.Array
    complement: jax.Array

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __rsub__(self, other: Any) -> Any:
        return self.complement if _is_one(other) else _raw(other) - self.value

    __add__ = _delegate(operator.add)
    __radd__ = _delegate(operator.add, reflected=True)
    __sub__ = _delegate(operator.sub)
    __mul__ = _delegate(operator.mul)
    __rmul__ = _delegate(operator.mul, reflected=True)
    __truediv__ = _delegate(operator.truediv)
    __rtruediv__ = _delegate(operator.truediv, reflected=True)
    __floordiv__ = _delegate(operator.floordiv)
    __rfloordiv__ = _delegate(operator.floordiv, reflected=True)
    __mod__ = _delegate(operator.mod)
    __rmod__ = _delegate(operator.mod, reflected=True)
    __pow__ = _delegate(operator.pow)
    __rpow__ = _delegate(operator.pow, reflected=True)
    __neg__ = _delegate(operator.neg)
    __pos__ = _delegate(operator.pos)
    __abs__ = _delegate(operator.abs)
    __lt__ = _delegate(operator.lt)
    __le__ = _delegate(operator.le)
    __gt__ = _delegate(operator.gt)
    __ge__ = _delegate(operator.ge)
    __eq__ = _delegate(operator.eq)  # type: ignore[assignment]
    __ne__ = _delegate(operator.ne)  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def values_of(graph: Any, paths: Sequence[str]) -> tuple[jax.Array, ...]:
    """Return the hoisted leaves of `graph` as the arguments that the compiled step takes.

    Args:
      graph: An experiment graph.
      paths: Paths of numeric leaves, in the order in which the program was compiled.

    Returns:
      For every float leaf its value and its complement, for every int leaf its value: weakly
      typed scalars, so that they promote as the Python numbers that they stand for.

    Raises:
      BadInput: A path is outside the traced fields, does not exist, or is not a number.
    """
    arguments: list[jax.Array] = []
    problems = []
    for path in paths:
        problem, leaf = _leaf(graph, path)
        if problem:
            problems.append(problem)
        elif isinstance(leaf, float):
            arguments += [jnp.asarray(leaf), jnp.asarray(1.0 - leaf)]
        else:
            arguments.append(jnp.asarray(leaf))
    if problems:
        raise BadInput(problems)
    return tuple(arguments)


def substitutions(
    graph: Any, paths: Sequence[str], values: Sequence[jax.Array]
) -> Mapping[str, Any]:
    """Return what stands in the graph in the place of each hoisted leaf, inside the trace.

    Args:
      graph: The experiment graph that the program was made from; tells floats from ints.
      paths: Paths of the hoisted leaves.
      values: The scalars that `values_of` returned, traced.
    """
    remaining = iter(values)
    found: dict[str, Any] = {}
    for path in paths:
        leaf = _leaf(graph, path)[1]
        if isinstance(leaf, float):
            found[path] = Scalar(next(remaining), next(remaining))
        else:
            found[path] = next(remaining)
    return found


def _leaf(graph: Any, path: str) -> tuple[Problem | None, Any]:
    if path.partition(".")[0] not in HOISTABLE_FIELDS:
        fields = ", ".join(HOISTABLE_FIELDS)
        return Problem("cannot be hoisted: only leaves of " + fields + " are traced", path), None
    leaf = graphs.evaluate(graphs.get(graph, path))
    if isinstance(leaf, bool) or not isinstance(leaf, int | float):
        return Problem(f"cannot be hoisted: {leaf!r} is not a number", path), None
    return None, leaf
