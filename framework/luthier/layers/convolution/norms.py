"""Normalization in convolutional networks: over the batch, or over groups of channels."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, Ones, Zeros
from luthier.layers.parameters import DType, value_of, vector, wide

# Normalization by statistics of the batch, with running ones for evaluation.
#
# Shapes: B rows, X spatial dimensions, D dim.


class BatchNorm(nnx.Module):
    r"""Batch normalization `y = (x - mean) / sqrt(var + epsilon) * g + b` per channel.

    In training, mean and variance are computed over all positions of the rows of the global batch
    whose weight is not zero, so they do not depend on the mesh. The running statistics, which are
    variables of the training state, move towards them: $m s + (1 - m) \hat{s}$, with the unbiased
    variance. Evaluation uses the running statistics. The model has to return their new values from
    `observe` (see `luthier.models.ResNet`).

    The result for a row depends on the other rows of the batch. Gradient accumulation is therefore
    rejected for a model with this layer: the statistics would be those of a microbatch.

    Args:
      momentum: m.
      epsilon: Added to the variance.
      scale: Initializer of g.
      bias: Initializer of b.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> norm = layers.BatchNorm(dim=4, rngs=nnx.Rngs(0))
      >>> norm(jnp.ones((2, 8, 8, 4))).shape  # evaluation, with the running statistics
      (2, 8, 8, 4)

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithms 1 and 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"momentum": "0 <= x < 1", "epsilon": "0 <= x"}
    # Gradient accumulation rejects a model whose modules have this attribute: nothing else about a
    # module shows that the result for a row depends on other rows.
    COUPLES: ClassVar[str] = "batch statistics"

    def __init__(
        self,
        momentum: Any = 0.9,
        epsilon: Any = 1e-5,
        scale: Initializer = Ones(),
        bias: Initializer = Zeros(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.scale = vector(scale, (dim,), ("embed",), param_dtype, rngs)
        self.bias = vector(bias, (dim,), ("embed",), param_dtype, rngs)
        # Running statistics are kept in float32, whatever parameters are: a step of 0.1 of a small
        # difference is lost in bfloat16. `BatchStat` is not a `Param`: state, but not trained.
        kind = wide(param_dtype)
        self.mean = nnx.BatchStat(jnp.zeros((dim,), kind), logical_axes=("embed",))
        self.variance = nnx.BatchStat(jnp.ones((dim,), kind), logical_axes=("embed",))

    def __call__(self, x_BXD: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Normalize.

        Args:
          x_BXD: [B, *X, D].
          weights_B: In training, the weights of the rows; a row of weight 0 does not contribute to
            the statistics. None means evaluation.

        Returns:
          The same shape in `dtype`. In training the running statistics are changed in place.
        """
        x = x_BXD.astype(wide(x_BXD.dtype))
        mean_D, variance_D = self.mean[...], self.variance[...]
        if weights_B is not None:
            mean_D, variance_D = self._observe(x, weights_B)
        # Scale and standard deviation become one factor per channel before they meet x.
        scale_D = value_of(self.scale, x.dtype) * jax.lax.rsqrt(variance_D + self.epsilon)
        return ((x - mean_D) * scale_D + value_of(self.bias, x.dtype)).astype(self.dtype)

    def _observe(self, x: jax.Array, weights_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the batch's statistics, and move the running ones."""
        # Sums over the global batch: under a mesh the compiler turns them into an all-reduce, so
        # the statistics do not depend on the number of devices. The variance is that of centred
        # values, in float32: E[x^2] - E[x]^2 cancels.
        places = tuple(range(x.ndim - 1))
        weights = weights_B.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        count = weights.sum() * (x[0, ..., 0].size)
        safe = jnp.where(count > 0, count, 1)
        counted = jnp.where(weights != 0, x, 0)  # A row of weight 0 may hold anything.
        mean_D = (counted * weights).sum(places) / safe
        variance_D = (jnp.square(counted - mean_D) * weights).sum(places) / safe
        # Both are functions of x; the running ones are state, and take no gradient. A batch in
        # which no row counts leaves them as they are (share 0).
        unbiased_D = jax.lax.stop_gradient(variance_D) * (safe / jnp.maximum(safe - 1, 1))
        share = jnp.where(count > 0, 1 - self.momentum, 0)
        for running, new_D in (
            (self.mean, jax.lax.stop_gradient(mean_D)),
            (self.variance, unbiased_D),
        ):
            old_D = running[...]
            running.set_value(old_D + (share * (new_D - old_D)).astype(old_D.dtype))
        return mean_D, variance_D


# Normalization of groups of channels within a row. Shapes: B rows, X spatial dimensions, D dim.


class GroupNorm(nnx.Module):
    """Group normalization: mean and variance over all positions of a row and a group of channels.

    It can replace `BatchNorm`, but the result for a row does not depend on other rows.

    Args:
      num_groups: Number of groups of channels.
      epsilon: Added to the variance.
      scale: Initializer of the channels' scales.
      bias: Initializer of the channels' biases.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Raises:
      BadInput: The channels do not divide into the groups.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> norm = layers.GroupNorm(num_groups=2, dim=4, rngs=nnx.Rngs(0))
      >>> norm(jnp.ones((2, 8, 8, 4))).shape
      (2, 8, 8, 4)

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
        """Normalize.

        Args:
          x_BXD: [B, *X, D].
          weights_B: Not used; accepted so that this layer can replace `BatchNorm`.

        Returns:
          [B, *X, D] in `dtype`.
        """
        # [B, *X, D] -> [B, *X, groups, D / groups], normalized over X and the last dimension.
        x = x_BXD.astype(wide(x_BXD.dtype)).reshape(*x_BXD.shape[:-1], self.num_groups, -1)
        places = (*range(1, x.ndim - 2), x.ndim - 1)
        x = x - x.mean(places, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(places, keepdims=True) + self.epsilon)
        x = x.reshape(x_BXD.shape)
        return (x * value_of(self.scale, x.dtype) + value_of(self.bias, x.dtype)).astype(self.dtype)
