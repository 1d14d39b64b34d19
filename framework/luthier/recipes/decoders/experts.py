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
    """Return the template of a decoder, with mixtures of its MLP in the place of it.

    Train it with `tasks.Routed`, which keeps the load balanced.

    Args:
      graph: Template of a decoder, such as `llama` gives; it stays as it is.
      num_experts: Experts of a layer, of the size of the MLP.
      k: Experts of a token.
      num_shared: Experts of every token beside these, as one of so many times the size.
      dispatch: How tokens get to their experts; None means `Dropless`.

    Source: shared experts: Dai et al. 2024, arXiv 2401.06066, section 3.2.
    """
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
