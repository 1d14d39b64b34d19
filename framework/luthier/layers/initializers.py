"""Initializers, with normal samples whose bits do not depend on how the array is sharded.

`jax.random.normal` is not used: with jax 0.12 on the CPU, XLA evaluates the `log1p` inside of
`erf_inv` by one routine in a vector loop and by another in a scalar one, and which of them it emits
depends on the shape of the shard (likewise for `sqrt`), so that the last bits of a parameter would
depend on the mesh. Here everything is built of additions, multiplications and integer operations,
which are the same in any loop.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

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

    Example:
      >>> import jax
      >>> from luthier import layers
      >>> layers.standard_normal(jax.random.key(0), (2, 3)).shape
      (2, 3)
    """
    # The interval is closed below: at -1 itself the result would be -inf, so it starts one float
    # later, as in `jax.random.normal`.
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

    Example:
      >>> import jax
      >>> from luthier import layers
      >>> sample = layers.truncated_normal(jax.random.key(0), (1000,))
      >>> bool(abs(sample).max() <= 2)
      True
    """
    # By inversion: u uniform in +-erf(2 / sqrt 2) gives z in +-2. Rounding may carry a sample just
    # beyond the edge, hence the clip.
    edge = 0.9544997361036416  # erf(sqrt 2)
    uniform = jax.random.uniform(key, tuple(shape), jnp.float32, -edge, edge)
    return jnp.clip(np.float32(np.sqrt(2)) * erf_inv(uniform), -2.0, 2.0)


@jax.jit  # traced once for each shape; a model draws each of its shapes many times
def erf_inv(x: jax.Array) -> jax.Array:
    """Return the inverse error function of float32 numbers between -1 and 1, exclusive.

    Source: Giles 2012, Approximating the erfinv function, GPU Computing Gems, table 5.
    """
    # (1 - x) (1 + x) and not 1 - x^2: near one, 1 - x is exact, while x^2 has been rounded before
    # it is subtracted, and w is largest just there. Both polynomials are computed everywhere and
    # one is selected, so that the loop has no branch.
    w = -_log((1 - x) * (1 + x))
    centre = _polynomial(_CENTRE, w - 2.5)
    tails = _polynomial(_TAILS, _square_root(w) - 3)
    return jnp.where(w < 5, centre, tails) * x


def _log(x: jax.Array) -> jax.Array:
    """Return the logarithm of normal float32 numbers above 0."""
    # x = m 2^e, with m in [1, 2) and e read off the bits; then m is brought to [sqrt(1/2), sqrt(2))
    # so that f = m - 1 is small on both sides. log x = log(1 + f) + e log 2, with log 2 in two
    # parts: e times the high part is exact, and the low part corrects it (Cody and Waite). The
    # sums run from small to large terms.
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
    # The well-known first guess from halving the exponent, within 3.5 %; each Newton iteration
    # y <- y (3 - x y^2) / 2 doubles the number of right digits, so three reach float32.
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    inverse = jax.lax.bitcast_convert_type(0x5F3759DF - (bits >> 1), jnp.float32)
    for _ in range(3):
        inverse = inverse * (1.5 - 0.5 * x * inverse * inverse)
    return x * inverse


def _polynomial(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    # Horner's rule, highest power first.
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


# Initializers as values: small callables that a config can hold, show and change.
#
# Every one is called as `initializer(key, shape, dtype)`, like those of `jax.nn.initializers`,
# which fit here too. Kernels of any rank are initialized as the matrix `(fan in, fan out)`.
# Standard deviations may be traced.

DType = Any

# The standard deviation of a standard normal cut off at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


class Initializer(Protocol):
    """Makes the first value of a parameter."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return an array of the shape and type, drawn with the key.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """


def describe(initializer: Any) -> str:
    """Return an initializer as source text, `Normal(stddev=0.02)`; traced settings as `...`.

    Args:
      initializer: An initializer of ours, or any function.

    Returns:
      The text; it is recorded as the `initializer` of a parameter.

    Example:
      >>> import jax
      >>> from luthier import layers
      >>> layers.describe(layers.Normal(stddev=0.02))
      'Normal(stddev=0.02)'
      >>> layers.describe(jax.nn.initializers.lecun_normal())
      'variance_scaling'
    """
    if isinstance(initializer, functools.partial):
        given = initializer.keywords.items()
        name = describe(initializer.func)
    elif dataclasses.is_dataclass(initializer):
        fields = [field.name for field in dataclasses.fields(initializer)]
        given = {name: getattr(initializer, name) for name in fields}.items()
        name = type(initializer).__name__
    else:  # what jax.nn.initializers makes is a function inside of the one that people call
        own = getattr(initializer, "__qualname__", type(initializer).__name__)
        return own.partition(".<locals>")[0]
    return f"{name}({', '.join(f'{key}={_setting(value)}' for key, value in given)})"


