"""ViT: transformers that classify images, in the sizes of three papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import jax

from luthier import graph, layers, models


def vit(
    *,
    dim: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    image_size: Sequence[int] = (224, 224),
    patch_size: Sequence[int] = (16, 16),
    num_channels: int = 3,
    num_classes: int = 1000,
    dropout: float = 0.0,
) -> fdl.Partial[models.VisionTransformer]:
    """Return a vision transformer of any size, with a class token.

    Args:
      dim: Size of the embedding.
      num_layers: Number of layers.
      num_heads: Attention heads of each layer.
      hidden_dim: Hidden size of the feed-forward parts.
      image_size: Height and width of the images in pixels.
      patch_size: Height and width of a patch in pixels.
      num_channels: Numbers for each pixel.
      num_classes: Number of classes.
      dropout: Rate of the dropout after the embedding and after each part of a layer.

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.

    Source: Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1, table 1 and appendix B.1.
    """
    # The head starts at zero, so that the first predictions are uniform. Patches all see each
    # other: the mask only keeps examples apart.
    average = fdl.Config(layers.FanAverage)
    zeros = fdl.Config(layers.Zeros)
    linear = fdl.Partial(layers.Linear, kernel=average, bias=zeros)
    norm = fdl.Partial(layers.LayerNorm, epsilon=1e-6)
    drop = fdl.Partial(layers.Dropout, rate=graph.value(dropout, name="dropout"))
    mask = fdl.Config(layers.SameDocument)
    return fdl.Partial(
        models.VisionTransformer,
        num_classes=num_classes,
        dim=dim,
        num_layers=num_layers,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(
                layers.Attention,
                num_heads=num_heads,
                projection=linear,
                output=linear,
                core=fdl.Config(layers.AutoAttention, mask=mask),
            ),
            mlp=fdl.Partial(
                layers.Mlp,
                hidden_dim=hidden_dim,
                activation=fdl.Partial(jax.nn.gelu, approximate=False),
                up=linear,
                down=linear,
            ),
            norm=norm,
            dropout=drop,
        ),
        norm=norm,
        embedding=fdl.Partial(
            layers.PatchEmbedding,
            image_size=tuple(image_size),
            patch_size=tuple(patch_size),
            num_channels=num_channels,
            dropout=drop,
        ),
        pooling=fdl.Partial(layers.ClassToken),
        head=fdl.Partial(layers.Linear, kernel=zeros, bias=zeros),
    )


def vit_mean(**sizes: Any) -> fdl.Partial[models.VisionTransformer]:
    """Return a vision transformer that takes the mean over patches, without a class token.

    Args:
      **sizes: As for `vit`.

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.

    Source: Beyer, Zhai and Kolesnikov 2022, arXiv 2205.01580, section 2.
    """
    model = vit(**sizes)
    model.pooling = fdl.Partial(layers.MeanPool)
    return model


def vit_ti16() -> fdl.Partial[models.VisionTransformer]:
    """Return ViT-Ti/16: 5.7 million parameters (Touvron et al. 2020, arXiv 2012.12877).

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.
    """
    return vit(dim=192, num_layers=12, num_heads=3, hidden_dim=768)


def vit_s16() -> fdl.Partial[models.VisionTransformer]:
    """Return ViT-S/16: 22 million parameters (Touvron et al. 2020, arXiv 2012.12877).

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.
    """
    return vit(dim=384, num_layers=12, num_heads=6, hidden_dim=1536)


def vit_b16() -> fdl.Partial[models.VisionTransformer]:
    """Return ViT-B/16: 86 million parameters.

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import encoders
      >>> parameters = planner.model_parameters(encoders.vit_b16())
      >>> planner.count_parameters(parameters).total
      86567656
    """
    return vit(dim=768, num_layers=12, num_heads=12, hidden_dim=3072)


def vit_l16() -> fdl.Partial[models.VisionTransformer]:
    """Return ViT-L/16: 307 million parameters (304 by count).

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.
    """
    return vit(dim=1024, num_layers=24, num_heads=16, hidden_dim=4096)


def vit_h14() -> fdl.Partial[models.VisionTransformer]:
    """Return ViT-H/14: 632 million parameters.

    Returns:
      A template of `models.VisionTransformer`, for `model` of an experiment.
    """
    return vit(dim=1280, num_layers=32, num_heads=16, hidden_dim=5120, patch_size=(14, 14))
