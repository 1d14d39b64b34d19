"""Conversion of small parts of Praxis' transformers: norms, activations, linear maps, dropout."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers
from luthier.recipes.foreign.pax.initializers import kernel
from luthier.recipes.foreign.pax.nodes import Node, is_number

_ACTIVATIONS: dict[str, Any] = {
    "ReLU": jax.nn.relu,
    "ReLU6": jax.nn.relu6,
    "ELU": jax.nn.elu,
    "Sigmoid": jax.nn.sigmoid,
    "Tanh": jax.numpy.tanh,
    "SiLU": jax.nn.silu,
    "Swish": jax.nn.silu,
    "Softplus": jax.nn.softplus,
    "Exp": jax.numpy.exp,
}


def number(node: Node, field: str) -> Any:
    """Return a setting that must be a number; if it is not, report it and return 1."""
    value = node.get(field)
    if not is_number(value):
        node.refuse(field, "it must be a number")
        return 1
    return value


def cap(node: Node, field: str) -> float | None:
    """Return the limit of a tanh cap; None where a setting caps nothing."""
    value = node.get(field, 0.0)
    return float(value) if is_number(value) and value > 0 else None


def norm(node: Any, above: Node, field: str) -> fdl.Partial[Any]:
    """Return the template of a norm.

    Args:
      node: The value of the setting.
      above: The layer that has it.
      field: The setting.
    """
    if isinstance(node, Node):
        node.pass_over("dim")
        if node.is_a("LayerNorm"):
            return _layer_norm(node)
        if node.is_a("RmsNorm"):
            return fdl.Partial(layers.RMSNorm, **_scale(node))
    above.refuse(field, "supported: LayerNorm and RmsNorm")
    return fdl.Partial(layers.RMSNorm)


def _layer_norm(node: Node) -> fdl.Partial[Any]:
    node.only("use_scale", True)
    found = fdl.Partial(layers.LayerNorm, **_scale(node))
    if not node.get("use_bias", True):
        found.bias = None
    return found


def _scale(node: Node) -> dict[str, Any]:
    # Praxis multiplies by `1 + scale`, with a scale that starts at zero, unless `direct_scale` is
    # set.
    found: dict[str, Any] = {"epsilon": number(node, "epsilon")}
    if not node.get("direct_scale"):
        found |= {"scale": fdl.Config(layers.Zeros), "offset": 1.0}
    return found


def activation(node: Any, above: Node, field: str) -> Any:
    """Return a nonlinearity.

    Args:
      node: The value of the setting.
      above: The layer that has it.
      field: The setting.
    """
    if isinstance(node, Node):
        if node.kind == "GELU":
            if node.get("approximate", True):
                return jax.nn.gelu
            return fdl.Partial(jax.nn.gelu, approximate=False)
        if node.kind in _ACTIVATIONS:
            return _ACTIVATIONS[node.kind]
    above.refuse(field, f"supported: GELU, {', '.join(_ACTIVATIONS)}")
    return jax.nn.gelu


def linear(
    node: Node,
    inputs: int,
    outputs: int,
    has_bias: bool,
    init: Any = None,
) -> fdl.Partial[layers.Linear]:
    """Return the template of a `FeedForward` or `Linear` of Praxis, without its activation.

    Args:
      node: The layer.
      inputs: Size of its input.
      outputs: Size of its output.
      has_bias: Whether it has a bias.
      init: The initializer; None uses that of the layer.
    """
    # A `FeedForward` holds a `Linear` in `linear_tpl`; a `Linear` is its own inner layer. The
    # initializer is set on the outer one, and inherited from the inner one's ancestors if it is
    # not.
    node.pass_over("input_dims", "output_dims", "has_bias", "activation_tpl")
    inner = node.get("linear_tpl", node)
    if isinstance(inner, Node) and inner is not node:
        inner.pass_over("input_dims", "output_dims", "weight_init")
    else:
        inner = node
    weight_init = node.get("weight_init")
    initial = kernel(inner, (inputs, outputs), init=weight_init) if init is None else init
    found = fdl.Partial(layers.Linear, kernel=initial)
    initial_bias = bias(node, has_bias)
    if initial_bias is None:
        node.pass_over("bias_tpl")
    else:
        node.get("bias_tpl")
        found.bias = initial_bias
    return found


def bias(node: Node, has_bias: Any) -> fdl.Config[layers.Zeros] | None:
    """Return the initializer of a bias; None without one.

    Args:
      node: The layer that says at which constant it starts; another one than 0 is reported.
      has_bias: Whether there is one.
    """
    if node.get("bias_init") and has_bias:
        node.leave("bias_init", "it starts at 0 here; it does not matter for restored weights")
    return fdl.Config(layers.Zeros) if has_bias else None


def dropout(node: Node, field: str) -> fdl.Partial[layers.Dropout] | None:
    """Return the template of a dropout; None where nothing is dropped.

    Args:
      node: The layer.
      field: The probability.
    """
    rate = node.get(field, 0.0)
    return fdl.Partial(layers.Dropout, rate=rate) if rate else None
