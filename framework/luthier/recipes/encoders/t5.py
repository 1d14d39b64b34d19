"""T5: encoder-decoders of text, in the first version and in version 1.1, which Flan-T5 shares."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import graph, layers, models


def t5(
    *,
    vocab_size: int = 32_128,
    dim: int,
    num_layers: int,
    num_heads: int,
    head_dim: int = 64,
    hidden_dim: int,
    num_decoder_layers: int | None = None,
    num_buckets: int = 32,
    max_distance: int = 128,
    dropout: float = 0.1,
) -> fdl.Partial[models.EncoderDecoder]:
    """Return a T5 of any size, in its first version.

    Args:
      vocab_size: Number of tokens.
      dim: Size of the embedding.
      num_layers: Layers of the encoder.
      num_heads: Attention heads of each layer.
      head_dim: Size of a head.
      hidden_dim: Hidden size of the feed-forward parts.
      num_decoder_layers: Layers of the decoder; None means as many as of the encoder.
      num_buckets: Classes of distances of the relative bias.
      max_distance: Distance from which all are of one class.
      dropout: Rate of every dropout.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.

    Source: Raffel et al. 2019, arXiv 1910.10683, sections 2.1 and 3.1.1.

    Deviation: Without the dropout inside of the feed-forward parts.
    """
    # Three things are unusual. Scores are not divided by sqrt(head_dim): that factor is in the
    # initial kernel of the queries instead (`small`). Positions are a bias of the scores, one table
    # for all layers of a stack, so it belongs to the stack: with signed distances in the encoder,
    # and with past ones only in the decoder. The tied logits are scaled by dim**-0.5, because the
    # embedding is drawn with deviation 1.
    rate = graph.value(dropout, name="dropout")
    fan_in = fdl.Config(layers.FanIn)
    linear = fdl.Partial(layers.Linear, kernel=fan_in)
    norm = fdl.Partial(layers.RMSNorm, epsilon=1e-6)
    drop = fdl.Partial(layers.Dropout, rate=rate)
    small = fdl.Partial(layers.Linear, kernel=fdl.Config(layers.FanIn, scale=1 / head_dim))
    mlp = fdl.Partial(
        layers.Mlp, hidden_dim=hidden_dim, activation=jax.nn.relu, up=linear, down=linear
    )

    def attention(kind: Any, mask: Any) -> Any:
        core = fdl.Config(layers.AutoAttention, mask=fdl.Config(mask), scale=1.0, dropout=rate)
        projection = fdl.Partial(layers.query_and_others, query=small, others=linear)
        return fdl.Partial(
            kind,
            num_heads=num_heads,
            head_dim=head_dim,
            projection=projection,
            output=linear,
            core=core,
        )

    def bias(buckets: Any) -> Any:
        sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
        table = fdl.Config(layers.Normal, stddev=dim**-0.5)
        return fdl.Partial(
            layers.RelativeBias,
            num_heads=num_heads,
            buckets=fdl.Config(buckets, **sizes),
            table=table,
        )

    return fdl.Partial(
        models.EncoderDecoder,
        vocab_size=vocab_size,
        dim=dim,
        encoder=fdl.Partial(
            models.SourceLayers,
            num_layers=num_layers,
            block=fdl.Partial(
                layers.PreNormBlock,
                attention=attention(layers.Attention, layers.SameDocument),
                mlp=mlp,
                norm=norm,
                dropout=drop,
            ),
            norm=norm,
            bias=bias(layers.SignedBuckets),
            dropout=drop,
        ),
        decoder=fdl.Partial(
            models.TargetLayers,
            num_layers=num_layers if num_decoder_layers is None else num_decoder_layers,
            block=fdl.Partial(
                layers.PreNormCrossBlock,
                attention=attention(layers.Attention, layers.Causal),
                cross_attention=attention(layers.CrossAttention, layers.SameDocument),
                mlp=mlp,
                norm=norm,
                dropout=drop,
            ),
            norm=norm,
            bias=bias(layers.PastBuckets),
            dropout=drop,
        ),
        embedding=fdl.Partial(
            layers.Embedding, table=fdl.Config(layers.Normal, stddev=1.0), dropout=drop
        ),
        unembedding=fdl.Partial(layers.ScaledTiedUnembedding),
    )


def t5_gated(**sizes: Any) -> fdl.Partial[models.EncoderDecoder]:
    """Return a T5 of version 1.1: gated feed-forward parts, and logits by a kernel of their own.

    Args:
      **sizes: As for `t5`.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.

    Source: Shazeer 2020, arXiv 2002.05202, table 1 (GEGLU); Chung et al. 2022, arXiv 2210.11416.
    """
    model = t5(**sizes)
    for part in (model.encoder, model.decoder):
        plain = part.block.mlp
        part.block.mlp = fdl.Partial(
            layers.GatedMlp,
            hidden_dim=plain.hidden_dim,
            activation=jax.nn.gelu,
            gate=plain.up,
            up=plain.up,
            down=plain.down,
        )
    model.unembedding = fdl.Partial(layers.Unembedding)
    return model


def t5_small() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 small: 60 million parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import encoders
      >>> parameters = planner.model_parameters(encoders.t5_small())
      >>> planner.count_parameters(parameters).total
      60506624
    """
    return t5(dim=512, num_layers=6, num_heads=8, hidden_dim=2048)


def t5_base() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 base: 220 million parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5(dim=768, num_layers=12, num_heads=12, hidden_dim=3072)


def t5_large() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 large: 770 million parameters (738 by count).

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5(dim=1024, num_layers=24, num_heads=16, hidden_dim=4096)


def t5_3b() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 3B: 3 billion parameters (2.85 by count).

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5(dim=1024, num_layers=24, num_heads=32, head_dim=128, hidden_dim=16_384)


def t5_11b() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 11B: 11 billion parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5(dim=1024, num_layers=24, num_heads=128, head_dim=128, hidden_dim=65_536)


def t5_1_1_small() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 1.1 small, which is Flan-T5 small: 77 million parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5_gated(dim=512, num_layers=8, num_heads=6, hidden_dim=1024)


def t5_1_1_base() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 1.1 base, which is Flan-T5 base: 250 million parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5_gated(dim=768, num_layers=12, num_heads=12, hidden_dim=2048)


def t5_1_1_large() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 1.1 large, which is Flan-T5 large: 780 million parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5_gated(dim=1024, num_layers=24, num_heads=16, hidden_dim=2816)


def t5_1_1_xl() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 1.1 XL, which is Flan-T5 XL: 3 billion parameters (2.85 by count).

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5_gated(dim=2048, num_layers=24, num_heads=32, hidden_dim=5120)


def t5_1_1_xxl() -> fdl.Partial[models.EncoderDecoder]:
    """Return T5 1.1 XXL, which is Flan-T5 XXL: 11 billion parameters.

    Returns:
      A template of `models.EncoderDecoder`, for `model` of an experiment.
    """
    return t5_gated(dim=4096, num_layers=24, num_heads=64, hidden_dim=10_240)
