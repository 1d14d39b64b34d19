"""The decoders of Pax: base model A of its C4 experiments, and its GPT-3.

Paxml 1.4.0, `tasks/lm/params/c4.py`, with the layers of Praxis 1.4.0; Brown et al. 2020,
arXiv 2005.14165, table 2.1.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import add, multiply, power, true_divide, value

# Pax scales its uniform kernels by 1.000001; ours take the scale of the variance.
_XAVIER = 1.000001**2


def pax(
    *,
    vocab_size: Any = 32_128,
    dim: Any = 2048,
    num_layers: Any = 24,
    num_heads: Any = 32,
    head_dim: Any = 64,
    hidden_dim: Any = None,
    attention_cap: Any = 50.0,
    logits_cap: Any = 30.0,
    epsilon: Any = 1e-6,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of Pax's base decoder A (`C4SpmdAdam`).

    Scores and logits are capped, each dimension of the queries has a scale, positions are
    sinusoids, and the tied embedding is scaled by `sqrt(dim)`.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      num_heads: Heads.
      head_dim: Size of a head.
      hidden_dim: Size of the MLP; None means four times `dim`, as a reference to it.
      attention_cap: Cap of attention scores.
      logits_cap: Cap of the logits.
      epsilon: Epsilon of all norms.
      pad_to_multiple: Rows of the embedding table are a multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    dim = value(dim, name="dim")
    heads, head_dim = value(num_heads, name="num_heads"), value(head_dim, name="head_dim")
    # Pax reads a kernel [D, N, H] as fan in N D and fan out H D, three times that for the one
    # kernel that holds queries, keys and values: smaller than Glorot's limit.
    spread = true_divide(6 * _XAVIER, multiply(dim, add(heads, head_dim)))
    qkv = fdl.Config(layers.Uniform, limit=power(true_divide(spread, 3), 0.5))
    post = fdl.Config(layers.Uniform, limit=power(spread, 0.5))
    biased = fdl.Partial(
        layers.Linear,
        kernel=fdl.Config(layers.FanAverage, scale=_XAVIER),
        bias=fdl.Config(layers.Zeros),
    )
    norm = _norm(epsilon)
    return fdl.Partial(
        models.Decoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention,
                num_heads=heads,
                head_dim=head_dim,
                projection=fdl.Partial(layers.Linear, kernel=qkv),
                output=fdl.Partial(layers.Linear, kernel=post),
                core=fdl.Config(layers.AutoAttention, cap=attention_cap),
                query_key=fdl.Partial(layers.QueryScale),
            ),
            mlp=_mlp(dim, hidden_dim, biased),
            norm=norm,
        ),
        norm=norm,
        embedding=fdl.Partial(
            layers.Embedding,
            table=fdl.Config(layers.FanIn),
            position=fdl.Partial(layers.Sinusoids, min_timescale=1.0, max_timescale=10_000.0),
            pad_to_multiple=pad_to_multiple,
            scale=power(dim, 0.5),
        ),
        unembedding=fdl.Partial(
            layers.TiedUnembedding, cap=logits_cap, bias=fdl.Config(layers.Zeros)
        ),
    )


def pax_gpt3(
    *,
    vocab_size: Any = 50_257,
    max_length: Any = 16_384,
    dim: Any = 12_288,
    num_layers: Any = 96,
    num_heads: Any = 96,
    head_dim: Any = 128,
    hidden_dim: Any = None,
    stddev: Any = 0.006,
    epsilon: Any = 1e-5,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of Pax's GPT-3 (`C4SpmdGpt3AdamOrgHP`): learned positions, no caps.

    Args:
      vocab_size: Tokens of the vocabulary.
      max_length: Number of learned positions; its rows have 2,048 tokens.
      dim: Size of the residual stream.
      num_layers: Number of blocks.
      num_heads: Heads.
      head_dim: Size of a head.
      hidden_dim: Size of the MLP; None means four times `dim`, as a reference to it.
      stddev: Standard deviation of all initial kernels and tables.
      epsilon: Epsilon of all norms.
      pad_to_multiple: Rows of the embedding table are a multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    # All kernels and tables have one deviation: maps into the residual stream do not start smaller,
    # as those of GPT-2 do.
    dim = value(dim, name="dim")
    initial = fdl.Config(layers.Normal, stddev=stddev)
    biased = fdl.Partial(layers.Linear, kernel=initial, bias=fdl.Config(layers.Zeros))
    norm = _norm(epsilon)
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
                head_dim=head_dim,
                projection=biased,
                output=biased,
                core=fdl.Config(layers.AutoAttention),
            ),
            mlp=_mlp(dim, hidden_dim, biased),
            norm=norm,
        ),
        norm=norm,
        embedding=fdl.Partial(
            layers.Embedding,
            table=initial,
            position=fdl.Partial(layers.LearnedPositions, max_length=max_length, table=initial),
            pad_to_multiple=pad_to_multiple,
        ),
        unembedding=fdl.Partial(layers.TiedUnembedding),
    )


def pax_1b() -> fdl.Partial[models.Decoder]:
    """Return `C4Spmd1BAdam4Replicas`, of 1.10 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> parameters = planner.model_parameters(decoders.pax_1b())
      >>> planner.count_parameters(parameters).total
      1104619904
    """
    return pax(vocab_size=32_000, dim=2560, num_layers=13, num_heads=20, head_dim=128)


def pax_2b() -> fdl.Partial[models.Decoder]:
    """Return `C4Spmd2BAdam4Replicas`, of 2.14 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return pax(vocab_size=32_000, dim=3072, num_layers=18, num_heads=24, head_dim=128)


def pax_16b() -> fdl.Partial[models.Decoder]:
    """Return `C4Spmd16BAdam32Replicas`, of 16.5 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return pax(vocab_size=32_000, dim=6144, num_layers=36, num_heads=48, head_dim=128)


def pax_32b() -> fdl.Partial[models.Decoder]:
    """Return `C4Spmd32BAdam64Replicas`, of 32.5 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return pax(vocab_size=32_000, dim=8192, num_layers=40, num_heads=64, head_dim=128)


def pax_gpt3_175b() -> fdl.Partial[models.Decoder]:
    """Return `C4SpmdGpt3AdamOrgHP`, of 175 billion parameters.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.
    """
    return pax_gpt3()


def _norm(epsilon: Any) -> fdl.Partial[layers.LayerNorm]:
    # Praxis stores the scale as its difference from 1.
    return fdl.Partial(
        layers.LayerNorm, epsilon=epsilon, scale=fdl.Config(layers.Zeros), offset=1.0
    )


def _mlp(dim: fdl.Config, hidden_dim: Any, linear: fdl.Partial) -> fdl.Partial[layers.Mlp]:
    return fdl.Partial(
        layers.Mlp,
        hidden_dim=multiply(dim, 4) if hidden_dim is None else hidden_dim,
        activation=jax.nn.gelu,
        up=linear,
        down=linear,
    )
