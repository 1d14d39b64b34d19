"""Mistral: a Llama whose attention looks back over a window.

Jiang et al. 2023, arXiv 2310.06825, section 2.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.recipes.decoders.llama import llama


def mistral(*, window: Any, **sizes: Any) -> fdl.Partial[models.Decoder]:
    """Return the template of a Mistral.

    Args:
      window: Tokens that a token sees, itself included.
      **sizes: As for `llama`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    graph = llama(**sizes)
    graph.block.attention.core.mask = fdl.Config(layers.Window, size=window)
    return graph


def mistral_7b() -> fdl.Partial[models.Decoder]:
    """Return Mistral 7B (0.1) of 7.24 billion parameters, with a window of 4,096 tokens.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.mistral_7b())
      >>> planner.count_parameters(parameters).total
      7241732096
    """
    sizes = {"dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8}
    return mistral(window=4096, vocab_size=32_000, hidden_dim=14_336, **sizes)
