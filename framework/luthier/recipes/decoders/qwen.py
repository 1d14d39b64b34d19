"""Qwen 2, with biases on queries, keys and values, and Qwen 3, with norms on queries and keys.

Yang et al. 2024, arXiv 2407.10671, section 2.2; Yang et al. 2025, arXiv 2505.09388, section 2.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.recipes.decoders.experts import with_experts
from luthier.recipes.decoders.llama import llama


def qwen2(*, rotary_base: Any = 1e6, epsilon: Any = 1e-6, **sizes: Any) -> fdl.Partial:
    """Return the template of a Qwen 2 or 2.5.

    Args:
      rotary_base: Base of the rotary frequencies.
      epsilon: Epsilon of all norms.
      **sizes: As for `llama`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    graph = llama(rotary_base=rotary_base, epsilon=epsilon, **sizes)
    # Only queries, keys and values have biases; output and MLP share the template without one.
    kernel = graph.block.attention.projection.kernel
    biased = fdl.Partial(layers.Linear, kernel=kernel, bias=fdl.Config(layers.Zeros))
    graph.block.attention.projection = biased
    return graph


def qwen3(*, rotary_base: Any = 1e6, epsilon: Any = 1e-6, **sizes: Any) -> fdl.Partial:
    """Return the template of a Qwen 3.

    Args:
      rotary_base: Base of the rotary frequencies.
      epsilon: Epsilon of all norms, those of queries and keys included.
      **sizes: As for `llama`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    graph = llama(rotary_base=rotary_base, epsilon=epsilon, **sizes)
    graph.block.attention.query_key = fdl.Partial(layers.HeadNorms, norm=graph.norm)
    return graph


def qwen2_500m() -> fdl.Partial[models.Decoder]:
    """Return Qwen 2 of 494 million parameters, tied.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 896, "num_layers": 24, "num_heads": 14, "num_kv_heads": 2, "hidden_dim": 4864}
    return qwen2(vocab_size=151_936, unembedding=_tied(), **sizes)


def qwen2_1b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 2 of 1.54 billion parameters, tied.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 1536, "num_layers": 28, "num_heads": 12, "num_kv_heads": 2, "hidden_dim": 8960}
    return qwen2(vocab_size=151_936, unembedding=_tied(), **sizes)


def qwen2_7b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 2 of 7.62 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 3584, "num_layers": 28, "num_heads": 28, "num_kv_heads": 4}
    return qwen2(vocab_size=152_064, hidden_dim=18_944, **sizes)


def qwen2_72b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 2 of 72.7 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 8192, "num_layers": 80, "num_heads": 64, "num_kv_heads": 8}
    return qwen2(vocab_size=152_064, hidden_dim=29_568, **sizes)


def qwen3_600m() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 596 million parameters, tied.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.qwen3_600m())
      >>> planner.count_parameters(parameters).total
      596049920
    """
    return _qwen3(1024, 28, 16, 3072, unembedding=_tied())


def qwen3_1b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 1.72 billion parameters, tied.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _qwen3(2048, 28, 16, 6144, unembedding=_tied())


def qwen3_4b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 4.02 billion parameters, tied.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _qwen3(2560, 36, 32, 9728, unembedding=_tied())


def qwen3_8b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 8.19 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _qwen3(4096, 36, 32, 12_288)


def qwen3_14b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 14.8 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _qwen3(5120, 40, 40, 17_408)


def qwen3_32b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 32.8 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return _qwen3(5120, 64, 64, 25_600)


def qwen3_30b_a3b() -> fdl.Partial[models.Decoder]:
    """Return Qwen 3 of 30.5 billion parameters in 128 experts a layer, 3.35 billion active.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    sizes = {"dim": 2048, "num_layers": 48, "num_heads": 32, "num_kv_heads": 4, "head_dim": 128}
    return with_experts(qwen3(vocab_size=151_936, hidden_dim=768, **sizes), num_experts=128, k=8)


def _qwen3(
    dim: int, num_layers: int, num_heads: int, hidden_dim: int, unembedding: Any = None
) -> fdl.Partial:
    return qwen3(
        vocab_size=151_936,
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        hidden_dim=hidden_dim,
        unembedding=unembedding,
    )


def _tied() -> fdl.Partial[layers.TiedUnembedding]:
    return fdl.Partial(layers.TiedUnembedding)
