"""GPT-2: learned positions, LayerNorm, biases everywhere.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import multiply, power, value


def gpt2(
    *,
    vocab_size: Any = 50257,
    max_length: Any = 1024,
    dim: Any,
    num_layers: Any,
    num_heads: Any,
    hidden_dim: Any = None,
    dropout_rate: Any = 0.1,
    stddev: Any = 0.02,
    epsilon: Any = 1e-5,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a GPT-2.

    Args:
      vocab_size: Tokens of the vocabulary.
      max_length: Most tokens of a row: number of learned positions.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      num_heads: Heads, each of `dim / num_heads`.
      hidden_dim: Size of the MLP; None means four times `dim`, as a reference to it.
      dropout_rate: Rate for embeddings, attention weights and both parts of each block; None means
        no dropout.
      stddev: Standard deviation of initial kernels and tables; maps into the residual stream start
        smaller by `sqrt(2 num_layers)`.
      epsilon: Epsilon of all norms.
      pad_to_multiple: Rows of the embedding table are a multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    dim, num_layers = value(dim, name="dim"), value(num_layers, name="num_layers")
    stddev = value(stddev, name="stddev")
    rate = None if dropout_rate is None else value(dropout_rate, name="dropout_rate")
    initial = fdl.Config(layers.Normal, stddev=stddev)
    # Each block adds to the residual stream twice. Kernels of these maps start smaller by the root
    # of the number of such maps, so that the variance of their sum does not grow with depth.
    smaller = multiply(stddev, power(multiply(2, num_layers), -0.5))
    bias = fdl.Config(layers.Zeros)
    inward = fdl.Partial(layers.Linear, kernel=initial, bias=bias)
    outward = fdl.Partial(
        layers.Linear, kernel=fdl.Config(layers.Normal, stddev=smaller), bias=bias
    )
    norm = fdl.Partial(layers.LayerNorm, epsilon=epsilon)
    dropout = None if rate is None else fdl.Partial(layers.Dropout, rate=rate)
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
                projection=inward,
                output=outward,
                core=fdl.Config(layers.AutoAttention, dropout=rate),
            ),
            mlp=fdl.Partial(
                layers.Mlp,
                hidden_dim=multiply(dim, 4) if hidden_dim is None else hidden_dim,
                activation=jax.nn.gelu,  # by default JAX's approximation by a tanh, as GPT-2 has it
                up=inward,
                down=outward,
            ),
            norm=norm,
            dropout=dropout,
        ),
        norm=norm,
        embedding=fdl.Partial(
            layers.Embedding,
            table=initial,
            position=fdl.Partial(layers.LearnedPositions, max_length=max_length, table=initial),
            dropout=dropout,
            pad_to_multiple=pad_to_multiple,
        ),
        unembedding=fdl.Partial(layers.TiedUnembedding),
    )


def gpt2_small() -> fdl.Partial[models.Decoder]:
    """Return GPT-2 of 124 million parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.gpt2_small())
      >>> planner.count_parameters(parameters).total
      124439808
    """
    return gpt2(dim=768, num_layers=12, num_heads=12)


def gpt2_medium() -> fdl.Partial[models.Decoder]:
    """Return GPT-2 of 355 million parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return gpt2(dim=1024, num_layers=24, num_heads=16)


def gpt2_large() -> fdl.Partial[models.Decoder]:
    """Return GPT-2 of 774 million parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return gpt2(dim=1280, num_layers=36, num_heads=20)


def gpt2_xl() -> fdl.Partial[models.Decoder]:
    """Return GPT-2 of 1.56 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return gpt2(dim=1600, num_layers=48, num_heads=25)
