"""Grok 1, as Pax builds it: rotary positions, grouped queries, a mixture in every layer.

xAI 2024, Open release of Grok-1, for the sizes; praxis, `layers/grok.py`.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import value
from luthier.recipes.decoders.glam import gshard_experts, gshard_linear


def grok(
    *,
    vocab_size: Any = 131_072,
    dim: Any = 6144,
    num_layers: Any = 64,
    num_heads: Any = 48,
    num_kv_heads: Any = 8,
    head_dim: Any = 128,
    hidden_dim: Any = 32_768,
    num_experts: Any = 8,
    k: Any = 2,
    capacity: Any = 1.0,
    rotary_base: Any = 10_000.0,
    stddev: Any = 0.023,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a Grok; train it with `tasks.Routed`.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      num_heads: Query heads.
      num_kv_heads: Key and value heads.
      head_dim: Size of a head.
      hidden_dim: Size of an expert.
      num_experts: Experts of a layer.
      k: Experts of a token.
      capacity: Places of the experts for each choice, see `layers.Capacity`.
      rotary_base: Base of the rotary frequencies.
      stddev: Standard deviation of the attention's initial kernels.
      pad_to_multiple: Rows of the embedding table are a multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Deviation: xAI's own caps scores at 30, normalizes after each part too, scales the embedding and
      the logits by other constants, drops no choices, and has no biases in the attention.
    """
    # Pax's sizes and GShard's mixture; experts start as GShard's do, attention by a fixed
    # deviation. `dim` and `hidden_dim` are shared values, because initial kernels are computed from
    # them.
    dim, hidden_dim = value(dim, name="dim"), value(hidden_dim, name="hidden_dim")
    linear = fdl.Partial(
        layers.Linear,
        kernel=fdl.Config(layers.Normal, stddev=stddev),
        bias=fdl.Config(layers.Zeros),
    )
    norm = fdl.Partial(layers.RMSNorm, epsilon=1e-6)
    up = gshard_linear(dim)
    expert = fdl.Partial(
        layers.GatedMlp,
        hidden_dim=hidden_dim,
        activation=jax.nn.gelu,
        gate=up,
        up=up,
        down=gshard_linear(hidden_dim),
    )
    return fdl.Partial(
        models.Decoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                projection=linear,
                output=linear,
                rotary=fdl.Config(layers.Rotary, base=rotary_base),
                core=fdl.Config(layers.AutoAttention),
            ),
            mlp=gshard_experts(expert, num_experts=num_experts, k=k, capacity=capacity),
            norm=norm,
        ),
        norm=norm,
        embedding=fdl.Partial(
            layers.Embedding,
            table=fdl.Config(layers.Normal, stddev=1.0),
            pad_to_multiple=pad_to_multiple,
        ),
        unembedding=fdl.Partial(layers.ScaledTiedUnembedding),
    )


def grok_1() -> fdl.Partial[models.Decoder]:
    """Return the sizes of Grok 1: 314 billion parameters by name, 315.7 by count.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> planner.count_parameters(planner.model_parameters(decoders.grok_1())).total
      315684952064
    """
    return grok()
