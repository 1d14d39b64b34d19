"""The decoders of Pax's configurations for GPUs, which NVIDIA contributed.

Paxml, `tasks/lm/params/nvidia.py`: base decoder A with other initial values and learned positions,
a Llama of the same habits, and a mixture.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import layers, models
from luthier.graph import power, value
from luthier.recipes.decoders.glam import gshard_experts, gshard_linear
from luthier.recipes.decoders.llama import llama
from luthier.recipes.decoders.pax import pax

STDDEV = 0.023
"""Standard deviation of all initial kernels, and of the vectors of positions."""


def nvidia(
    *, max_length: Any = 2048, vocab_size: Any = 51_200, head_dim: Any = 128, **sizes: Any
) -> fdl.Partial[models.Decoder]:
    """Return the template of a GPT: base decoder A of Pax with learned positions.

    Kernels and positions are normal; the tied embedding stays as it is in base A.

    Args:
      max_length: Number of learned positions.
      vocab_size: Tokens of the vocabulary.
      head_dim: Size of a head.
      **sizes: As for `pax`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> model = decoders.nvidia(dim=1024, num_layers=2, num_heads=8, hidden_dim=4096)
      >>> planner.count_parameters(planner.model_parameters(model)).total
      79763712
    """
    graph = pax(vocab_size=vocab_size, head_dim=head_dim, **sizes)
    initial = fdl.Config(layers.Normal, stddev=STDDEV)
    block = graph.block
    for linear in (block.attention.projection, block.attention.output, block.mlp.up):
        linear.kernel = initial
    graph.embedding.position = fdl.Partial(
        layers.LearnedPositions, max_length=max_length, table=initial
    )
    return graph


def nvidia_experts(
    *,
    hidden_dim: Any,
    num_experts: Any = 16,
    k: Any = 2,
    capacity: Any = 1.0,
    **sizes: Any,
) -> fdl.Partial[models.Decoder]:
    """Return the template of the same with a mixture of experts in every layer.

    Args:
      hidden_dim: Size of an expert.
      num_experts: Experts of a layer.
      k: Experts of a token.
      capacity: Places of the experts for each choice, see `layers.Capacity`.
      **sizes: As for `nvidia`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    hidden_dim = value(hidden_dim, name="hidden_dim")
    graph = nvidia(hidden_dim=hidden_dim, **sizes)
    expert = graph.block.mlp
    expert.up, expert.down = gshard_linear(graph.dim), gshard_linear(hidden_dim)
    graph.block.mlp = gshard_experts(expert, num_experts=num_experts, k=k, capacity=capacity)
    return graph


def nvidia_llama(
    *, vocab_size: Any = 51_200, dim: Any, **sizes: Any
) -> fdl.Partial[models.Decoder]:
    """Return the template of Pax's Llama: biases everywhere, a tied embedding, capped logits.

    Args:
      vocab_size: Tokens of the vocabulary; Llama 2 has 32,000.
      dim: Size of the residual stream.
      **sizes: As for `llama`.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Deviation: from Llama 2 (Touvron et al. 2023, arXiv 2307.09288), which has no biases, a kernel
      of its own for the logits, and no cap.
    """
    dim = value(dim, name="dim")
    tied = fdl.Partial(layers.TiedUnembedding, cap=30.0, bias=fdl.Config(layers.Zeros))
    own = {"stddev": STDDEV, "epsilon": 1e-6, "unembedding": tied}
    graph = llama(vocab_size=vocab_size, dim=dim, **own, **sizes)
    graph.block.attention.projection.bias = fdl.Config(layers.Zeros)  # of all linear maps
    graph.embedding.table = fdl.Config(layers.FanIn)
    graph.embedding.scale = power(dim, 0.5)
    return graph
