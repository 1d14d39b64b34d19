"""Conversion of the initializers of Praxis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier import layers
from luthier.recipes.foreign.pax.nodes import Node, is_number

# The scale by which Praxis marks its default, `WeightInit.Xavier(1.000001)`.
_XAVIER = 1.000001
# The standard deviation of a standard normal cut off at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


def kernel(
    node: Node,
    shape: Sequence[int],
    fans: tuple[int, int] | None = None,
    init: Any = None,
) -> fdl.Config[Any]:
    """Return the initializer of a variable of a layer.

    Args:
      node: The layer, whose `params_init` applies, or that of its nearest ancestor.
      shape: The shape of the variable in Praxis.
      fans: Its fan-in and fan-out; None derives them from the shape, as Praxis does.
      init: The `WeightInit` that the layer has for this variable; None where it has none.

    Source: praxis 1.4.0, `base_layer.init_var`.
    """
    initializer = init if isinstance(init, Node) else node.inherited("params_init", _is_default)
    # A file may set None, or lack the defaults of a class: then Praxis' own default applies.
    method, scale = "xavier", _XAVIER
    if isinstance(initializer, Node):
        method, scale = initializer.get("method"), initializer.get("scale")
    fan_in, fan_out = fans or _fans(shape)
    found = None
    if isinstance(method, str) and is_number(scale):
        found = _initializer(method, float(scale), shape, fan_in, fan_out)
    if found is None:
        initializer.leave(
            "method", "the default is used here; it does not matter for restored weights"
        )
        return fdl.Config(layers.FanAverage)
    return found


def _initializer(
    method: str, scale: float, shape: Sequence[int], fan_in: int, fan_out: int
) -> fdl.Config[Any] | None:
    # Names are a distribution, and possibly what its scale is divided by: `gaussian_sqrt_fanin`.
    # The fans are those of Praxis' shape, which may differ from ours (heads are dimensions there),
    # so most become an explicit number.
    family, _, by = method.partition("_sqrt_")
    if by:
        sizes: dict[str, float] = {"dim": shape[0], "fanin": fan_in, "fanout": fan_out}
        sizes["fanavg"] = (fan_in + fan_out) / 2
        if by not in sizes:
            return None
        scale *= sizes[by] ** -0.5
    if method == "xavier":
        if tuple(shape) == (fan_in, fan_out):
            return fdl.Config(layers.FanAverage, scale=scale**2)
        return fdl.Config(layers.Uniform, limit=scale * math.sqrt(6 / (fan_in + fan_out)))
    if method == "uniform_unit_scaling":
        return fdl.Config(layers.Uniform, limit=scale * math.sqrt(3 / math.prod(shape[:-1])))
    if family == "gaussian":
        return fdl.Config(layers.Normal, stddev=scale)
    if family == "truncated_gaussian":
        return fdl.Config(layers.TruncatedNormal, stddev=scale * _TRUNCATED_STDDEV)
    if family == "uniform":
        # As in Praxis: only `uniform_sqrt_fanavg` makes the scale a standard deviation, the limit
        # over sqrt(3). For the others it is the limit.
        limit = scale * math.sqrt(3) if by == "fanavg" else scale
        return fdl.Config(layers.Uniform, limit=limit)
    # Our layers have no initializer of any other constant.
    if method == "constant" and scale in (0.0, 1.0):
        return fdl.Config(layers.Ones if scale else layers.Zeros)
    return None


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return fan-in and fan-out as Praxis derives them from a shape without explicit axes."""
    if len(shape) < 2:
        return (shape[0] if shape else 1,) * 2
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


def _is_default(init: Any) -> bool:
    if not isinstance(init, Node):
        return True
    method, scale = init.peek("method"), init.peek("scale")
    return method == "xavier" and is_number(scale) and abs(scale - _XAVIER) < 1e-7
