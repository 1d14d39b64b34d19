"""Low-rank adaptation of linear maps.

Shapes: `...` any leading dimensions; I and O the products of the input and output dimensions, R
rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.initializers import FanIn, Initializer, Uniform, Zeros
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, parameter
from luthier.layers.products import MatrixProduct, Product

NAMES = ("lora_a", "lora_b")
"""Names of the parameters of an adapter."""


@dataclasses.dataclass(frozen=True)
class _UniformFanIn:
    """Uniform in `±1/sqrt(fan_in)`."""

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: DType) -> jax.Array:
        """Return a sample for a matrix of shape (fan in, fan out)."""
        return Uniform(math.prod(shape[:-1]) ** -0.5)(key, shape, dtype)


class LoraLinear(Linear):
    r"""A linear map with a low-rank change: `y = x W + b + (alpha / R) (x A) B`.

    W and b are called as in `Linear`, so that its weights can be restored, and kept frozen. A is
    uniform in `±1/sqrt(I)`, of variance `1/(3 I)`: as PEFT and loralib draw it
    (`kaiming_uniform_` with a = sqrt 5), so that their learning rates carry over. B is zero at
    first, so the map is at first that of W and b.

    Args:
      rank: R.
      alpha: Scale of the change, which is divided by the rank; may be traced.
      kernel: Initializer of W, which it sees as a matrix (I, O).
      bias: Initializer of b; None means no bias.
      product: The product of x and W; the products with A and B are plain.
      inputs: Sizes of the input dimensions, the last ones of x.
      outputs: Sizes of the output dimensions.
      input_axes: Logical axis names of the input dimensions of W.
      output_axes: Logical axis names of the output dimensions of W.
      dtype: Dtype of the computation, and of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> from flax import nnx
      >>> from luthier import layers
      >>> linear = layers.LoraLinear(
      ...     rank=2, inputs=(8,), outputs=(4,), input_axes=("embed",), output_axes=("mlp",),
      ...     rngs=nnx.Rngs(0),
      ... )
      >>> linear.lora_a.shape, linear.lora_b.shape
      ((8, 2), (2, 4))

    Source: Hu et al. 2021, arXiv 2106.09685, equation 3.
    """

    INHERITED: ClassVar[tuple[str, ...]] = Linear.INHERITED
    RANGES: ClassVar[dict[str, str]] = {"rank": "1 <= x"}
    LORA_A: ClassVar[Initializer] = _UniformFanIn()

    def __init__(
        self,
        rank: int = 8,
        alpha: float = 16.0,
        kernel: Initializer = FanIn(),
        bias: Initializer | None = None,
        product: Product = MatrixProduct(),
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        input_axes: Sequence[str | None],
        output_axes: Sequence[str | None],
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            kernel,
            bias,
            product,
            inputs=inputs,
            outputs=outputs,
            input_axes=input_axes,
            output_axes=output_axes,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.num_outputs = len(outputs)
        # The rank is a shape; alpha may be swept, and be a tracer. No mesh axis splits the rank: it
        # is small, and each device needs the whole of x A for its part of the outputs.
        self.scale = alpha / rank
        self.lora_a = parameter(
            self.LORA_A, inputs, (rank,), (*input_axes, None), param_dtype, rngs
        )
        self.lora_b = parameter(Zeros(), (rank,), outputs, (None, *output_axes), param_dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x.

        Args:
          x: [..., *inputs].

        Returns:
          [..., *outputs] in `dtype`.
        """
        # (x A) B, never x (A B): A B has the size of W, and the two narrow products cost R (I + O)
        # a token in place of I O. With B zero the change is exactly zero, so the first step starts
        # from the pretrained function to the bit.
        y = super().__call__(x)
        a, b = (p[...].astype(self.dtype) for p in (self.lora_a, self.lora_b))
        leading = x.shape[: x.ndim - self.num_inputs]
        x_TI = x.astype(self.dtype).reshape(-1, math.prod(x.shape[len(leading) :]))
        rank = b.shape[0]
        change_TO = (x_TI @ a.reshape(-1, rank)) @ b.reshape(rank, -1)
        scale = jnp.asarray(self.scale, self.dtype)
        return y + scale * change_TO.reshape(*leading, *b.shape[1:])

    def merged_kernel(self) -> jax.Array:
        """Return `W + (alpha / R) A B` in the shape and type of W, for every layer of a stack.

        Returns:
          The kernel [*inputs, *outputs], with a leading `layers` axis in a stack.
        """
        # Once, outside of training, so in float32 at the highest precision: with the default, TPUs
        # would multiply in bfloat16, and the merged model would differ from the adapted one.
        kernel, a, b = self.kernel[...], self.lora_a[...], self.lora_b[...]
        # Leading dimensions beyond those of one map: layers of a scan, experts.
        stacked = kernel.shape[: kernel.ndim - self.num_inputs - self.num_outputs]
        rank = a.shape[-1]
        kind = jnp.promote_types(kernel.dtype, jnp.float32)
        change = jnp.matmul(
            a.astype(kind).reshape(*stacked, -1, rank),
            b.astype(kind).reshape(*stacked, rank, -1),
            precision=jax.lax.Precision.HIGHEST,
        )
        scale = jnp.asarray(self.scale, kind)
        return (kernel.astype(kind) + scale * change.reshape(kernel.shape)).astype(kernel.dtype)


def merge_adapters(model: nnx.Module) -> dict[str, jax.Array]:
    """Return the parameters of a model with its adapters merged into their kernels.

    Args:
      model: A model with arrays in it.

    Returns:
      The parameters by name, without those of adapters: the parameters of the same model with
      `Linear` in the place of each `LoraLinear`.

    Example:
      >>> from flax import nnx
      >>> from luthier import layers
      >>> linear = layers.LoraLinear(
      ...     inputs=(8,), outputs=(4,), input_axes=("embed",), output_axes=("mlp",), rank=2,
      ...     rngs=nnx.Rngs(0),
      ... )
      >>> {name: array.shape for name, array in layers.merge_adapters(linear).items()}
      {'kernel': (8, 4)}

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """
    parameters = {
        ".".join(map(str, path)): variable.get_value()
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    for path, node in nnx.iter_graph(model):
        if isinstance(node, LoraLinear):
            prefix = "".join(f"{part}." for part in path)
            parameters[f"{prefix}kernel"] = node.merged_kernel()
            for name in NAMES:
                del parameters[f"{prefix}{name}"]
    return parameters
