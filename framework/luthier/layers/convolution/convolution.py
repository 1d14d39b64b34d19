"""Convolutions in one, two or three dimensions.

Shapes: B rows, X spatial dimensions, D dim of the input, F dim of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import FanIn, Initializer, Zeros
from luthier.layers.parameters import DType, biased, parameter, value_of, vector

# Dimension numbers of x, kernel and result, by the number of spatial dimensions.
_LAYOUTS = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


class Convolution(nnx.Module):
    """A convolution `y[t] = sum_k W[k] x[s t + d k - p] + b`, zero outside of x.

    Args:
      kernel_size: Taps in every spatial dimension.
      strides: s; None means 1.
      dilation: d; None means 1.
      padding: Zeros before and after every spatial dimension; None means as many as keep the
        size at stride 1, the odd one after.
      kernel: Initializer of W, which it sees as a matrix (fan in, fan out).
      bias: Initializer of b; None means no bias.
      in_dim: D.
      out_dim: F.
      dtype: Dtype of the computation, and of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> convolution = layers.Convolution(
      ...     kernel_size=(3, 3), in_dim=3, out_dim=16, rngs=nnx.Rngs(0)
      ... )
      >>> convolution(jnp.ones((2, 8, 8, 3))).shape
      (2, 8, 8, 16)

    Source: LeCun et al. 1989, Neural Computation 1(4), section 3; dilation: Yu and Koltun 2015,
      arXiv:1511.07122, equation 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("in_dim", "out_dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"in_dim": "1 <= x", "out_dim": "1 <= x"}

    def __init__(
        self,
        kernel_size: Sequence[int],
        strides: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        kernel: Initializer = FanIn(2.0),
        bias: Initializer | None = None,
        *,
        in_dim: int,
        out_dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        size = tuple(kernel_size)
        self.window = _window(size, strides, dilation, padding)
        self.dtype = dtype
        # Images have few channels, so that only the output is split.
        axes = (*(None for _ in size), None, "embed")
        self.kernel = parameter(kernel, (*size, in_dim), (out_dim,), axes, param_dtype, rngs)
        self.bias = (
            None if bias is None else vector(bias, (out_dim,), ("embed",), param_dtype, rngs)
        )

    def __call__(self, x_BXD: jax.Array) -> jax.Array:
        """Convolve x.

        Args:
          x_BXD: [B, *X, D].

        Returns:
          [B, *Y, F] in `dtype`.
        """
        return _convolve(x_BXD, self.kernel, self.bias, self.window, 1, self.dtype)


class DepthwiseConvolution(nnx.Module):
    """A convolution of every channel c by itself.

    `y[t, c] = sum_k W[k, c] x[s t + d k - p, c] + b[c]`, zero outside of x.

    Args:
      kernel_size: Taps in every spatial dimension.
      strides: s; None means 1.
      dilation: d; None means 1.
      padding: Zeros before and after every spatial dimension; None means as many as keep the
        size at stride 1, the odd one after.
      kernel: Initializer of W, which it sees as a matrix (taps, D).
      bias: Initializer of b; None means no bias.
      dim: D.
      dtype: Dtype of the computation, and of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> convolution = layers.DepthwiseConvolution(kernel_size=(3,), dim=4, rngs=nnx.Rngs(0))
      >>> convolution(jnp.ones((2, 5, 4))).shape
      (2, 5, 4)

    Source: Chollet 2016, arXiv:1610.02357, section 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"dim": "1 <= x"}

    def __init__(
        self,
        kernel_size: Sequence[int],
        strides: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        kernel: Initializer = FanIn(2.0),
        bias: Initializer | None = Zeros(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        size = tuple(kernel_size)
        self.dim = dim
        self.window = _window(size, strides, dilation, padding)
        self.dtype = dtype
        # One input channel for each group, and `dim` groups: XLA's form of a depthwise kernel.
        axes = (*(None for _ in size), None, "embed")
        self.kernel = parameter(kernel, (*size, 1), (dim,), axes, param_dtype, rngs)
        self.bias = None if bias is None else vector(bias, (dim,), ("embed",), param_dtype, rngs)

    def __call__(self, x_BXD: jax.Array) -> jax.Array:
        """Convolve x.

        Args:
          x_BXD: [B, *X, D].

        Returns:
          [B, *Y, D] in `dtype`.
        """
        return _convolve(x_BXD, self.kernel, self.bias, self.window, self.dim, self.dtype)


Window = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]


def _window(
    size: tuple[int, ...],
    strides: Sequence[int] | None,
    dilation: Sequence[int] | None,
    padding: Sequence[tuple[int, int]] | None,
) -> Window:
    """Return strides, dilation and padding in full."""
    ones = (1,) * len(size)
    strides = ones if strides is None else tuple(strides)
    dilation = ones if dilation is None else tuple(dilation)
    if padding is None:
        # Explicit numbers and not "SAME", whose zeros depend on the size of the input at a stride:
        # an image of even and one of odd size would be sampled at other places.
        rims = [d * (k - 1) for k, d in zip(size, dilation, strict=False)]
        padding = [(rim // 2, rim - rim // 2) for rim in rims]
    window = (tuple(strides), tuple(dilation), tuple((before, after) for before, after in padding))
    if len(size) not in _LAYOUTS or any(len(part) != len(size) for part in window):
        what = (
            f"kernel_size {size} with strides {window[0]}, dilation {window[1]}, "
            f"padding {window[2]}"
        )
        raise BadInput(Problem(what, remedy="give 1 to 3 dimensions, and as many to each"))
    return window


def _convolve(
    x_BXD: jax.Array,
    kernel: nnx.Param,
    bias: nnx.Param | None,
    window: Window,
    groups: int,
    dtype: DType,
) -> jax.Array:
    # The bias is added in float32 by `biased`, for the sake of its gradient, a sum over all rows
    # and places.
    strides, dilation, padding = window
    y = jax.lax.conv_general_dilated(
        x_BXD.astype(dtype),
        value_of(kernel, dtype),
        strides,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=_LAYOUTS[len(strides)],
        feature_group_count=groups,
    )
    return y if bias is None else biased(y, bias)
