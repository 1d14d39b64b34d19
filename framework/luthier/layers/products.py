"""The product of a linear map, as a part of its own that can be swapped.

Shapes: T tokens, N rows sorted by expert, E experts, I inputs, O outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from luthier.errors import BadInput, Problem
from luthier.layers.groups import Groups, multiply, rows_by_kernels, rows_by_rows
from luthier.layers.parameters import DType, wide


class Product(Protocol):
    """Multiplies inputs by kernels; hashable, and without arrays of its own."""

    def __call__(self, x_TI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
        """Return the product [T, O] in the type of its factors.

        Args:
          x_TI: [T, I]; where the mesh splits the length of rows, T is more than one dimension.
          kernel_IO: [I, O], of the same type.

        Returns:
          [T, O] in the type of the factors.
        """

    def grouped(self, x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups) -> jax.Array:
        """Return the products [N, O] of rows with the kernels of their experts.

        Args:
          x_NI: [N, I], sorted by expert.
          kernel_EIO: [E, I, O], of the same type.
          groups: The rows of each expert; rows after those of the last give anything.

        Returns:
          [N, O] in the type of the factors.
        """


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """The product as it is, in the type of its factors.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.MatrixProduct()(jnp.ones((2, 3)), jnp.ones((3, 1))))
      [[3.]
       [3.]]
    """

    def __call__(self, x_TI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
        """Return the product.

        Args:
          x_TI: [T, I]; T may be more dimensions than one.
          kernel_IO: [I, O], of the same type.

        Returns:
          [T, O] in the type of the factors.
        """
        return x_TI @ kernel_IO

    def grouped(self, x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups) -> jax.Array:
        """Return the products [N, O] of rows [N, I] with the kernels [E, I, O] of their experts.

        Args:
          x_NI: [N, I], sorted by expert.
          kernel_EIO: [E, I, O].
          groups: The rows of each expert; rows after those of the last give anything.

        Returns:
          [N, O] in the type of the factors.

        Source: Gale et al. 2022, arXiv:2211.15841, section 4.
        """
        return multiply(x_NI, kernel_EIO, groups)


# Products of factors of eight bits, by qwix: the only module that knows it.
#
# Shapes: T tokens, N rows sorted by expert, E experts, I inputs, O outputs.

TYPES = ("int8", "float8_e4m3fn", "float8_e5m2")
"""Types that factors can be quantized to."""


@dataclasses.dataclass(frozen=True)
class QuantizedProduct:
    r"""A product whose factors are rounded to eight bits, each with scales of its own.

    $$ y = (S_x S_W) \circ (\hat x \hat W), \qquad
       \hat x = \mathrm{round}(x / s_x), \quad s_x = \max_i |x_i| / q $$

    with one scale $s$ for every row of x and for every column of W, so that the sums are over
    numbers of eight bits; q is the largest of them. The scales are those of the numbers at hand:
    there is nothing to calibrate, and no state. Parameters stay as they are stored.

    The backward pass lets gradients through the rounding as if it were not there. Its two products
    are of the factors as they were before; with `gradient`, of factors that are quantized too, each
    along the dimension that the product sums over.

    Args:
      inputs: Type of x; None leaves it as it is.
      kernel: Type of W; None leaves it as it is. With `inputs=None` the product is one of numbers
        in the type of the layer, of which W has been rounded: weight-only quantization.
      gradient: Type of the gradient of y in the backward pass; None for a backward pass without
        quantization.

    Raises:
      BadInput: Factors cannot be quantized to a type, or qwix is not installed.

    Source: Jacob et al. 2017, arXiv 1712.05877, section 2.1 (integers with a scale); Bengio et al.
      2013, arXiv 1308.3432, section 5 (straight-through gradients); Micikevicius et al. 2022,
      arXiv 2209.05433, section 3 (E4M3 for factors, E5M2 for gradients).
    """

    inputs: DType | None = jnp.int8
    kernel: DType | None = jnp.int8
    gradient: DType | None = None

    def __post_init__(self) -> None:
        names = [field.name for field in dataclasses.fields(self)]
        kinds = {name: getattr(self, name) for name in names}
        problems = [
            Problem(f"factors cannot be quantized to {jnp.dtype(kind).name}", name, remedy=_ONE_OF)
            for name, kind in kinds.items()
            if kind is not None and jnp.dtype(kind).name not in TYPES
        ]
        if self.inputs is None and self.kernel is None:
            remedy = "use MatrixProduct"
            problems.append(Problem("quantizes neither inputs nor kernel", "", remedy=remedy))
        if problems:
            raise BadInput(problems)
        _qwix()

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the types that factors are quantized to."""
        kinds = (self.inputs, self.kernel, self.gradient)
        return tuple(jnp.dtype(kind).name for kind in kinds if kind is not None)

    def __call__(self, x_TI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
        """Return the product [T, O] in the type of its factors.

        Args:
          x_TI: [T, I]; T may be more dimensions than one.
          kernel_IO: [I, O], of the same type.

        Returns:
          [T, O] in the type of the factors.
        """
        return _product(x_TI, kernel_IO, self)

    def grouped(self, x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups) -> jax.Array:
        """Return the products [N, O] of rows with the kernels of their experts.

        Every row, and every column of every expert's kernel, has a scale of its own.

        Args:
          x_NI: [N, I], sorted by expert.
          kernel_EIO: [E, I, O], of the same type.
          groups: The rows of each expert; rows after those of the last give anything.

        Returns:
          [N, O] in the type of the factors.
        """
        return _grouped(x_NI, kernel_EIO, groups, self)


# The largest number becomes 127. By qwix's default it would be 127.5, and the last bit of the scale
# would decide whether -127.5 is rounded to -127 or -128.
_INT8_RANGE = f"absmax,{127.5 / 127!r}"
_ONE_OF = f"choose among {', '.join(TYPES)}"


def _qwix() -> Any:
    # Imported where it is used: an optional dependency, of this module only. `__post_init__` asks
    # for it, so that it is missed when the config is built, and not in the middle of a trace.
    try:
        return importlib.import_module("qwix")
    except ImportError as error:
        remedy = "pip install 'luthier[quantization]'"
        raise BadInput(Problem(f"quantized products need qwix: {error}", "", "", remedy)) from None


def _quantize(x: jax.Array, kind: DType | None, channels: tuple[int, ...]) -> Any:
    """Return an array in a type of eight bits, with scales for each index of some dimensions."""
    if kind is None:
        return x
    # The maximum and the division in float32: a scale in bfloat16 would be 2^-9 off.
    method = _INT8_RANGE if jnp.dtype(kind) == jnp.int8 else "absmax"
    return _qwix().quantize(
        x.astype(wide(x.dtype)), kind, channelwise_axes=channels, calibration_method=method
    )


def _same_kind(left: Any, right: Any, dtype: DType) -> tuple[Any, Any]:
    """Return two quantized factors, or two plain ones of a type where one is not quantized."""
    qwix = _qwix()
    if isinstance(left, qwix.QArray) and isinstance(right, qwix.QArray):
        return left, right
    plain = [qwix.dequantize(x) if isinstance(x, qwix.QArray) else x for x in (left, right)]
    return plain[0].astype(dtype), plain[1].astype(dtype)


def _sum_over(
    left: jax.Array,
    right: jax.Array,
    dims: tuple[tuple[int, ...], tuple[int, ...]],
    kinds: tuple[DType | None, ...],
) -> jax.Array:
    """Return the product of two arrays over some dimensions of each, their factors quantized."""
    # One scale for each index of the dimensions that remain: a scale may leave the sum only if it
    # is constant along what is summed. Each of x, W and dy takes part in two of the three products
    # of a layer, along different dimensions, so it is quantized for each of them.
    channels = [
        tuple(dim for dim in range(array.ndim) if dim not in summed)
        for array, summed in zip((left, right), dims, strict=True)
    ]
    factors = (_quantize(left, kinds[0], channels[0]), _quantize(right, kinds[1], channels[1]))
    numbers = (dims, ((), ()))
    found: jax.Array = _qwix().dot_general(*_same_kind(*factors, left.dtype), numbers)
    return found.astype(left.dtype)


# A custom VJP because rounding has the derivative zero: JAX's would be zero as well. The straight-
# through estimate takes the product as if its factors had not been rounded:
#   dx = dy W^T,  dW = x^T dy,
# with x and W as they came, which is why these, and not their quantized forms, are the residuals.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x_TI: jax.Array, kernel_IO: jax.Array, types: QuantizedProduct) -> jax.Array:
    dims = ((x_TI.ndim - 1,), (0,))
    return _sum_over(x_TI, kernel_IO, dims, (types.inputs, types.kernel))


def _product_forward(x_TI: jax.Array, kernel_IO: jax.Array, types: QuantizedProduct) -> Any:
    return _product(x_TI, kernel_IO, types), (x_TI, kernel_IO)


def _product_backward(types: QuantizedProduct, factors: Any, gradient_TO: jax.Array) -> Any:
    x_TI, kernel_IO = factors
    inputs, kernel = _of_backward(types)
    last, tokens = x_TI.ndim - 1, tuple(range(x_TI.ndim - 1))
    to_x = _sum_over(gradient_TO, kernel_IO, ((last,), (1,)), (types.gradient, kernel))
    to_kernel = _sum_over(x_TI, gradient_TO, (tokens, tokens), (inputs, types.gradient))
    return to_x, to_kernel


_product.defvjp(_product_forward, _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _grouped(
    x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups, types: QuantizedProduct
) -> jax.Array:
    factors = _quantize(x_NI, types.inputs, (0,)), _quantize(kernel_EIO, types.kernel, (0, 2))
    return _by_group(*factors, groups, x_NI.dtype)


def _by_group(x_NI: Any, kernel_EIO: Any, groups: Groups, dtype: DType) -> jax.Array:
    """Return the products of rows with the kernels of their groups, either quantized or not."""
    qwix = _qwix()
    factors = _same_kind(x_NI, kernel_EIO, dtype)
    if not groups.tile:
        found = qwix.ragged_dot(*factors, groups.sizes_E)
    else:
        numbers = ((2,), (1,)), ((0,), (0,))
        product = functools.partial(qwix.dot_general, dimension_numbers=numbers)
        found = rows_by_kernels(product, *factors, groups)
    return found.astype(dtype)


def _grouped_forward(
    x_NI: jax.Array, kernel_EIO: jax.Array, groups: Groups, types: QuantizedProduct
) -> Any:
    return _grouped(x_NI, kernel_EIO, groups, types), (x_NI, kernel_EIO, groups)


def _grouped_backward(types: QuantizedProduct, factors: Any, gradient_NO: jax.Array) -> Any:
    # As in `_product_backward`, group by group. For dW the ragged dimension is the one that is
    # summed over: rows of each expert give one matrix each, hence `ragged_dot_general`. The scales
    # of x and dy are then by feature, over the rows of all experts.
    x_NI, kernel_EIO, groups = factors
    inputs, kernel = _of_backward(types)
    back_EOI = kernel_EIO.swapaxes(1, 2)
    pair = _quantize(gradient_NO, types.gradient, (0,)), _quantize(back_EOI, kernel, (0, 2))
    to_x = _by_group(*pair, groups, x_NI.dtype)
    pair = _quantize(x_NI, inputs, (1,)), _quantize(gradient_NO, types.gradient, (1,))
    pair = _same_kind(*pair, x_NI.dtype)
    if groups.tile:
        sums = functools.partial(
            _qwix().dot_general,
            dimension_numbers=(((0,), (0,)), ((), ())),
            preferred_element_type=wide(kernel_EIO.dtype),
        )
        return to_x, rows_by_rows(sums, *pair, groups, kernel_EIO.dtype), None
    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[],
    )
    to_kernel = _qwix().ragged_dot_general(*pair, groups.sizes_E, numbers)
    return to_x, to_kernel.astype(kernel_EIO.dtype), None


_grouped.defvjp(_grouped_forward, _grouped_backward)


def _of_backward(types: QuantizedProduct) -> tuple[DType | None, DType | None]:
    """Return the types of x and W in the backward pass."""
    return (None, None) if types.gradient is None else (types.inputs, types.kernel)


# The derivative that JAX derives multiplies the float32 cotangent of the result with the other
# factor, which it widens for that: two products of the size of this one, in float32 (TF32 on GPUs,
# at half the rate; those of the logits took 20 % of a step of GPT-2 on an H200). All other products
# of a model get cotangents in their own type; so do these, by a tangent that is a product in the
# type of its factors. A custom JVP, not a custom VJP, so that forward mode works as well.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3, 4))
def stored_product(
    spec: str, x: jax.Array, y: jax.Array, dtype: DType, sharding: NamedSharding | None = None
) -> jax.Array:
    """Return an einsum of two arrays in another type than theirs; cotangents are rounded to theirs.

    Accelerators accumulate in float32; `dtype` is what the sums are stored in.

    Args:
      spec: The einsum, such as `TD,DV->TV`.
      x: The first factor.
      y: The second factor, of the same type.
      dtype: Dtype of the result.
      sharding: That of the result, where the axes of the mesh are explicit.

    Returns:
      The product in `dtype`.
    """
    return jnp.einsum(spec, x, y, preferred_element_type=dtype, out_sharding=sharding)


@stored_product.defjvp
def _stored_product_jvp(
    spec: str, dtype: DType, sharding: NamedSharding | None, primals: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    (x, y), (x_change, y_change) = primals, tangents
    own = functools.partial(jnp.einsum, spec, out_sharding=sharding)
    tangent = own(x_change, y) + own(x, y_change)
    return stored_product(spec, x, y, dtype, sharding), tangent.astype(dtype)