def _setting(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return describe(value) if dataclasses.is_dataclass(value) and callable(value) else "..."


def _normal(key: jax.Array, shape: Sequence[int], stddev: Any, dtype: DType) -> jax.Array:
    # Drawn and scaled in float32, then cast: a model in bfloat16 starts from the rounded values of
    # the same model in float32.
    return (standard_normal(key, shape) * stddev).astype(dtype)


def _uniform(key: jax.Array, shape: Sequence[int], limit: Any, dtype: DType) -> jax.Array:
    unit = jax.random.uniform(key, tuple(shape), jnp.float32, -1.0, 1.0)
    return (unit * limit).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Zeros:
    """All zeros.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.Zeros()(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)
    """

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return zeros.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        return jnp.zeros(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class Ones:
    """All ones.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.Ones()(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)
    """

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return ones.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        return jnp.ones(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class Normal:
    """Normal with mean zero.

    Args:
      stddev: Standard deviation.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.Normal(stddev=0.02)(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)
    """

    RANGES: ClassVar[dict[str, str]] = {"stddev": "0 <= x"}
    stddev: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a normal sample.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        return _normal(key, shape, self.stddev, dtype)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """Normal with mean zero, cut off at two standard deviations.

    Args:
      stddev: Standard deviation of the result, after truncation.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.TruncatedNormal(stddev=0.02)(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)
    """

    RANGES: ClassVar[dict[str, str]] = {"stddev": "0 <= x"}
    stddev: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a truncated normal sample.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        unit = truncated_normal(key, shape)
        return (unit * (1 / _TRUNCATED_STDDEV) * self.stddev).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform in `±limit`.

    Args:
      limit: The largest absolute value.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.Uniform(limit=0.1)(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)
    """

    RANGES: ClassVar[dict[str, str]] = {"limit": "0 <= x"}
    limit: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a uniform sample.

        Args:
          key: A typed random key.
          shape: Shape of the array.
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        return _uniform(key, shape, self.limit, dtype)


@dataclasses.dataclass(frozen=True)
class FanIn:
    """Normal of variance `scale / fan_in`: outputs keep the variance of inputs at scale 1.

    Args:
      scale: Variance of an output per unit of input variance.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> kernel = layers.FanIn()(jax.random.key(0), (400, 100), jnp.float32)
      >>> round(float(kernel.std()), 2)  # 1 / sqrt(400)
      0.05

    Source: LeCun et al. 1998, Efficient BackProp, section 4.6 (scale 1); He et al. 2015,
      arXiv 1502.01852, equation 10 (scale 2).
    """

    RANGES: ClassVar[dict[str, str]] = {"scale": "0 <= x"}
    scale: float = 1.0

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a sample for a matrix of shape (fan in, fan out).

        Args:
          key: A typed random key.
          shape: Shape of the matrix, (fan in, fan out).
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        return _normal(key, shape, (self.scale / math.prod(shape[:-1])) ** 0.5, dtype)


@dataclasses.dataclass(frozen=True)
class FanAverage:
    """Uniform in `±sqrt(6 scale / (fan_in + fan_out))`.

    Args:
      scale: Variance of the matrix elements, in units of `2 / (fan_in + fan_out)`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.FanAverage()(jax.random.key(0), (8, 4), jnp.float32).shape
      (8, 4)

    Source: Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward
      neural networks, equation 16.
    """

    RANGES: ClassVar[dict[str, str]] = {"scale": "0 <= x"}
    scale: float = 1.0

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a sample for a matrix of shape (fan in, fan out).

        Args:
          key: A typed random key.
          shape: Shape of the matrix, (fan in, fan out).
          dtype: Its floating point type.

        Returns:
          An array of that shape and type.
        """
        limit = (6.0 * self.scale / (math.prod(shape[:-1]) + shape[-1])) ** 0.5
        return _uniform(key, shape, limit, dtype)
