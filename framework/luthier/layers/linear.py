"""Linear maps between groups of dimensions.

Shapes: `...` any leading dimensions; inputs and outputs are groups of one or more dimensions, such
as embed -> (heads, head_dim).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import FanIn, Initializer
from luthier.layers.parameters import DType, biased, gathered, parameter, vector
from luthier.layers.products import MatrixProduct, Product
from luthier.parallel import current_layout, is_explicit, result_sharding
from luthier.parallel.rules import RESIDUAL_LENGTH

_AXIS_TYPE = "parallelism.mesh.axis_type"


class Linear(nnx.Module):
    """A linear map `y = x W + b` over the last dimensions of its input.

    Args:
      kernel: Initializer of W, which it sees as a matrix (fan in, fan out).
      bias: Initializer of b; None means no bias.
      product: The product of x and W, such as `MatrixProduct`.
      inputs: Sizes of the input dimensions, the last ones of x.
      outputs: Sizes of the output dimensions.
      input_axes: Logical axis names of the input dimensions of W.
      output_axes: Logical axis names of the output dimensions of W.
      dtype: Dtype of the computation, and of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> linear = layers.Linear(
      ...     inputs=(8,),
      ...     outputs=(2, 4),
      ...     input_axes=("embed",),
      ...     output_axes=("heads", "head_dim"),
      ...     rngs=nnx.Rngs(0),
      ... )
      >>> linear(jnp.ones((3, 8))).shape
      (3, 2, 4)
    """

    INHERITED: ClassVar[tuple[str, ...]] = (
        "inputs",
        "outputs",
        "input_axes",
        "output_axes",
        "dtype",
        "param_dtype",
        "rngs",
    )

    def __init__(
        self,
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
        axes = (*input_axes, *output_axes)
        self.num_inputs = len(inputs)
        self.output_axes = tuple(output_axes)
        self.product = product
        self.dtype = dtype
        self.kernel = parameter(kernel, inputs, outputs, axes, param_dtype, rngs)
        self.bias = None if bias is None else vector(bias, outputs, output_axes, param_dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x.

        Args:
          x: [..., *inputs].

        Returns:
          [..., *outputs] in `dtype`.
        """
        return self.biased(self.multiplied(x))

    def multiplied(self, x: jax.Array) -> jax.Array:
        """Return `x W`, without the bias.

        Args:
          x: [..., *inputs].

        Returns:
          [..., *outputs] in `dtype`.
        """
        sharding = result_sharding(x, x.ndim - self.num_inputs, self.output_axes)
        kernel = gathered(self.kernel)
        return _product(x, kernel, self.num_inputs, self.dtype, sharding, self.product)

    def biased(self, y: jax.Array) -> jax.Array:
        """Return `y + b`, or y where there is no bias.

        Args:
          y: [..., *outputs].

        Returns:
          [..., *outputs] in the type of `y`.
        """
        return y if self.bias is None else biased(y, self.bias)


# Keeps x and the kernel as they are for the backward pass, not their casts and reshapes: without
# this, a float32 kernel would be kept a second time in bfloat16. Nothing costly is computed again:
# the gradient of a product does not need the product. `prevent_cse=False` leaves out JAX's
# optimization barriers, which would keep XLA from fusing the casts; in a scan, forward and backward
# pass are different loops, so there is nothing that XLA could merge.
@functools.partial(jax.checkpoint, static_argnums=(2, 3, 4, 5), prevent_cse=False)
def _product(
    x: jax.Array,
    kernel: jax.Array,
    num_inputs: int,
    dtype: DType,
    sharding: NamedSharding | None,
    product: Product,
) -> jax.Array:
    if sharding is not None:
        # Explicit axes: the result of a reshape that merges sharded dimensions would have no
        # sharding, so the product contracts all input dimensions at once and names its sharding.
        if not isinstance(product, MatrixProduct):
            what = f"{type(product).__name__} is for meshes with automatic axes"
            raise BadInput(Problem(what, _AXIS_TYPE, remedy=f"set {_AXIS_TYPE}=AUTO"))
        last, first = range(x.ndim - num_inputs, x.ndim), range(num_inputs)
        return jax.lax.dot_general(
            x.astype(dtype),
            kernel.astype(dtype),
            ((tuple(last), tuple(first)), ((), ())),
            out_sharding=sharding,
        )
    inputs, outputs = kernel.shape[:num_inputs], kernel.shape[num_inputs:]
    leading, fan_in = x.shape[: x.ndim - num_inputs], math.prod(inputs)
    x_TI = flattened(x.astype(dtype).reshape(*leading, fan_in))
    y_TO = product(x_TI, kernel.astype(dtype).reshape(fan_in, -1))
    return y_TO.reshape(*leading, *outputs)


