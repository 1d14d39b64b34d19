"""Normal samples whose bits do not depend on how the array is laid out on a mesh.

XLA evaluates `log1p` inside `erf_inv` with another routine in a vector loop than in a scalar one,
and which of them it emits depends on the shape of the shard (likewise for `sqrt`). Here everything
is built of additions, multiplications and integer operations, which are the same in any loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Cephes `logf`: log(1 + f) = f - f^2 / 2 + f^3 P(f), for 1 + f between sqrt(1/2) and sqrt(2).
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_LOG_2_HIGH, _LOG_2_LOW = 0.693359375, -2.12194440e-4

# Giles, table 5: erf_inv(x) = x p(w), w = -log(1 - x^2), centre and tails.
_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAILS = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def standard_normal(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    r"""Draw from the standard normal distribution.

    $$ z = \sqrt 2 \, \mathrm{erf}^{-1}(u), \quad u \sim U(-1, 1) $$

    Args:
      key: A typed random key.
      shape: Shape of the sample.

    Returns:
      float32 of that shape, bit-identical on every mesh.
    """
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jax.random.uniform(key, tuple(shape), jnp.float32, lowest, 1.0)
    return np.float32(np.sqrt(2)) * erf_inv(uniform)


def truncated_normal(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Draw from the standard normal distribution, cut off at two standard deviations.

    Args:
      key: A typed random key.
      shape: Shape of the sample.

    Returns:
      float32 of that shape, bit-identical on every mesh.
    """
    edge = 0.9544997361036416  # erf(sqrt 2)
    uniform = jax.random.uniform(key, tuple(shape), jnp.float32, -edge, edge)
    return jnp.clip(np.float32(np.sqrt(2)) * erf_inv(uniform), -2.0, 2.0)


@jax.jit  # traced once for each shape; a model draws each of its shapes many times
def erf_inv(x: jax.Array) -> jax.Array:
    """Return the inverse error function of float32 numbers between -1 and 1, exclusive.

    Source: Giles 2012, Approximating the erfinv function, GPU Computing Gems, table 5.
    """
    w = -_log((1 - x) * (1 + x))
    centre = _polynomial(_CENTRE, w - 2.5)
    tails = _polynomial(_TAILS, _square_root(w) - 3)
    return jnp.where(w < 5, centre, tails) * x


def _log(x: jax.Array) -> jax.Array:
    """Return the logarithm of normal float32 numbers above 0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    mantissa_bits = (bits & 0x007FFFFF) | 0x3F800000
    mantissa = jax.lax.bitcast_convert_type(mantissa_bits, jnp.float32)
    exponent = (bits >> 23) - 127
    upper = mantissa > np.float32(np.sqrt(2))
    f = jnp.where(upper, mantissa * 0.5, mantissa) - 1
    e = jnp.where(upper, exponent + 1, exponent).astype(jnp.float32)
    square = f * f
    small = f * square * _polynomial(_LOG, f) + e * _LOG_2_LOW - 0.5 * square
    return f + small + e * _LOG_2_HIGH


def _square_root(x: jax.Array) -> jax.Array:
    """Return the square root of normal float32 numbers, by Newton's method on 1 / sqrt(x)."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    inverse = jax.lax.bitcast_convert_type(0x5F3759DF - (bits >> 1), jnp.float32)
    for _ in range(3):
        inverse = inverse * (1.5 - 0.5 * x * inverse * inverse)
    return x * inverse


def _polynomial(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total
