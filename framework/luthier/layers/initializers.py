"""Initializers as values: small callables that a graph can hold, show and change.

Every one is called as `initializer(key, shape, dtype)`, like those of `jax.nn.initializers`, which
fit here too. Kernels of any rank are initialized as the matrix `(fan in, fan out)`.
Standard deviations may be traced.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from luthier.layers.gaussian import standard_normal, truncated_normal

DType = Any

# The standard deviation of a standard normal cut off at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


class Initializer(Protocol):
    """Makes the first value of a parameter."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return an array of the shape and type, drawn with the key."""


def describe(initializer: Any) -> str:
    """Return an initializer as people write it, `Normal(stddev=0.02)`; what is traced as `...`.

    Args:
      initializer: An initializer of ours, or any function.
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
    return (standard_normal(key, shape) * stddev).astype(dtype)


def _uniform(key: jax.Array, shape: Sequence[int], limit: Any, dtype: DType) -> jax.Array:
    unit = jax.random.uniform(key, tuple(shape), jnp.float32, -1.0, 1.0)
    return (unit * limit).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Zeros:
    """All zeros."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return zeros."""
        return jnp.zeros(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class Ones:
    """All ones."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return ones."""
        return jnp.ones(tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class Normal:
    """Normal with mean zero.

    Args:
      stddev: Standard deviation.
    """

    RANGES: ClassVar[dict[str, str]] = {"stddev": "0 <= x"}
    stddev: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a normal sample."""
        return _normal(key, shape, self.stddev, dtype)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """Normal with mean zero, cut off at two standard deviations.

    Args:
      stddev: Standard deviation of what is returned, that is after the cut.
    """

    RANGES: ClassVar[dict[str, str]] = {"stddev": "0 <= x"}
    stddev: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a truncated normal sample."""
        unit = truncated_normal(key, shape)
        return (unit * (1 / _TRUNCATED_STDDEV) * self.stddev).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform in `±limit`.

    Args:
      limit: The largest absolute value.
    """

    RANGES: ClassVar[dict[str, str]] = {"limit": "0 <= x"}
    limit: float = 0.02

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a uniform sample."""
        return _uniform(key, shape, self.limit, dtype)


@dataclasses.dataclass(frozen=True)
class FanIn:
    """Normal of variance `scale / fan_in`: outputs keep the variance of inputs at scale 1.

    Args:
      scale: Variance of an output per unit of input variance.

    Source: LeCun et al. 1998, Efficient BackProp, section 4.6 (scale 1); He et al. 2015,
      arXiv 1502.01852, equation 10 (scale 2).
    """

    RANGES: ClassVar[dict[str, str]] = {"scale": "0 <= x"}
    scale: float = 1.0

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a sample for a matrix of shape (fan in, fan out)."""
        return _normal(key, shape, (self.scale / math.prod(shape[:-1])) ** 0.5, dtype)


@dataclasses.dataclass(frozen=True)
class FanAverage:
    """Uniform in `±sqrt(6 scale / (fan_in + fan_out))`.

    Args:
      scale: Variance of the matrix elements, in units of `2 / (fan_in + fan_out)`.

    Source: Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward
      neural networks, equation 16.
    """

    RANGES: ClassVar[dict[str, str]] = {"scale": "0 <= x"}
    scale: float = 1.0

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a sample for a matrix of shape (fan in, fan out)."""
        limit = (6.0 * self.scale / (math.prod(shape[:-1]) + shape[-1])) ** 0.5
        return _uniform(key, shape, limit, dtype)
