"""Normalization of groups of channels within a row. Shapes: B rows, X spatial dimensions, D dim."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, Ones, Zeros
from luthier.layers.parameters import DType, value_of, vector, wide


class GroupNorm(nnx.Module):
    """Group normalization: mean and variance over all places of a row and a group of channels.

    It takes the place of `BatchNorm`, but rows do not see each other.

    Args:
      num_groups: Groups that the channels are cut into.
      epsilon: Added to the variance.
      scale: Initializer of the channels' scales.
      bias: Initializer of the channels' biases.
      dim: D.
      dtype: Type of the result.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Raises:
      BadInput: The channels do not divide into the groups.

    Source: Wu and He 2018, arXiv:1803.08494, equations 1 to 7.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_groups": "1 <= x", "epsilon": "0 <= x"}

    def __init__(
        self,
        num_groups: int = 32,
        epsilon: Any = 1e-5,
        scale: Initializer = Ones(),
        bias: Initializer = Zeros(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if dim % num_groups:
            what = f"{dim} channels do not divide into {num_groups} groups"
            raise BadInput(Problem(what, remedy="set num_groups to a divisor of the channels"))
        self.num_groups = num_groups
        self.epsilon = epsilon
        self.dtype = dtype
        self.scale = vector(scale, (dim,), ("embed",), param_dtype, rngs)
        self.bias = vector(bias, (dim,), ("embed",), param_dtype, rngs)

    def __call__(self, x_BXD: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Normalize x_BXD [B, *X, D]; `weights_B` change nothing, as rows do not meet."""
        x = x_BXD.astype(wide(x_BXD.dtype)).reshape(*x_BXD.shape[:-1], self.num_groups, -1)
        places = (*range(1, x.ndim - 2), x.ndim - 1)
        x = x - x.mean(places, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(places, keepdims=True) + self.epsilon)
        x = x.reshape(x_BXD.shape)
        return (x * value_of(self.scale, x.dtype) + value_of(self.bias, x.dtype)).astype(self.dtype)
