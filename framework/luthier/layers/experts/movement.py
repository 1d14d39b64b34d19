"""Moving tokens to the places of experts and back, where backward is the other way forward.

The derivative of a gather is a scatter, which is slow and, on some backends, not deterministic.
Here every place has at most one source, so the derivative is a gather along the inverse.

Shapes: T tokens, K choices of a token, M places, D dim. Choice k of token t is number `t K + k`;
`sources_M` holds such numbers, or T K for an empty place; `places_TK` holds places, or M for none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_vjp
def spread(x_TD: jax.Array, sources_M: jax.Array, places_TK: jax.Array) -> jax.Array:
    """Give each place the token that is its source.

    Args:
      x_TD: Tokens.
      sources_M: The choice that each place holds.
      places_TK: The inverse: the place of each choice.

    Returns:
      [M, D]; empty places hold zeros.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (there, a product with a mask).
    """
    return _rows(x_TD, sources_M // places_TK.shape[-1])


def _spread_forward(
    x_TD: jax.Array, sources_M: jax.Array, places_TK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return spread(x_TD, sources_M, places_TK), places_TK


def _spread_backward(places_TK: jax.Array, cotangent_MD: jax.Array) -> tuple[jax.Array, None, None]:
    return _rows(cotangent_MD, places_TK).sum(1), None, None


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def collect(y_MD: jax.Array, sources_M: jax.Array, places_TK: jax.Array) -> jax.Array:
    """Give each choice what is at its place.

    Args:
      y_MD: What the places hold.
      sources_M: As for `spread`.
      places_TK: As for `spread`.

    Returns:
      [T, K, D]; zeros for a choice without a place.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, section 2.2 (there, a product with a mask).
    """
    return _rows(y_MD, places_TK)


def _collect_forward(
    y_MD: jax.Array, sources_M: jax.Array, places_TK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return collect(y_MD, sources_M, places_TK), sources_M


def _collect_backward(
    sources_M: jax.Array, cotangent_TKD: jax.Array
) -> tuple[jax.Array, None, None]:
    flat = cotangent_TKD.reshape(-1, cotangent_TKD.shape[-1])
    return _rows(flat, sources_M), None, None


collect.defvjp(_collect_forward, _collect_backward)


def _rows(array: jax.Array, indices: jax.Array) -> jax.Array:
    """Return rows by number, zeros for a number past the end."""
    return array.at[indices].get(mode="fill", fill_value=0)


def inverse(places_TK: jax.Array, num_places: int) -> jax.Array:
    """Return `sources_M` of `places_TK`.

    Args:
      places_TK: The place of each choice, no place twice; M for none.
      num_places: M.
    """
    count = places_TK.size
    numbers = jnp.arange(count, dtype=jnp.int32)
    empty = jnp.full((num_places,), count, jnp.int32)
    return empty.at[places_TK.reshape(-1)].set(numbers, mode="drop")
