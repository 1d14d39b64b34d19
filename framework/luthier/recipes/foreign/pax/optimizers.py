"""Conversion of the optimizers of Praxis."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import optim
from luthier.recipes.foreign.pax.nodes import Node, is_number
from luthier.recipes.foreign.pax.schedules import learning_rate

_NO_NORMS = r"^(?!.*norm\.(scale|bias)$)"


def optimizer(learner: Node) -> fdl.Config[optim.Optimizer] | None:
    """Return the optimizer of a learner; None, and a report, if there is no equivalent.

    Args:
      learner: The `Learner`.
    """
    node = learner.get("optimizer")
    known = {
        "Adam": _adam,
        "ShardedAdafactor": _adafactor,
        "Lion": _lion,
        "Sgd": _sgd,
        "ShardedSgd": _sgd,
    }
    if not isinstance(node, Node) or node.kind not in known:
        learner.leave("optimizer", f"supported: {', '.join(known)}; set optimizer")
        return None
    # An optimizer does not change the model, so what has no equivalent is reported, and not
    # essential.
    for field in ("l1_regularizer_weight", "l2_regularizer_weight"):
        if node.get(field):
            node.leave(field, "nothing here adds it to the loss")
    if node.get("clip_gradient_single_norm_to_value"):
        node.leave("clip_gradient_single_norm_to_value", "gradients are clipped as a whole here")
    found = known[node.kind](node)
    found.learning_rate = learning_rate(node)
    found.clip_norm = _limit(node, "clip_gradient_norm_to_value")
    return found


def average(learner: Node) -> fdl.Config[optim.Ema] | None:
    """Return the moving average of the parameters that a learner keeps.

    Args:
      learner: The `Learner`.
    """
    node = learner.get("optimizer")
    decay = node.get("ema_decay", 0.0) if isinstance(node, Node) else 0.0
    return fdl.Config(optim.Ema, decay=decay) if decay else None


def _adam(node: Node) -> fdl.Config[Any]:
    # `sharded_adam` is another implementation in Praxis, which caps updates, adds epsilon below the
    # root and has weight decay; the plain one has neither cap nor weight decay.
    betas = {"b1": node.get("beta1"), "b2": node.get("beta2"), "eps": node.get("epsilon")}
    node.pass_over("maybe_inf_to_nan")
    if node.get("sharded_adam"):
        return fdl.Config(
            optim.capped_adamw,
            **betas,
            eps_root=node.get("epsilon_root"),
            max_update_rms=_limit(node, "clip_threshold"),
            **_decay(node),
        )
    if node.get("epsilon_root"):
        node.leave("epsilon_root", "nothing is added below the root here")
    node.pass_over("clip_threshold", "weight_decay")
    return fdl.Config(optim.adamw, **betas, **(_decay(node) | {"weight_decay": 0.0}))


def _adafactor(node: Node) -> fdl.Config[Any]:
    """Return `ShardedAdafactor`: momentum, and one of two decays of the second moment."""
    # Pax factors the last two dimensions unless they are sorted by size, and caps the update of
    # queries, keys and values together, where they are one variable; ours caps each. The dtype of
    # the momentum is passed over as storage, and `maybe_inf_to_nan` because an infinite gradient
    # over the root of its square is NaN in any case.
    node.pass_over("maybe_inf_to_nan", "per_var_learning_summary", "name")
    for field in ("layerwise_adaptation", "exclude_from_layerwise_adaptation"):
        if node.get(field):
            node.leave(field, "it has no equivalent here")
    if not node.get("factored"):
        node.leave("factored", "second moments are factored here")
    node.pass_over("quantized_dtype")
    memory: fdl.Config[Any] = fdl.Config(optim.PowerDecay)
    if node.get("decay_method") == "adam":
        memory = fdl.Config(optim.AdamDecay, b2=node.get("decay_adam"))
    elif node.get("decay_method") == "pow":
        memory.exponent = node.get("decay_pow")
    else:
        node.leave("decay_method", "supported: adam and pow")
    # Praxis looks at `min_dim_size_to_factor` only where dimensions are sorted; otherwise it
    # factors every matrix, hence the 1 below.
    by_size = node.get("sort_factored_second_moment_dims")
    is_relative = node.get("multiply_by_parameter_scale")
    return fdl.Config(
        optim.adafactor,
        decay=memory,
        eps=node.get("epsilon1_grad_sq_reg"),
        least_factored_dim=node.get("min_dim_size_to_factor") if by_size else 1,
        max_update_rms=_limit(node, "clip_threshold"),
        least_parameter_rms=node.get("epsilon2_param_scale_reg") if is_relative else None,
        momentum=node.get("beta1") or None,
        factored_dims=fdl.Config(optim.LargestDims if by_size else optim.LastDims),
        **_decay(node),
    )


def _lion(node: Node) -> fdl.Config[Any]:
    node.pass_over("m_dtype")
    if node.get("clip_threshold"):
        node.leave("clip_threshold", "updates of Lion are all of one size here")
    betas = {"b1": node.get("beta1"), "b2": node.get("beta2")}
    return fdl.Config(optim.lion, **betas, **_decay(node))


def _sgd(node: Node) -> fdl.Config[Any]:
    kind = optim.nesterov if node.get("nesterov") else optim.sgd
    return fdl.Config(kind, momentum=node.get("momentum") or 0.0, **_decay(node))


def _decay(node: Node) -> dict[str, Any]:
    """Return the decoupled weight decay: of all parameters, or of all but norms."""
    plain, masked = node.get("weight_decay", 0.0), node.get("decoupled_weight_decay")
    if isinstance(plain, dict):
        node.leave("weight_decay", "one decay is for all parameters here")
        plain = 0.0
    # `weight_decay` is for all parameters, `decoupled_weight_decay` leaves out those of norms. Both
    # at once cannot be expressed by one mask.
    if masked and not plain:
        mask = fdl.Config(optim.Matching, pattern=_NO_NORMS)
        return {"weight_decay": masked, "decay_mask": mask}
    if masked:
        node.leave("decoupled_weight_decay", "weight_decay is there as well")
    mask = fdl.Config(optim.Matching, pattern="")
    return {"weight_decay": plain or 0.0, "decay_mask": mask}


def _limit(node: Node, field: str) -> float | None:
    value = node.get(field)
    return float(value) if is_number(value) and value > 0 else None
