"""Floating point operations of a program, counted from its jaxpr.

XLA's own count (`cost_analysis()["flops"]`) takes the body of a loop once: a scan over 16 layers is
reported as 1/16. Here the body counts as often as it runs. Counting the traced step rather than a
formula for each architecture includes what a user adds, and needs neither a device nor a compiler.

Only products and convolutions count, as 2 FLOPs for each multiplication and addition: elementwise
operations are bound by memory. The module is in `tasks`, below `recipes`, because recipes scale
models by it, and may not import `planner`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core as jex_core

from luthier.layers.declared import (
    is_kernel,
    is_unbalanced,
    kernel_bytes,
    kernel_flops,
    share_of,
    visible_share,
)

# cuDNN's kernels of attention, as the primitives of JAX that call them, and the number of products
# of [L, K] x [K, S] that each computes.
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
      idle: Of experts, for tokens that did not choose them and for empty places, and of the
        weighted sums of their results.
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


def count(jaxpr: jex_core.Jaxpr | jex_core.ClosedJaxpr) -> Flops:
    """Count the matrix products and convolutions of a jaxpr, loops by their length.

    A `while` loop of unknown length counts once, and not at all if it runs for an unbalanced load
    only; a branch counts as its largest side. Kernels count as they declare: see
    `luthier.layers.declared`, and the cost estimates of Pallas.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.

    Returns:
      FLOPs by kind, two for each multiplication with its addition; `active` is their sum without
      idle places of experts.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import planner
      >>> jaxpr = jax.make_jaxpr(lambda a, b: a @ b)(jnp.ones((2, 3)), jnp.ones((3, 4)))
      >>> planner.count(jaxpr).active
      48
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
    total = Flops()
    for equation in inner.eqns:
        total += of_equation(equation)
    return total


def of_equation(equation: jex_core.JaxprEqn) -> Flops:
    """Count the FLOPs of one equation of a jaxpr, and of all jaxprs inside of it.

    Args:
      equation: A `JaxprEqn`.
    """
    # What a shape cannot show, layers declare in the names of scopes (`layers.declared`): the share
    # of places that hold a token, and of pairs that a mask leaves visible. Names survive
    # differentiation, so the backward pass is counted alike.
    flops, scopes = _equation(equation), str(equation.source_info.name_stack)
    shares = share_of(scopes)
    if shares is not None and flops.total:
        active, places = shares
        needed = flops.total * active // places
        flops = Flops(weights=needed, idle=max(flops.total - needed, 0))
    share = visible_share(scopes)
    if share < 1:
        flops = dataclasses.replace(flops, hidden=flops.batched - int(flops.batched * share))
    return flops


def declared(equation: jex_core.JaxprEqn) -> int | None:
    """Return the FLOPs that a kernel declares; None if the equation is not such a kernel.

    Args:
      equation: A `JaxprEqn`.
    """
    name, params = equation.primitive.name, equation.params
    if name in _ATTENTION:
        query, key = map(_shape, equation.invars[:2])
        # Two FLOPs for each pair and element of a head, once for each product.
        heads, lengths = (1, (2, 2)) if params["layout"] else (2, (1, 1))  # BNTH, or BTNH
        pairs = query[lengths[0]] * key[lengths[1]]
        return _ATTENTION[name] * 2 * query[0] * query[heads] * pairs * query[3]
    if name == "pallas_call" and params.get("cost_estimate") is not None:
        return int(params["cost_estimate"].flops)
    kernel = _kernel(equation)
    return None if kernel is None else kernel_flops(kernel)


def declared_bytes(equation: jex_core.JaxprEqn) -> int | None:
    """Return the bytes that a kernel declares; None if the equation is not such a kernel.

    Args:
      equation: A `JaxprEqn`.
    """
    kernel = _kernel(equation)
    return None if kernel is None else kernel_bytes(kernel)


def _kernel(equation: jex_core.JaxprEqn) -> str | None:
    """Return the name of a kernel that declares its costs; None if the equation is not one."""
    name, body = (equation.params.get(key) for key in ("name", "jaxpr"))
    if not isinstance(name, str) or not isinstance(body, jex_core.ClosedJaxpr):
        return None
    return name if is_kernel(name, [inner.primitive.name for inner in body.eqns]) else None


def _equation(equation: jex_core.JaxprEqn) -> Flops:
    # A product with batch dimensions is taken for one of activations with each other (attention), a
    # product without for one with weights; the two are reported apart because conventions differ on
    # whether the former count, and count in full.
    name, params = equation.primitive.name, equation.params
    declared_flops = declared(equation)
    # A declaration is a number without a kind. It counts as batched, since the kernels that layers
    # of this framework call are those of attention.
    if declared_flops is not None:
        return Flops(batched=declared_flops)
    if name == "dot_general":
        (contract, _), (batch, _) = params["dimension_numbers"]
        left, out = _shape(equation.invars[0]), _shape(equation.outvars[0])
        flops = 2 * math.prod(out) * math.prod(left[i] for i in contract)
        return Flops(batched=flops) if batch else Flops(weights=flops)
    if name == "ragged_dot_general" or name == "ragged_dot":
        left, right = map(_shape, equation.invars[:2])
        numbers = params["ragged_dot_dimension_numbers"]
        (_, summed), (_, batch) = numbers.dot_dimension_numbers
        # Every row of the left meets one group of the right, so `free` leaves out the groups. In
        # the gradient by the kernel rows are summed, and the right has no groups: `free` is O, and
        # the same formula holds.
        other = {*summed, *batch, *numbers.rhs_group_dimensions}
        free = math.prod(size for i, size in enumerate(right) if i not in other)
        return Flops(weights=2 * math.prod(left) * free)
    if name == "conv_general_dilated":
        # Each output sums over the kernel's taps and input channels: all of it but its output
        # features. With groups the kernel has only the input channels of one group.
        kernel, out = _shape(equation.invars[1]), _shape(equation.outvars[0])
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return Flops(weights=2 * math.prod(out) * math.prod(kernel) // features)
    # Which branch runs is data; the largest is an upper bound.
    if name == "cond":
        return max((count(branch) for branch in params["branches"]), key=lambda f: f.total)
    inner = Flops()
    for sub in inside(equation):
        inner += count(sub)
    return inner * times(equation)


def times(equation: jex_core.JaxprEqn) -> int:
    """Return how often the jaxprs inside of an equation run: of unknown loops, once.

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
    if name == "while" and is_unbalanced(str(equation.source_info.name_stack)):
        return 0
    return 1


def inside(equation: jex_core.JaxprEqn) -> Iterator[jex_core.Jaxpr | jex_core.ClosedJaxpr]:
    """Yield the jaxprs that an equation runs, but for the condition of a loop.

    Args:
      equation: A `JaxprEqn`.
    """
    # By type, not by primitive: `jit`, `scan`, `remat`, `custom_vjp_call` and those of other
    # libraries keep their bodies under different names of parameters.
    for name, value in equation.params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            if name != "cond_jaxpr" and isinstance(item, jex_core.ClosedJaxpr | jex_core.Jaxpr):
                yield item


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape  # JAX types `aval` as one without a shape
    return shape
