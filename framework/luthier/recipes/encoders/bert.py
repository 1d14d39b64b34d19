"""BERT: encoders of text that are trained to restore masked tokens."""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import graph, layers, models


def bert(
    *,
    vocab_size: int = 30_522,
    dim: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    max_length: int = 512,
    num_types: int = 2,
    dropout: float = 0.1,
) -> fdl.Partial[models.Encoder]:
    """Return a BERT of any size, with its head for masked tokens and its pooler.

    Args:
      vocab_size: Number of tokens.
      dim: Size of the embedding.
      num_layers: Number of layers.
      num_heads: Attention heads of each layer.
      hidden_dim: Hidden size of the feed-forward parts.
      max_length: Number of learned positions.
      num_types: Number of token types.
      dropout: Rate of every dropout, that of attention weights among them.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.

    Source: Devlin et al. 2018, arXiv 1810.04805, section 3 and appendix A.2.
    """
    # Norms come after the residual sum, as in the first transformer, also after the embedding. GELU
    # is the exact one. All dropouts share one rate, so one override changes all of them.
    rate = graph.value(dropout, name="dropout")
    normal = fdl.Config(layers.TruncatedNormal, stddev=0.02)
    linear = fdl.Partial(layers.Linear, kernel=normal, bias=fdl.Config(layers.Zeros))
    norm = fdl.Partial(layers.LayerNorm, epsilon=1e-12)
    drop = fdl.Partial(layers.Dropout, rate=rate)
    gelu = fdl.Partial(jax.nn.gelu, approximate=False)
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
                layers.Mlp, hidden_dim=hidden_dim, activation=gelu, up=linear, down=linear
            ),
            norm=norm,
            dropout=drop,
        ),
        embedding=fdl.Partial(
            layers.TypedEmbedding,
            norm=norm,
            tokens=tokens,
            num_types=num_types,
            types=normal,
            dropout=drop,
        ),
        head=fdl.Partial(layers.MaskedHead, norm=norm, activation=gelu, transform=linear),
        pooler=fdl.Partial(layers.Pooler, transform=linear),
    )


def bert_base() -> fdl.Partial[models.Encoder]:
    """Return BERT base: 110 million parameters.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import encoders
      >>> parameters = planner.model_parameters(encoders.bert_base())
      >>> planner.count_parameters(parameters).total
      110104890
    """
    return bert(dim=768, num_layers=12, num_heads=12, hidden_dim=3072)


def bert_large() -> fdl.Partial[models.Encoder]:
    """Return BERT large: 340 million parameters.

    Returns:
      A template of `models.Encoder`, for `model` of an experiment.
    """
    return bert(dim=1024, num_layers=24, num_heads=16, hidden_dim=4096)
