"""Experts on tokens that are sorted by expert: products of groups of rows, without padding.

Shapes: E experts, N rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType
from luthier.layers.products import MatrixProduct, Product


class GroupedLinear(nnx.Module):
    """The linear maps of all experts, each on its own rows.

    Args:
      linear: The maps, whose parameters have a leading `experts` axis.
      sizes_E: Rows of each expert, int32 [E]; rows after those of the last one give anything.

    Source: Gale et al. 2022, arXiv:2211.15841, section 4.
    """

    def __init__(self, linear: Linear, sizes_E: jax.Array):
        self.linear = linear
        self.sizes_E = nnx.Variable(sizes_E)

    def __call__(self, x_1NI: jax.Array) -> jax.Array:
        """Map rows [1, N, *inputs], sorted by expert, to [1, N, *outputs]."""
        linear, sizes_E = self.linear, self.sizes_E[...]
        dtype, num_inputs = linear.dtype, linear.num_inputs
        y = _product(x_1NI, linear.kernel[...], sizes_E, num_inputs, dtype, linear.product)
        if linear.bias is None:
            return y
        bias = linear.bias[...]
        ones_1N1 = jnp.ones((*y.shape[:2], 1), dtype)
        return y + _product(ones_1N1, bias[:, None], sizes_E, 1, dtype, MatrixProduct())


# Keeps x and the kernel as they are for the backward pass; see `linear`.
@functools.partial(jax.checkpoint, static_argnums=(3, 4, 5), prevent_cse=False)
def _product(
    x: jax.Array,
    kernel: jax.Array,
    sizes_E: jax.Array,
    num_inputs: int,
    dtype: DType,
    product: Product,
) -> jax.Array:
    inputs, outputs = kernel.shape[1 : 1 + num_inputs], kernel.shape[1 + num_inputs :]
    leading = x.shape[: x.ndim - num_inputs]
    x_NI = x.astype(dtype).reshape(-1, math.prod(inputs))
    kernel_EIO = kernel.astype(dtype).reshape(kernel.shape[0], math.prod(inputs), -1)
    y_NO = product.grouped(x_NI, kernel_EIO, sizes_E)
    return y_NO.reshape(*leading, *outputs)


def grouped(experts: nnx.Module, sizes_E: jax.Array) -> nnx.Module:
    """Return experts that take their rows sorted, as one module with the call of a single expert.

    Args:
      experts: What `create_each` made; parameters must be those of `Linear` maps.
      sizes_E: Rows of each expert, int32 [E].

    Returns:
      A module that maps [1, N, D] to [1, N, D].

    Raises:
      BadInput: An expert has other parameters; all of them at once.
    """
    copy = nnx.merge(*nnx.split(experts))
    problems: list[Problem] = []
    _replace(copy, sizes_E, "", problems)
    if problems:
        raise BadInput(problems)
    return copy


def _replace(module: nnx.Module, sizes_E: jax.Array, path: str, problems: list[Problem]) -> None:
    for name, child in list(vars(module).items()):
        at = f"{path}.{name}" if path else name
        if type(child) is Linear:
            setattr(module, name, GroupedLinear(child, sizes_E))
        elif isinstance(child, Linear | nnx.Param):
            what = f"Dropless knows the products of Linear only, and experts have {at}"
            kind = type(child).__name__
            remedy = "use Capacity" if kind == "Param" else f"use Capacity, or Linear for {kind}"
            problems.append(Problem(what, remedy=remedy))
        elif isinstance(child, nnx.Module):
            _replace(child, sizes_E, at, problems)
