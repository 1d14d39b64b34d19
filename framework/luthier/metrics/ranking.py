"""Top-k accuracy. Shapes: ... any dimensions, K classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def top_k_correct(logits: jax.Array, targets: jax.Array, k: int) -> jax.Array:
    """Return 1 where the target is among the k largest logits.

    Of equal logits the first ones count as larger, so that k classes are right and no more.

    Args:
      logits: Scores of the classes [..., K].
      targets: Class ids, integers [...].
      k: Number of guesses.

    Returns:
      Float32 [...].

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import metrics
      >>> logits = jnp.array([[0.1, 0.3, 0.2]])
      >>> print(metrics.top_k_correct(logits, jnp.array([2]), k=1))
      [0.]
      >>> print(metrics.top_k_correct(logits, jnp.array([2]), k=2))
      [1.]

    Source: Russakovsky et al. 2014, arXiv:1409.0575, section 4.1 (with k = 5).
    """
    # Count the classes ahead of the target, instead of a `top_k`: one pass over the classes, and
    # ties are decided by the number of the class, as in argmax, on every backend.
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)
    is_first = jnp.arange(logits.shape[-1]) < targets[..., None]
    ahead = (logits > target_logits) | ((logits == target_logits) & is_first)
    # A logit that is not a number beats nothing and must not count as right.
    right = (ahead.sum(-1) < k) & ~jnp.isnan(target_logits[..., 0])
    return right.astype(jnp.float32)
