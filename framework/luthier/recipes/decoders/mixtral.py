"""Mixtral: a Llama whose feed-forward layers are mixtures of experts.

Jiang et al. 2024, arXiv 2401.04088, section 2.1.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import models
from luthier.recipes.decoders.experts import with_experts
from luthier.recipes.decoders.llama import llama


def mixtral(
    *,
    num_experts: Any = 8,
    k: Any = 2,
    dispatch: fdl.Config | None = None,
    rotary_base: Any = 1e6,
    **sizes: Any,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Mixtral.

    Args:
      num_experts: Experts of a layer.
      k: Experts of a token.
      dispatch: How tokens are sent to their experts; None means `Dropless`.
      rotary_base: Base of the rotary frequencies.
      **sizes: As for `llama`; `hidden_dim` is that of one expert.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    graph = llama(rotary_base=rotary_base, **sizes)
    return with_experts(graph, num_experts=num_experts, k=k, dispatch=dispatch)


def mixtral_8x7b() -> fdl.Partial[models.Decoder]:
    """Return Mixtral 8x7B of 46.7 billion parameters, 12.9 billion of them active.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.mixtral_8x7b())
      >>> planner.count_parameters(parameters).total
      46702792704
    """
    sizes = {"dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8}
    return mixtral(vocab_size=32_000, hidden_dim=14_336, **sizes)


def mixtral_8x22b() -> fdl.Partial[models.Decoder]:
    """Return Mixtral 8x22B of 140.6 billion parameters, 39.2 billion of them active.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 6144, "num_layers": 56, "num_heads": 48, "num_kv_heads": 8}
    return mixtral(vocab_size=32_768, hidden_dim=16_384, **sizes)
