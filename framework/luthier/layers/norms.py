"""Normalization over the last dimension, with statistics in float32 (float64 in float64).

Shapes: D embed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.initializers import Initializer, Ones, Zeros
from luthier.layers.parameters import DType, value_of, vector, wide


class LayerNorm(nnx.Module):
    """Layer normalization `y = (x - mean) / sqrt(var + epsilon) * (g + offset) + b`.

    Args:
      epsilon: Added to the variance.
      scale: Initializer of g.
      bias: Initializer of b; None means no bias.
      offset: Added to g; with 1, g is kept as its difference from one, as in Pax.
      axes: Logical name of the last dimension.
      dim: Size of the last dimension.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Supplies the keys of the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from flax import nnx
      >>> from luthier import layers
      >>> norm = layers.LayerNorm(dim=2, rngs=nnx.Rngs(0))
      >>> print(np.asarray(norm(jnp.array([3.0, 5.0]))).round(3))
      [-1.  1.]

    Source: Ba, Kiros and Hinton 2016, arXiv 1607.06450, equation 4.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("axes", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"epsilon": "0 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        epsilon: float = 1e-5,
        scale: Initializer = Ones(),
        bias: Initializer | None = Zeros(),
        offset: float = 0.0,
        *,
        axes: Sequence[str | None] = ("embed",),
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.epsilon = epsilon
        self.offset = offset
        self.dtype = dtype
        self.scale = vector(scale, (dim,), axes, param_dtype, rngs)
        self.bias = None if bias is None else vector(bias, (dim,), axes, param_dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize x over its last dimension.

        Args:
          x: [..., D].

        Returns:
          [..., D] in `dtype`.
        """
        kind = wide(x.dtype)
        bias = None if self.bias is None else value_of(self.bias, kind)
        scale = value_of(self.scale, kind) + self.offset
        return _layer_norm(x, scale, bias, self.epsilon).astype(self.dtype)


class RMSNorm(nnx.Module):
    """Root mean square normalization `y = x / sqrt(mean(x^2) + epsilon) * (g + offset)`.

    Args:
      epsilon: Added to the mean square.
      scale: Initializer of g.
      offset: Added to g; with 1, g is kept as its difference from one, as in Gemma.
      axes: Logical name of the last dimension.
      dim: Size of the last dimension.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Supplies the keys of the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from flax import nnx
      >>> from luthier import layers
      >>> norm = layers.RMSNorm(dim=2, rngs=nnx.Rngs(0))
      >>> print(np.asarray(norm(jnp.array([3.0, 4.0]))).round(3))
      [0.849 1.131]

    Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("axes", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"epsilon": "0 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        epsilon: float = 1e-6,
        scale: Initializer = Ones(),
        offset: float = 0.0,
        *,
        axes: Sequence[str | None] = ("embed",),
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.epsilon = epsilon
        self.offset = offset
        self.dtype = dtype
        self.scale = vector(scale, (dim,), axes, param_dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize x over its last dimension.

        Args:
          x: [..., D].

        Returns:
          [..., D] in `dtype`.
        """
        scale = value_of(self.scale, wide(x.dtype)) + self.offset
        return _rms_norm(x, scale, self.epsilon).astype(self.dtype)


# Only the input is kept for the backward pass, in the type in which it came: autodiff would keep
# the centred input and the normalized one in float32, four times the bytes of a bfloat16 input,
# and a norm is bound by memory. A custom VJP would need the same two passes over x.
@jax.checkpoint
def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: Any) -> jax.Array:
    # Statistics in float32: a mean over D squares in bfloat16 has 8 bits. The mean is subtracted
    # before squaring, since E[x^2] - E[x]^2 cancels where the mean is large.
    x = x.astype(wide(x.dtype))
    x = x - x.mean(-1, keepdims=True)
    variance = jnp.square(x).mean(-1, keepdims=True)
    y = x * jax.lax.rsqrt(variance + epsilon) * scale
    return y if bias is None else y + bias


@jax.checkpoint  # as for `_layer_norm`
def _rms_norm(x: jax.Array, scale: jax.Array, epsilon: Any) -> jax.Array:
    x = x.astype(wide(x.dtype))
    mean_square = jnp.square(x).mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + epsilon) * scale
