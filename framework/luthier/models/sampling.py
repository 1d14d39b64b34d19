"""Sampling of the next token from its logits.

Shapes: B rows, V vocab.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def restrict(logits_BV: jax.Array, top_k: Any = None, top_p: Any = None) -> jax.Array:
    """Exclude all but the likeliest tokens.

    Args:
      logits_BV: float32 [B, V].
      top_k: Keep the k likeliest tokens (all of equal logits at the edge); None keeps all.
      top_p: Of these, keep the smallest set of likeliest tokens whose probability is at least p;
        None keeps all. The likeliest is always kept.

    Returns:
      The logits [B, V], -inf for excluded tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import models
      >>> print(models.restrict(jnp.array([[1.0, 3.0, 2.0]]), top_k=2))
      [[-inf   3.   2.]]

    Source: Fan, Lewis and Dauphin 2018, arXiv 1805.04833, section 5.1 (top-k); Holtzman et al.
      2020, arXiv 1904.09751, equation 2 (top-p).
    """
    # Both cuts are turned into an edge, the smallest logit that is kept, so that nothing has to be
    # sorted back. k and p are traced: k is a place in the sorted logits, not the size of a
    # `top_k`, so another k needs no other program. Only None is static.
    if top_k is None and top_p is None:
        return logits_BV
    sorted_BV = -jnp.sort(-logits_BV, axis=-1)  # descending
    if top_k is not None:
        kth = jnp.clip(jnp.asarray(top_k) - 1, 0, logits_BV.shape[-1] - 1)
        edge_B1 = jnp.take(sorted_BV, kth[None], axis=-1)
        logits_BV = jnp.where(logits_BV >= edge_B1, logits_BV, -jnp.inf)
        # The sum for top-p is over the tokens that top-k left, as documented.
        sorted_BV = jnp.where(sorted_BV >= edge_B1, sorted_BV, -jnp.inf)
    if top_p is not None:
        # A token is kept if the ones before it have less than p together: the token with which the
        # sum reaches p is the last. The first is always kept; for p = 0 nothing would be.
        weights_BV = jax.nn.softmax(sorted_BV, axis=-1)
        before_BV = jnp.cumsum(weights_BV, axis=-1) - weights_BV
        is_kept_BV = (before_BV < top_p).at[:, 0].set(True)
        edge_B1 = jnp.where(is_kept_BV, sorted_BV, jnp.inf).min(-1, keepdims=True)
        logits_BV = jnp.where(logits_BV >= edge_B1, logits_BV, -jnp.inf)
    return logits_BV


def sample(
    keys_B: jax.Array,
    logits_BV: jax.Array,
    *,
    temperature: Any = 1.0,
    top_k: Any = None,
    top_p: Any = None,
) -> jax.Array:
    """Draw one token for each row from `softmax(logits / temperature)`.

    Args:
      keys_B: One key per row, so that a row's token does not depend on the other rows.
      logits_BV: float32 [B, V].
      temperature: Divides the logits; 0 takes the likeliest token. May be traced.
      top_k: See `restrict`; applied after the temperature.
      top_p: See `restrict`; applied after the temperature.

    Returns:
      Token ids, int32 [B].

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import models
      >>> keys_B = jax.random.split(jax.random.key(0), 1)
      >>> print(models.sample(keys_B, jnp.array([[1.0, 3.0, 2.0]]), temperature=0.0))
      [1]
    """
    # Temperature may be traced, so greedy decoding is a select and not a branch; the divisor is
    # replaced first, since logits / 0 would be infinite or NaN. `categorical` draws by the Gumbel
    # trick, one uniform number for each token of the vocabulary, from the row's own key.
    greedy = jnp.asarray(temperature, jnp.float32) <= 0
    scaled_BV = logits_BV / jnp.where(greedy, 1.0, jnp.asarray(temperature, jnp.float32))
    drawn_B = jax.vmap(jax.random.categorical)(keys_B, restrict(scaled_BV, top_k, top_p))
    return jnp.where(greedy, logits_BV.argmax(-1), drawn_B).astype(jnp.int32)
