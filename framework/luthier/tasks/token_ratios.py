"""Metrics of tasks that predict tokens. Shapes: B batch rows, L length, T target length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from luthier.losses import TokenLosses
from luthier.losses.chunking import weighted_sum
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


def token_ratios(
    losses: TokenLosses, weights_BL: Any, total: jax.Array | None = None
) -> dict[Metric, Ratio]:
    """Return loss, nats per token, perplexity and accuracy.

    Args:
      losses: The cost of every token.
      weights_BL: Weights of the tokens, float32 [B, L].
      total: The weighted sum of the losses, where it is known (`weighted_cross_entropy`).

    Returns:
      A numerator and a weight for each of these metrics, scalars: sums over the batch.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses, tasks
      >>> cost = losses.cross_entropy(jnp.zeros((1, 2, 4)), jnp.zeros((1, 2), jnp.int32))
      >>> ratios = tasks.token_ratios(cost, jnp.array([[1.0, 0.0]]))
      >>> {metric.name: float(ratio.denominator) for metric, ratio in ratios.items()}
      {'loss': 1.0, 'nats_per_token': 1.0, 'perplexity': 1.0, 'accuracy': 1.0}
    """
    # Perplexity is the exponential of the mean, taken on the host by its metric; here it is the
    # same ratio as nats per token.
    tokens = jnp.sum(weights_BL)
    nats = weighted_sum(losses.nats_BL, weights_BL)
    total = weighted_sum(losses.loss_BL, weights_BL) if total is None else total
    return {
        LOSS: Ratio(total, tokens),
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

    Returns:
      A numerator (nats) and a weight (bytes) for each of these metrics, scalars.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import tasks
      >>> ratios = tasks.byte_ratios(jnp.float32(6.0), jnp.array([[3, 1]]), jnp.array([[1.0, 0.0]]))
      >>> {metric.name: float(ratio.value()) for metric, ratio in ratios.items()}
      {'nats_per_byte': 2.0, 'bits_per_byte': 2.0}
    """
    # Nats of all counted tokens over their bytes, not a mean over tokens: a tokenizer with longer
    # tokens gets no advantage. An end-of-document token costs nats and stands for no bytes.
    ratio = Ratio(nats, weighted_sum(target_bytes_BL, weights_BL))
    return {NATS_PER_BYTE: ratio, BITS_PER_BYTE: ratio}


def exact_match(correct_BT: Any, weights_BT: Any, segments_BT: Any) -> Ratio:
    """Return the number of texts of which every counted token is right, over that of all texts.

    A token is predicted from the right tokens before it; where all are right, greedy decoding would
    have written the same text, so this is the exact match of greedy decoding.

    Args:
      correct_BT: 1 where a token is right, float32 [B, T].
      weights_BT: Weights of the tokens, float32 [B, T]; a text without weight is not counted.
      segments_BT: Number of the text that a token belongs to, int32 [B, T]; tokens of a text are
        adjacent, and 0 is padding.

    Returns:
      Two scalars, float32: the number of texts that are right, and that of all texts.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import tasks
      >>> correct_BT = jnp.array([[1.0, 1.0, 0.0]])
      >>> ratio = tasks.exact_match(correct_BT, jnp.ones((1, 3)), jnp.array([[1, 1, 2]]))
      >>> print(ratio.value())
      0.5
    """
    # A row may pack several texts, so tokens and mistakes are counted per text: by running totals
    # that restart at each text, read at its last token. No loop, and no array over texts.
    counted_BT = (weights_BT != 0) & (segments_BT != 0)
    wrong_BT = counted_BT & (correct_BT == 0)
    change_B1 = jnp.ones_like(segments_BT[:, :1], dtype=bool)
    change_BT = segments_BT[:, 1:] != segments_BT[:, :-1]
    is_first_BT = jnp.concatenate([change_B1, change_BT], axis=1)
    is_last_BT = jnp.concatenate([change_BT, change_B1], axis=1)
    tokens_BT, errors_BT = (_so_far(x_BT, is_first_BT) for x_BT in (counted_BT, wrong_BT))
    is_text_BT = is_last_BT & (tokens_BT > 0)
    matches = jnp.sum(is_text_BT & (errors_BT == 0), dtype=jnp.float32)
    return Ratio(matches, jnp.sum(is_text_BT, dtype=jnp.float32))


def _so_far(flags_BT: jax.Array, is_first_BT: jax.Array) -> jax.Array:
    """Count flags from the first token of the text that a token belongs to."""
    total_BT = jnp.cumsum(flags_BT.astype(jnp.int32), axis=1)
    before_BT = total_BT - flags_BT.astype(jnp.int32)
    # Totals never fall, so the greatest one at a first token is that of the text's own.
    return total_BT - jax.lax.cummax(jnp.where(is_first_BT, before_BT, 0), axis=1)
