"""Metrics of tasks that predict tokens. Shapes: B batch rows, L length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from luthier.losses import TokenLosses
from luthier.metrics import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
    Ratio,
)


def weighted_sum(values: jax.Array, weights: Any) -> jax.Array:
    """Return the sum of values times weights.

    What has weight 0 counts nothing, even where it is not finite.

    Args:
      values: Any array.
      weights: Of the same shape.
    """
    return jnp.sum(jnp.where(weights != 0, values * weights, 0))


def token_ratios(losses: TokenLosses, weights_BL: Any) -> dict[Metric, Ratio]:
    """Return loss, nats per token, perplexity and accuracy.

    Args:
      losses: The cost of every token.
      weights_BL: Weights of the tokens, float32 [B, L].
    """
    tokens = jnp.sum(weights_BL)
    nats = weighted_sum(losses.nats_BL, weights_BL)
    return {
        LOSS: Ratio(weighted_sum(losses.loss_BL, weights_BL), tokens),
        NATS_PER_TOKEN: Ratio(nats, tokens),
        PERPLEXITY: Ratio(nats, tokens),
        ACCURACY: Ratio(weighted_sum(losses.correct_BL, weights_BL), tokens),
    }


def byte_ratios(nats: jax.Array, target_bytes_BL: Any, weights_BL: Any) -> dict[Metric, Ratio]:
    """Return nats and bits per byte.

    Args:
      nats: The sum of the nats of all counted tokens, a scalar.
      target_bytes_BL: Bytes that each target stands for, int32 [B, L].
      weights_BL: Weights of the tokens, float32 [B, L].
    """
    ratio = Ratio(nats, weighted_sum(target_bytes_BL, weights_BL))
    return {NATS_PER_BYTE: ratio, BITS_PER_BYTE: ratio}