def jointly(linears: Sequence[nnx.Module], x: jax.Array) -> list[jax.Array]:
    """Apply linear maps to the same input, by one product where that can be done.

    Accelerators multiply by kernels that stand side by side faster than by one after the other, and
    the gradient of x is then one accumulation in float32, not a sum of rounded ones. The maps are
    applied one by one where the mesh splits their outputs (columns of several kernels would have to
    move to other devices), where its axes are explicit, and where one is no plain `Linear`.

    Args:
      linears: The maps, all of the same inputs.
      x: [..., *inputs].

    Returns:
      For each map, [..., *outputs].

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> sizes = {"inputs": (8,), "input_axes": ("embed",), "output_axes": ("mlp",)}
      >>> two = [layers.Linear(outputs=(n,), **sizes, rngs=nnx.Rngs(n)) for n in (4, 6)]
      >>> [y.shape for y in layers.jointly(two, jnp.ones((3, 8)))]
      [(3, 4), (3, 6)]
    """
    plain = [linear for linear in linears if type(linear) is Linear]
    if len(plain) < len(linears) or not _is_joinable(plain):
        return [linear(x) for linear in linears]  # type: ignore[operator]
    first = plain[0]
    kernels = tuple(gathered(linear.kernel) for linear in plain)
    y = _joint_product(x, kernels, first.num_inputs, first.dtype, first.product)
    shapes = [linear.kernel.shape[first.num_inputs :] for linear in plain]
    biases = [linear.bias for linear in plain if linear.bias is not None]
    if len(biases) == len(plain):
        # Before the cut: the gradient of all biases is then one sum over what the product's own
        # gradient reads anyway.
        y = biased(y, nnx.Param(jnp.concatenate([bias[...].reshape(-1) for bias in biases])))
        y = _stored_once(y)
    # `split` and not slices: its transpose is a concatenation, where that of slices is a sum of
    # arrays padded with zeros.
    parts = jax.lax.split(y, [math.prod(shape) for shape in shapes], axis=y.ndim - 1)
    parts = [y.reshape(*y.shape[:-1], *shape) for y, shape in zip(parts, shapes, strict=True)]
    if len(biases) == len(plain):
        return parts
    return [linear.biased(y) for linear, y in zip(plain, parts, strict=True)]


# An identity whose cotangent is written to memory before it is used. Without the barrier, XLA makes
# it a second time, from the gradients of the parts, for the gradient of the biases.
@jax.custom_jvp
def _stored_once(y: jax.Array) -> jax.Array:
    return y


@_stored_once.defjvp
def _stored_once_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return primals[0], jax.lax.optimization_barrier(tangents[0])


def _is_joinable(linears: Sequence[Linear]) -> bool:
    alike = {(linear.num_inputs, linear.dtype, linear.product) for linear in linears}
    layout = current_layout()
    if len(alike) > 1 or is_explicit():
        return False
    names = {name for linear in linears for name in linear.output_axes}
    return layout is None or not any(layout.mesh_axes(name) for name in names if name)


# As for `_product`, only x and the kernels are kept for the backward pass: they are cast and put
# side by side again there, which costs a copy of the kernels.
@functools.partial(jax.checkpoint, static_argnums=(2, 3, 4), prevent_cse=False)
def _joint_product(
    x: jax.Array, kernels: tuple[jax.Array, ...], num_inputs: int, dtype: DType, product: Product
) -> jax.Array:
    leading, fan_in = x.shape[: x.ndim - num_inputs], math.prod(kernels[0].shape[:num_inputs])
    x_TI = flattened(x.astype(dtype).reshape(*leading, fan_in))
    matrices = [kernel.astype(dtype).reshape(fan_in, -1) for kernel in kernels]
    return product(x_TI, jnp.concatenate(matrices, axis=1)).reshape(*leading, -1)


def flattened(x: jax.Array) -> jax.Array:
    """Return an array [..., D] as a matrix [T, D], unless devices would have to exchange for it.

    Matrices, not tensors: the CPU backend transposes both factors of a weight gradient that
    contracts more than one dimension, which takes longer than the product. But where the mesh
    splits the length of rows, a device's positions do not follow one another in a matrix of all
    tokens: the compiler would gather the length, and each device on its axis would compute the
    whole product.

    Args:
      x: [..., D].

    Returns:
      [T, D]; `x` itself where the length of rows is split.
    """
    layout = current_layout()
    is_cut = layout is not None and bool(layout.mesh_axes(RESIDUAL_LENGTH))
    return x if is_cut else x.reshape(-1, x.shape[-1])
