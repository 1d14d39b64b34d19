"""OLMo 2: norms after each part and on whole projections of queries and keys.

OLMo et al. 2024, arXiv 2501.00656, section 3.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.recipes.decoders.llama import llama


def olmo2(*, rotary_base: Any = 500_000.0, epsilon: Any = 1e-6, **sizes: Any) -> fdl.Partial:
    """Return the template of an OLMo 2.

    Args:
      rotary_base: Base of the rotary frequencies.
      epsilon: Epsilon of all norms, those of queries and keys included.
      **sizes: As for `llama`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    graph = llama(rotary_base=rotary_base, epsilon=epsilon, **sizes)
    # Two changes to a Llama: queries and keys are normalized over all heads at once, before they
    # are cut into heads; and norms come after attention and MLP, before these are added, not in
    # front of them.
    graph.block.attention.query_key = fdl.Partial(layers.ProjectionNorms, norm=graph.norm)
    graph.block = fdl.Partial(
        layers.BranchNormBlock,
        attention=graph.block.attention,
        mlp=graph.block.mlp,
        norm=graph.norm,
    )
    return graph


def olmo2_1b() -> fdl.Partial[models.Decoder]:
    """Return OLMo 2 of 1.48 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.olmo2_1b())
      >>> planner.count_parameters(parameters).total
      1484916736
    """
    return olmo2(vocab_size=100_352, dim=2048, num_layers=16, num_heads=16, hidden_dim=8192)


def olmo2_7b() -> fdl.Partial[models.Decoder]:
    """Return OLMo 2 of 7.30 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return olmo2(vocab_size=100_352, dim=4096, num_layers=32, num_heads=32, hidden_dim=11_008)


def olmo2_13b() -> fdl.Partial[models.Decoder]:
    """Return OLMo 2 of 13.7 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return olmo2(vocab_size=100_352, dim=5120, num_layers=40, num_heads=40, hidden_dim=13_824)


def olmo2_32b() -> fdl.Partial[models.Decoder]:
    """Return OLMo 2 of 32.2 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"num_layers": 64, "num_heads": 40, "num_kv_heads": 8, "hidden_dim": 27_648}
    return olmo2(vocab_size=100_352, dim=5120, **sizes)
