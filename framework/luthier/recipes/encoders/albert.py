"""ALBERT: encoders whose layers share one set of parameters, with a factorized embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import jax

from luthier import graph, layers, models


def albert(
    *,
    vocab_size: int = 30_000,
    embed_dim: int = 128,
    dim: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    activation: Callable[..., Any] = jax.nn.gelu,
    num_groups: int = 1,
    max_length: int = 512,
    num_types: int = 2,
    dropout: float = 0.0,
) -> fdl.Partial[models.Encoder]:
    """Return an ALBERT of any size, with its head for masked tokens and its pooler.

    Args:
      vocab_size: Number of tokens.
      embed_dim: Size of the vectors of tokens, which are then mapped to `dim`.
      dim: Size of the model.
      num_layers: Number of layers.
      num_heads: Attention heads of each layer.
      hidden_dim: Hidden size of the feed-forward parts.
      activation: Nonlinearity of the feed-forward parts and the head; `jax.nn.gelu` is the
        approximation by a tanh.
      num_groups: Sets of parameters that the layers share.
      max_length: Number of learned positions.
      num_types: Number of token types.
      dropout: Rate of every dropout; the second version of the weights was trained without.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.

    Source: Lan et al. 2019, arXiv 1909.11942, section 3.1 and table 1.
    """
    # A BERT with two changes: all layers of a group share one set of parameters (`stack`), and
    # tokens have small vectors, which one projection maps to the size of the model. `hidden_dim`
    # and depth so cost compute, but few parameters.
    rate = graph.value(dropout, name="dropout")
    normal = fdl.Config(layers.TruncatedNormal, stddev=0.02)
    linear = fdl.Partial(layers.Linear, kernel=normal, bias=fdl.Config(layers.Zeros))
    norm = fdl.Partial(layers.LayerNorm, epsilon=1e-12)
    drop = fdl.Partial(layers.Dropout, rate=rate)
    tokens = fdl.Partial(
        layers.Embedding,
        table=normal,
        position=fdl.Partial(layers.LearnedPositions, max_length=max_length, table=normal),
    )
    core = fdl.Config(layers.AutoAttention, mask=fdl.Config(layers.SameDocument), dropout=rate)
    return fdl.Partial(
        models.Encoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        block=fdl.Partial(
            layers.PostNormBlock,
            attention=fdl.Partial(
                layers.Attention, num_heads=num_heads, projection=linear, output=linear, core=core
            ),
            mlp=fdl.Partial(
                layers.Mlp, hidden_dim=hidden_dim, activation=activation, up=linear, down=linear
            ),
            norm=norm,
            dropout=drop,
        ),
        embedding=fdl.Partial(
            layers.FactorizedEmbedding,
            embed_dim=embed_dim,
            embedding=fdl.Partial(
                layers.TypedEmbedding,
                norm=norm,
                tokens=tokens,
                num_types=num_types,
                types=normal,
                dropout=drop,
            ),
            projection=linear,
        ),
        head=fdl.Partial(layers.MaskedHead, norm=norm, activation=activation, transform=linear),
        pooler=fdl.Partial(layers.Pooler, transform=linear),
        stack=fdl.Config(layers.Shared, num_groups=num_groups),
    )


def albert_base() -> fdl.Partial[models.Encoder]:
    """Return ALBERT base: 12 million parameters.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import encoders
      >>> parameters = planner.model_parameters(encoders.albert_base())
      >>> planner.count_parameters(parameters).total
      11812272
    """
    return albert(dim=768, num_layers=12, num_heads=12, hidden_dim=3072)


def albert_large() -> fdl.Partial[models.Encoder]:
    """Return ALBERT large: 18 million parameters.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.
    """
    return albert(dim=1024, num_layers=24, num_heads=16, hidden_dim=4096)


def albert_xlarge() -> fdl.Partial[models.Encoder]:
    """Return ALBERT xlarge: 60 million parameters.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.
    """
    return albert(dim=2048, num_layers=24, num_heads=16, hidden_dim=8192)


def albert_xxlarge() -> fdl.Partial[models.Encoder]:
    """Return ALBERT xxlarge: 235 million parameters (223 by count).

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.
    """
    return albert(dim=4096, num_layers=12, num_heads=64, hidden_dim=16_384)
