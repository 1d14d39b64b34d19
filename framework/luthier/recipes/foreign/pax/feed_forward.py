"""Conversion of the feed-forward parts of Praxis' transformers: MLPs, gated or not, and experts."""

from __future__ import annotations

import math
from typing import Any

import fiddle as fdl

from luthier import layers
from luthier.recipes.foreign.pax.initializers import kernel
from luthier.recipes.foreign.pax.nodes import Node, is_number
from luthier.recipes.foreign.pax.parts import activation, linear

_FROM_ABOVE = (
    *("input_dims", "output_dims", "hidden_dims", "relu_dropout_prob", "residual_dropout_prob"),
    *("residual_droppath_prob", "norm_policy", "num_experts", "num_groups", "min_group_size"),
    *("gating_func", "relu_dropout_tpl", "residual_dropout_tpl"),
)


def feed_forward(node: Any, above: Node, field: str, dim: int, hidden: int) -> fdl.Partial[Any]:
    """Return the template of the feed-forward part of a layer, without its norm.

    Args:
      node: The value of the setting.
      above: The layer that has it.
      field: The setting.
      dim: Size of the residual stream.
      hidden: Size of the hidden layer.
    """
    if isinstance(node, Node) and node.kind == "TransformerFeedForward":
        node.pass_over(*_FROM_ABOVE)
        node.only("add_skip_connection", True)
        node.only("residual_weight", 1.0)
        return _perceptron(node, dim, hidden)
    above.refuse(field, "supported: TransformerFeedForward and TransformerFeedForwardMoe")
    return fdl.Partial(layers.Mlp, hidden_dim=hidden)


def _perceptron(node: Node, dim: int, hidden: int) -> fdl.Partial[Any]:
    inner = node.get("fflayer_tpl")
    if not isinstance(inner, Node) or inner.kind != "FeedForward":
        node.refuse("fflayer_tpl", "supported: FeedForward")
        return fdl.Partial(layers.Mlp, hidden_dim=hidden)
    has_bias = bool(node.get("has_bias"))
    first = last = None
    if node.get("internal_gshard_variance_scaling_fan_in_init", False):
        first, last = _uniform(dim), _uniform(hidden)
    up = linear(inner, dim, hidden, has_bias, first)
    down = linear(inner, hidden, dim, has_bias, last)
    chosen = activation(node.get("activation_tpl"), node, "activation_tpl")
    return _mlp(hidden, chosen, up, down, is_gated=bool(node.get("use_gated_activation")))


def experts(
    node: Any, above: Node, dim: int, hidden: int, settings: dict[str, Any]
) -> fdl.Partial[Any]:
    """Return the template of a mixture of experts, without its norm.

    Args:
      node: The value of `moe_layer_tpl` of a stack.
      above: The stack.
      dim: Size of the residual stream.
      hidden: Size of a perceptron of the stack, where the experts have none of their own.
      settings: `num_experts` and `gating_func`, as the stack passes them on.
    """
    # `top2` has a capacity, beyond which tokens are dropped; `dense_top2` has none: all experts
    # compute all tokens.
    if not isinstance(node, Node) or node.kind != "TransformerFeedForwardMoe":
        above.refuse("moe_layer_tpl", "supported: TransformerFeedForwardMoe")
        return fdl.Partial(layers.Mlp, hidden_dim=hidden)
    hidden = node.get("hidden_dims") or hidden
    node.pass_over(*_FROM_ABOVE)
    node.only("add_skip_connection", True)
    node.only("residual_weight", 1.0)
    node.only("second_expert_policy", "all")
    node.only("moe_gating_embedding_level", "token")
    node.only("gating_logit_cap", 0.0)
    # The weight of the balance belongs to the task here (`experiment.py` reads it); Praxis asserts
    # that the number of shards of a weight is 1.
    node.pass_over("moe_load_balance_loss_weight", "expert_weight_shards")
    count = settings["num_experts"]
    # All other gatings are refused, and the graph is made with a stand-in, so that one import lists
    # every problem.
    if settings["gating_func"] not in ("top2", "dense_top2"):
        above.refuse("gating_func", "supported: top2 and dense_top2")
    is_gated = bool(node.get("use_gated_activation"))
    router, up, down = _experts_kernels(node, dim, hidden, count)
    chosen = activation(node.get("activation_tpl"), node, "activation_tpl")
    logits = fdl.Partial(layers.RouterLogits, projection=fdl.Partial(layers.Linear, kernel=router))
    dispatch: fdl.Config[Any] = fdl.Config(layers.AllExperts)
    places = node.get("unadjusted_expert_capacity_factor")
    least = node.get("expert_capacity_dim")
    if settings["gating_func"] == "top2":
        if not is_number(places) or places <= 0 or least:
            field = "expert_capacity_dim" if least else "unadjusted_expert_capacity_factor"
            node.refuse(field, "supported: a factor above zero, and no places beside it")
        else:
            # Pax counts the places of an expert per token, ours per choice, of which top-2 makes
            # two: Pax's factor of 2.0 is 1.0 here.
            dispatch = fdl.Config(layers.Capacity, factor=places / 2)
    return fdl.Partial(
        layers.Experts,
        num_experts=count,
        router=fdl.Partial(layers.TopK, k=2, logits=logits),
        expert=_mlp(
            hidden,
            chosen,
            fdl.Partial(layers.Linear, kernel=up),
            fdl.Partial(layers.Linear, kernel=down),
            is_gated=is_gated,
        ),
        dispatch=dispatch,
    )


def _experts_kernels(node: Node, dim: int, hidden: int, count: int) -> tuple[fdl.Config[Any], ...]:
    if node.get("internal_gshard_variance_scaling_fan_in_init"):
        return _uniform(dim), _uniform(dim), _uniform(hidden)
    has_explicit_fans = node.get("explicit_fan_in_fan_out_axes")
    router = kernel(node, (dim, count))
    up = kernel(node, (count, dim, hidden), (dim, hidden) if has_explicit_fans else None)
    down = kernel(node, (count, hidden, dim), (hidden, dim) if has_explicit_fans else None)
    return router, up, down


def _mlp(
    hidden: int, chosen: Any, up: fdl.Partial[Any], down: fdl.Partial[Any], is_gated: bool
) -> fdl.Partial[Any]:
    sizes = {"hidden_dim": hidden, "activation": chosen, "up": up, "down": down}
    if is_gated:
        return fdl.Partial(layers.GatedMlp, gate=up, **sizes)
    return fdl.Partial(layers.Mlp, **sizes)


def _uniform(inputs: int) -> fdl.Config[layers.Uniform]:
    return fdl.Config(layers.Uniform, limit=math.sqrt(3 / inputs))
