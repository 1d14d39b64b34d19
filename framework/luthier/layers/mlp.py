"""Feed-forward layers, applied to each token alone.

Shapes: B rows, L length, D embed, F hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create
from luthier.parallel import constrain

HIDDEN_AXES = ("batch", "length", "mlp")
_Map = Callable[[jax.Array], jax.Array]


class Mlp(nnx.Module):
    """A two-layer perceptron `y = f(x W_up) W_down`.

    Args:
      hidden_dim: F.
      activation: f, such as `jax.nn.gelu`.
      up: Template of W_up.
      down: Template of W_down.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> mlp = layers.Mlp(hidden_dim=16, dim=8, rngs=nnx.Rngs(0))
      >>> mlp(jnp.ones((2, 3, 8))).shape
      (2, 3, 8)

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"hidden_dim": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        hidden_dim: int,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
        up: Template = Linear,
        down: Template = Linear,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.activation = activation
        self.up = create(up, **_sizes(dim, hidden_dim, "embed", "mlp"), **kinds)
        self.down = create(down, **_sizes(hidden_dim, dim, "mlp", "embed"), **kinds)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Map each token.

        Args:
          x_BLD: [B, L, D].

        Returns:
          [B, L, D] in `dtype`.
        """
        # Only its input is kept for the backward pass: an activation is cheaper to compute again
        # than to store, and the derivative of gelu alone would keep several arrays of [B, L, F].
        # The bias is part of what is computed again, so that the product itself is what is kept:
        # the sum would be a second array that the forward pass has to write.
        multiply, finish = _product_and_rest(self.up, self.activation)
        up_BLF = constrain(checkpoint_name(multiply(x_BLD), "mlp_up"), HIDDEN_AXES)
        hidden_BLF = jax.checkpoint(finish)(up_BLF)
        return checkpoint_name(self.down(hidden_BLF), "mlp_output")


class GatedMlp(nnx.Module):
    """A gated perceptron `y = (f(x W_gate) * x W_up) W_down`; SwiGLU where f is `jax.nn.silu`.

    Args:
      hidden_dim: F.
      activation: f, such as `jax.nn.silu`.
      gate: Template of W_gate.
      up: Template of W_up.
      down: Template of W_down.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> mlp = layers.GatedMlp(hidden_dim=16, activation=jax.nn.silu, dim=8, rngs=nnx.Rngs(0))
      >>> mlp(jnp.ones((2, 3, 8))).shape
      (2, 3, 8)

    Source: Shazeer 2020, arXiv 2002.05202, equation 6.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"hidden_dim": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        hidden_dim: int,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.silu,
        gate: Template = Linear,
        up: Template = Linear,
        down: Template = Linear,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.activation = activation
        self.gate = create(gate, **_sizes(dim, hidden_dim, "embed", "mlp"), **kinds)
        self.up = create(up, **_sizes(dim, hidden_dim, "embed", "mlp"), **kinds)
        self.down = create(down, **_sizes(hidden_dim, dim, "mlp", "embed"), **kinds)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Map each token.

        Args:
          x_BLD: [B, L, D].

        Returns:
          [B, L, D] in `dtype`.
        """
        # The names are what policies of remat select by (`layers.remat`). Gate and up are kept, and
        # their product is computed again, for the reason given in `Mlp`.
        gate_BLF = checkpoint_name(self.gate(x_BLD), "mlp_gate")
        up_BLF = checkpoint_name(self.up(x_BLD), "mlp_up")
        gated = jax.checkpoint(lambda gate, up: self.activation(gate) * up)
        hidden_BLF = gated(constrain(gate_BLF, HIDDEN_AXES), constrain(up_BLF, HIDDEN_AXES))
        return checkpoint_name(self.down(hidden_BLF), "mlp_output")


def _product_and_rest(up: Any, activation: _Map) -> tuple[_Map, _Map]:
    """Return two functions, one after the other `activation(up(x))`: the product, and the rest."""
    if type(up) is not Linear:  # others have no such parts
        return up, activation
    return up.multiplied, lambda product: activation(up.biased(product))


def _sizes(inputs: int, outputs: int, input_axis: str, output_axis: str) -> dict[str, object]:
    return {
        "inputs": (inputs,),
        "outputs": (outputs,),
        "input_axes": (input_axis,),
        "output_axes": (output_axis,),
    }
