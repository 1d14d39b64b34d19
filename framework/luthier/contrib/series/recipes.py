"""Patch transformers in their published sizes, as templates of a model."""

from __future__ import annotations

import fiddle as fdl
import jax

from luthier import layers
from luthier.contrib.series.patch_transformer import PatchTransformer


def patch_transformer(
    length: int,
    horizon: int,
    *,
    dim: int,
    num_heads: int,
    hidden_dim: int,
    dropout: float,
    num_layers: int = 3,
) -> fdl.Partial[PatchTransformer]:
    """Return a transformer over patches of 16 steps, every 8 steps.

    Args:
      length: Steps that it sees.
      horizon: Steps that it forecasts.
      dim: Size of a patch's vector.
      num_heads: Heads of the attention.
      hidden_dim: Size of the feed-forward part.
      dropout: Rate of the dropout after each part of a layer.
      num_layers: Number of layers.

    Source: Nie et al. 2022, arXiv:2211.14730, section 3.1 and appendix A.1.4.
    Deviation: LayerNorm takes the place of batch normalization, and scores are not handed on.
    """
    # One `linear` node in all places of a layer: a shared value, so that an override of it changes
    # all projections. Post-norm, learned positions and GELU are the paper's; `SameDocument` in
    # place of a causal mask, as patches may look at each other in both directions.
    linear = fdl.Partial(layers.Linear, bias=fdl.Config(layers.Zeros))
    return fdl.Partial(
        PatchTransformer,
        length=length,
        horizon=horizon,
        dim=dim,
        num_layers=num_layers,
        patch_length=16,
        stride=8,
        block=fdl.Partial(
            layers.PostNormBlock,
            attention=fdl.Partial(
                layers.Attention,
                num_heads=num_heads,
                projection=linear,
                output=linear,
                core=fdl.Config(layers.AutoAttention, mask=fdl.Config(layers.SameDocument)),
            ),
            mlp=fdl.Partial(
                layers.Mlp, hidden_dim=hidden_dim, activation=jax.nn.gelu, up=linear, down=linear
            ),
            norm=fdl.Partial(layers.LayerNorm),
            dropout=fdl.Partial(layers.Dropout, rate=dropout),
        ),
    )


def patch_tst_42(horizon: int = 96) -> fdl.Partial[PatchTransformer]:
    """Return PatchTST/42 as for large sets: 336 steps in 42 patches, dim 128; `horizon` steps.

    Args:
      horizon: Number of future steps to predict.

    Returns:
      A template of `PatchTransformer`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.contrib import series
      >>> parameters = planner.model_parameters(series.patch_tst_42())
      >>> planner.count_parameters(parameters).total
      921184
    """
    return patch_transformer(336, horizon, dim=128, num_heads=16, hidden_dim=256, dropout=0.2)


def patch_tst_64(horizon: int = 96) -> fdl.Partial[PatchTransformer]:
    """Return PatchTST/64 as for large sets: 512 steps in 64 patches, dim 128; `horizon` steps.

    Args:
      horizon: Number of future steps to predict.

    Returns:
      A template of `PatchTransformer`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.contrib import series
      >>> parameters = planner.model_parameters(series.patch_tst_64())
      >>> planner.count_parameters(parameters).total
      1194336
    """
    return patch_transformer(512, horizon, dim=128, num_heads=16, hidden_dim=256, dropout=0.2)


def patch_tst_small(horizon: int = 96) -> fdl.Partial[PatchTransformer]:
    """Return PatchTST/42 as for small sets: dim 16, 4 heads, 128 hidden; `horizon` steps.

    Args:
      horizon: Number of future steps to predict.

    Returns:
      A template of `PatchTransformer`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.contrib import series
      >>> parameters = planner.model_parameters(series.patch_tst_small())
      >>> planner.count_parameters(parameters).total
      81728
    """
    return patch_transformer(336, horizon, dim=16, num_heads=4, hidden_dim=128, dropout=0.3)
