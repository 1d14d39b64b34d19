"""A feed-forward layer of your own, which takes the place of `luthier.layers.Mlp`.

Shapes: B rows, L length, D embed, F hidden.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import Linear, Template, create


class SquaredReluMlp(nnx.Module):
    """A two-layer perceptron with the square of a ReLU: `y = relu(x W_up)^2 W_down`.

    Args:
      hidden_dim: F.
      linear: Template of both linear maps.
      dim: D. The block passes this argument and the following ones.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: So et al. 2021, arXiv 2109.08668, section 4.
    """

    # Arguments that the parent passes; all others are settings of the config.
    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    # Valid values, which luthier checks before it builds anything.
    RANGES: ClassVar[dict[str, str]] = {"hidden_dim": "1 <= x"}

    def __init__(
        self,
        hidden_dim: int,
        linear: Template = Linear,
        *,
        dim: int,
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        # The axes are names for the sharding rules in `parallelism.rules`.
        narrow = {"sizes": (dim,), "axes": ("embed",)}
        wide = {"sizes": (hidden_dim,), "axes": ("mlp",)}
        self.up = create(linear, **_between(narrow, wide), **kinds)
        self.down = create(linear, **_between(wide, narrow), **kinds)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Map x [B, L, D] to the same shape."""
        return self.down(jnp.square(jax.nn.relu(self.up(x_BLD))))


def _between(inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "inputs": inputs["sizes"],
        "input_axes": inputs["axes"],
        "outputs": outputs["sizes"],
        "output_axes": outputs["axes"],
    }
