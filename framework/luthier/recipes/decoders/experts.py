"""Decoders whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

import copy
from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.graph import copy_graph, multiply, value


def with_experts(
    graph: fdl.Partial[models.Decoder],
    *,
    num_experts: Any,
    k: Any,
    num_shared: int = 0,
    dispatch: fdl.Config | None = None,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a decoder whose MLPs are replaced by mixtures of such MLPs.

    Train it with `tasks.Routed`, which keeps the load balanced.

    Args:
      graph: Template of a decoder, such as `llama` gives; it stays as it is.
      num_experts: Experts of a layer, of the size of the MLP.
      k: Experts of a token.
      num_shared: Additional experts of every token, as one expert of that many times the size.
      dispatch: How tokens are sent to their experts; None means `Dropless`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> model = decoders.with_experts(decoders.qwen3_600m(), num_experts=8, k=2)
      >>> counts = planner.count_parameters(planner.model_parameters(model))
      >>> counts.total, counts.active
      (2445967360, 860520448)

    Source: shared experts: Dai et al. 2024, arXiv 2401.06066, section 3.2.
    """
    # Shared experts always run together, so one MLP of their summed hidden size computes the same.
    # Its size is arithmetic on that of an expert, so that one override changes both. The router is
    # drawn as the expert's kernels are.
    graph = copy_graph(graph)
    expert = graph.block.mlp
    projection = fdl.Partial(layers.Linear, kernel=expert.up.kernel)
    shared = None
    if num_shared:
        hidden_dim = value(expert.hidden_dim, name="expert_hidden_dim")
        expert.hidden_dim, shared = hidden_dim, copy.copy(expert)
        shared.hidden_dim = multiply(hidden_dim, num_shared)
    graph.block.mlp = fdl.Partial(
        layers.Experts,
        num_experts=num_experts,
        router=fdl.Partial(
            layers.TopK, k=k, logits=fdl.Partial(layers.RouterLogits, projection=projection)
        ),
        expert=expert,
        dispatch=fdl.Config(layers.Dropless) if dispatch is None else dispatch,
        shared=shared,
    )
    return graph
