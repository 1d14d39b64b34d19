"""Auxiliary losses of mixtures of experts: load balance, and the z-loss of the router.

Shapes: N layers with experts, E experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def load_balance(
    choices_NE: jax.Array, probabilities_NE: jax.Array, tokens_N: jax.Array
) -> jax.Array:
    r"""Return the load-balance loss of each layer, 1 where all experts get the same.

    $$ E \sum_e f_e P_e $$

    with the share $f_e$ of choices that fell on an expert, and the mean $P_e$ of its probability.
    The derivative passes through $P$ alone. Both are of the whole batch: shares of parts of a batch
    do not add up. Given the choices of the whole batch, the loss is a sum over tokens.

    Args:
      choices_NE: Number of choices of each expert, in the whole batch.
      probabilities_NE: Sums of the router's probabilities over tokens, of the batch or a part.
      tokens_N: Number of tokens in the whole batch.

    Returns:
      [N]; 0 for a layer without tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> choices_NE = jnp.array([[2.0, 2.0], [4.0, 0.0]])  # two layers, two experts
      >>> probabilities_NE = jnp.array([[2.0, 2.0], [3.0, 1.0]])
      >>> print(losses.load_balance(choices_NE, probabilities_NE, jnp.array([4.0, 4.0])))
      [1.  1.5]

    Source: Fedus et al. 2021, arXiv:2101.03961, equations 4 to 6; Lepikhin et al. 2020,
      arXiv:2006.16668, algorithm 1, line 13.

    Deviation: Every choice of a token counts, of k choices 1 / k.
    """
    # f is a count, piecewise constant, so `stop_gradient` changes no derivative of it; it makes the
    # product of a constant and P explicit. P is divided by the tokens of the whole batch even if
    # the sums are those of a part: the losses of all parts then add up to that of the batch.
    total_N1 = jnp.sum(choices_NE, -1, keepdims=True)
    share_NE = jax.lax.stop_gradient(choices_NE / jnp.where(total_N1 > 0, total_N1, 1))
    mean_NE = probabilities_NE / _safe(tokens_N)[:, None]
    return choices_NE.shape[-1] * jnp.sum(share_NE * mean_NE, -1)


def router_z(squared_log_z_N: jax.Array, tokens_N: jax.Array) -> jax.Array:
    r"""Return the router's z-loss of each layer, the mean over tokens of $(\log Z)^2$.

    Args:
      squared_log_z_N: Sums over tokens, of the batch or a part.
      tokens_N: Number of tokens in the whole batch.

    Returns:
      [N]; 0 for a layer without tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.router_z(jnp.array([8.0]), jnp.array([4.0])))
      [2.]

    Source: Zoph et al. 2022, arXiv:2202.08906, equation 5.
    """
    return squared_log_z_N / _safe(tokens_N)


def _safe(count: jax.Array) -> jax.Array:
    # Select the divisor, not the quotient: the gradient of an unselected x / 0 is still NaN.
    return jnp.where(count > 0, count, 1)
