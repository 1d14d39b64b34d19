"""Matrix products of a program by the type of what is multiplied: peaks differ by type."""

from __future__ import annotations

import math
import types
from typing import Any

import jax.numpy as jnp

from luthier.tasks.flops import count

_PRODUCTS = ("dot_general", "ragged_dot_general", "ragged_dot", "conv_general_dilated")


def flops_by_dtype(jaxpr: Any) -> dict[str, int]:
    """Return the FLOPs of a jaxpr's products by the wider type of the two operands.

    Loops count by their length, as in `luthier.plan.count`, to which these sum up.

    Args:
      jaxpr: A `Jaxpr` or `ClosedJaxpr`.
    """
    found: dict[str, int] = {}
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = equation.primitive.name, equation.params
        if name in _PRODUCTS:
            types_of = [v.aval.dtype for v in equation.invars[:2]]
            dtype = str(jnp.promote_types(*types_of))
            one = count(types.SimpleNamespace(eqns=[equation])).total
            found[dtype] = found.get(dtype, 0) + one
            continue
        for dtype, flops in _within(equation, name, params).items():
            found[dtype] = found.get(dtype, 0) + flops
    return found


def _within(equation: Any, name: str, params: dict[str, Any]) -> dict[str, int]:
    if name == "cond":
        sides = [flops_by_dtype(branch) for branch in params["branches"]]
        return max(sides, key=lambda side: sum(side.values()))
    times = params["length"] if name == "scan" else 1
    if name == "shard_map":
        axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
        times = math.prod(params["mesh"].shape[axis] for axis in axes)
    found: dict[str, int] = {}
    for key, value in params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            if key != "cond_jaxpr" and hasattr(getattr(item, "jaxpr", item), "eqns"):
                for dtype, flops in flops_by_dtype(item).items():
                    found[dtype] = found.get(dtype, 0) + flops * times
    return found
