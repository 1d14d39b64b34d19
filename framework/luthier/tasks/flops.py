"""Floating point operations of a program, counted from its jaxpr.

XLA's own count takes the body of a loop once; here the body counts as often as it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core as jex_core

from luthier.layers.experts import share_of


@dataclasses.dataclass(frozen=True)
class Flops:
    """Multiplications and additions of matrix products and convolutions.

    Args:
      weights: Of products without batch dimensions, and of experts: activations times weights.
      batched: Of other products with batch dimensions: attention scores and their use.
      idle: Of experts, for tokens that did not choose them and for places that nobody took.
    """

    weights: int = 0
    batched: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.batched + self.idle

    @property
    def active(self) -> int:
        """Those that a model owes: all but the idle ones."""
        return self.weights + self.batched

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.weights + other.weights, self.batched + other.batched, self.idle + other.idle
        )

    def __mul__(self, times: int) -> Flops:
        return Flops(self.weights * times, self.batched * times, self.idle * times)


def count(jaxpr: Any) -> Flops:
    """Count the matrix products and convolutions of a jaxpr, loops by their length.

    A `while` loop of unknown length counts once; a branch counts as its largest side.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
    total = Flops()
    for equation in inner.eqns:
        found = _equation(equation)
        shares = share_of(str(equation.source_info.name_stack))
        if shares is not None and found.total:
            active, places = shares
            needed = found.total * active // places
            found = Flops(weights=needed, idle=found.total - needed)
        total += found
    return total


def _equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contract, _), (batch, _) = params["dimension_numbers"]
        left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        flops = 2 * math.prod(out) * math.prod(left[i] for i in contract)
        return Flops(batched=flops) if batch else Flops(weights=flops)
    if name == "ragged_dot_general" or name == "ragged_dot":
        left, right = (variable.aval.shape for variable in equation.invars[:2])
        numbers = params["ragged_dot_dimension_numbers"]
        (_, summed), (_, batch) = numbers.dot_dimension_numbers
        # Every row of the left meets one group of the right.
        other = {*summed, *batch, *numbers.rhs_group_dimensions}
        free = math.prod(size for i, size in enumerate(right) if i not in other)
        return Flops(weights=2 * math.prod(left) * free)
    if name == "conv_general_dilated":
        kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return Flops(weights=2 * math.prod(out) * math.prod(kernel) // features)
    if name == "cond":
        return max((count(branch) for branch in params["branches"]), key=lambda f: f.total)
    times = params["length"] if name == "scan" else 1
    if name == "shard_map":  # what is inside runs on every place of these axes
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
        times = math.prod(params["mesh"].shape[axis] for axis in axes)
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
