"""Matrix products of a program by the type of what is multiplied: peaks differ by type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from luthier.tasks.flops import declared, inside, of_equation, times

FLOAT8 = "float8"
_PRODUCTS = ("dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated")


def flops_by_dtype(jaxpr: Any) -> dict[str, int]:
    """Return the FLOPs of a jaxpr's products by the wider type of the two operands.

    Products of two float8 numbers, of one format or of two, are those of `float8`.

    Loops count by their length, as in `luthier.plan.count`, to which these sum up; kernels by what
    they declare, and the type of their first operands.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    found: dict[str, int] = {}
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for dtype, flops in _of(equation).items():
            found[dtype] = found.get(dtype, 0) + flops
    return found


def _of(equation: Any) -> dict[str, int]:
    name = equation.primitive.name
    if name in _PRODUCTS or declared(equation) is not None:
        return {_wider(equation.invars[:2]): of_equation(equation).total}
    if name == "cond":
        sides = [flops_by_dtype(branch) for branch in equation.params["branches"]]
        return max(sides, key=lambda side: sum(side.values()))
    found: dict[str, int] = {}
    for inner in inside(equation):
        for dtype, flops in flops_by_dtype(inner).items():
            found[dtype] = found.get(dtype, 0) + flops * times(equation)
    return found


def _wider(operands: Any) -> str:
    kinds = [jnp.dtype(operand.aval.dtype) for operand in operands]
    # JAX has no type to which both formats of float8 are promoted: devices multiply them as they
    # are. Next to a wider factor, they are widened.
    if all(kind.name.startswith(FLOAT8) for kind in kinds):
        return FLOAT8
    widest = max(kind.itemsize for kind in kinds)
    first, *others = (kind for kind in kinds if kind.itemsize == widest)
    return str(jnp.promote_types(first, others[0] if others else first))
