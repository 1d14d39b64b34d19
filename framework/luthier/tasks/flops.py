"""Floating point operations of a program, counted from its jaxpr.

XLA's own count takes the body of a loop once; here the body counts as often as it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core as jex_core


@dataclasses.dataclass(frozen=True)
class Flops:
    """Multiplications and additions of matrix products and convolutions.

    Args:
      weights: Of products without batch dimensions: activations times weights.
      batched: Of products with batch dimensions: attention scores and their use.
    """

    weights: int = 0
    batched: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.batched

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.weights + other.weights, self.batched + other.batched)

    def __mul__(self, times: int) -> Flops:
        return Flops(self.weights * times, self.batched * times)


def count(jaxpr: Any) -> Flops:
    """Count the matrix products and convolutions of a jaxpr, loops by their length.

    A `while` loop of unknown length counts once; a branch counts as its largest side.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
    total = Flops()
    for equation in inner.eqns:
        total += _equation(equation)
    return total


def _equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contract, _), (batch, _) = params["dimension_numbers"]
        left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        flops = 2 * math.prod(out) * math.prod(left[i] for i in contract)
        return Flops(batched=flops) if batch else Flops(weights=flops)
    if name == "ragged_dot_general" or name == "ragged_dot":
        left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        return Flops(weights=2 * math.prod(out) * left[-1])
    if name == "conv_general_dilated":
        kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return Flops(weights=2 * math.prod(out) * math.prod(kernel) // features)
    if name == "cond":
        return max((count(branch) for branch in params["branches"]), key=lambda f: f.total)
    times = params["length"] if name == "scan" else 1
    inner = Flops()
    for sub in _subjaxprs(params, skip=("cond_jaxpr",)):
        inner += count(sub)
    return inner * times


def _subjaxprs(params: dict[str, Any], skip: tuple[str, ...]) -> Iterator[Any]:
    for name, value in params.items():
        if name in skip:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex_core.ClosedJaxpr | jex_core.Jaxpr):
                yield item
