"""Floating point operations of a program, counted from its jaxpr.

XLA's own count takes the body of a loop once; here the body counts as often as it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core as jex_core

from luthier.layers.declared import kernel_flops, visible_share
from luthier.layers.experts import share_of

# Kernels of attention that are no products in a jaxpr, and how many products each computes.
_ATTENTION = {
    "dot_product_attention_fwd": 2,
    "dot_product_attention_fwd_wrapper": 2,
    "dot_product_attention_bwd": 5,  # the scores once more, and four gradients
    "dot_product_attention_bwd_wrapper": 5,
}


@dataclasses.dataclass(frozen=True)
class Flops:
    """Multiplications and additions of matrix products and convolutions.

    Args:
      weights: Of products without batch dimensions, and of experts: activations times weights.
      batched: Of other products with batch dimensions, and of kernels: attention scores and
        their use.
      idle: Of experts, for tokens that did not choose them and for places that nobody took, and
        of the weighted sums of what they give.
      hidden: Of the batched ones, those of pairs that a mask hides.
    """

    weights: int = 0
    batched: int = 0
    idle: int = 0
    hidden: int = 0

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
            self.weights + other.weights,
            self.batched + other.batched,
            self.idle + other.idle,
            self.hidden + other.hidden,
        )

    def __mul__(self, times: int) -> Flops:
        return Flops(
            self.weights * times, self.batched * times, self.idle * times, self.hidden * times
        )


def count(jaxpr: Any) -> Flops:
    """Count the matrix products and convolutions of a jaxpr, loops by their length.

    A `while` loop of unknown length counts once; a branch counts as its largest side. Kernels
    count as they declare: see `luthier.layers.declared`, and the cost estimates of Pallas.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
    total = Flops()
    for equation in inner.eqns:
        total += of_equation(equation)
    return total


def of_equation(equation: Any) -> Flops:
    """Count the FLOPs of one equation of a jaxpr, and of all that is inside of it.

    Args:
      equation: A `JaxprEqn`.
    """
    found, scopes = _equation(equation), str(equation.source_info.name_stack)
    shares = share_of(scopes)
    if shares is not None and found.total:
        active, places = shares
        needed = found.total * active // places
        found = Flops(weights=needed, idle=found.total - needed)
    share = visible_share(scopes)
    if share < 1:
        found = dataclasses.replace(found, hidden=found.batched - int(found.batched * share))
    return found


def declared(equation: Any) -> int | None:
    """Return the FLOPs that a kernel tells of itself; None where an equation is no such kernel.

    Args:
      equation: A `JaxprEqn`.
    """
    name, params = equation.primitive.name, equation.params
    if name in _ATTENTION:
        query, key = (variable.aval.shape for variable in equation.invars[:2])
        heads, lengths = (1, (2, 2)) if params["layout"] else (2, (1, 1))  # BNTH, or BTNH
        pairs = query[lengths[0]] * key[lengths[1]]
        return _ATTENTION[name] * 2 * query[0] * query[heads] * pairs * query[3]
    if name == "pallas_call" and params.get("cost_estimate") is not None:
        return int(params["cost_estimate"].flops)
    return kernel_flops(params["name"]) if isinstance(params.get("name"), str) else None


def _equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    declared_flops = declared(equation)
    if declared_flops is not None:
        return Flops(batched=declared_flops)
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
    inner = Flops()
    for sub in inside(equation):
        inner += count(sub)
    return inner * times(equation)


def times(equation: Any) -> int:
    """Return how often what is inside of an equation runs.

    Args:
      equation: A `JaxprEqn`.
    """
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return int(params["length"])
    if name == "shard_map":  # on every place of these axes
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
        return math.prod(params["mesh"].shape[axis] for axis in axes)
    if name == "pallas_call":  # a kernel without an estimate: on every place of its grid
        return math.prod(params["grid_mapping"].grid)
    return 1


def inside(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation runs, but for the condition of a loop.

    Args:
      equation: A `JaxprEqn`.
    """
    for name, value in equation.params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            if name != "cond_jaxpr" and isinstance(item, jex_core.ClosedJaxpr | jex_core.Jaxpr):
                yield item
