"""The blocks of a residual network, and what stands before the first one.

Shapes: B rows, H height, W width, C channels of the image, D dim of the input, F of the output.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.convolution.convolution import Convolution
from luthier.layers.convolution.norms import BatchNorm
from luthier.layers.initializers import Zeros
from luthier.layers.parameters import DType, Template, create
from luthier.parallel import constrain

IMAGE_AXES = ("batch", "height", "width", "embed")
_LAST_NORM = functools.partial(BatchNorm, scale=Zeros())


class _Residual(nnx.Module):
    """Convolutions with norms, and a way past them; `relu` between and after."""

    INHERITED: ClassVar[tuple[str, ...]] = (
        "in_dim",
        "width",
        "stride",
        "dtype",
        "param_dtype",
        "rngs",
    )
    EXPANSION: ClassVar[int]
    # Taps of the convolutions, and which of them has the stride.
    _TAPS: ClassVar[tuple[int, ...]]
    _STRIDED: ClassVar[int]

    def __init__(
        self,
        norm: Template = BatchNorm,
        last_norm: Template = _LAST_NORM,
        *,
        in_dim: int,
        width: int,
        stride: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        out_dim, last = width * self.EXPANSION, len(self._TAPS) - 1
        # No biases: each convolution is followed by a norm, whose bias would absorb them.
        convolutions, norms, dim = [], [], in_dim
        for i, taps in enumerate(self._TAPS):
            step = stride if i == self._STRIDED else 1
            size = out_dim if i == last else width
            template = _convolution(taps, step)
            convolutions.append(create(template, in_dim=dim, out_dim=size, **kinds))
            norms.append(create(last_norm if i == last else norm, dim=size, **kinds))
            dim = size
        self.convolutions, self.norms = nnx.List(convolutions), nnx.List(norms)
        past: Any = None
        if stride != 1 or in_dim != out_dim:
            past = create(_convolution(1, stride), in_dim=in_dim, out_dim=out_dim, **kinds)
        # Not `last_norm`, whose scale begins at zero: the block begins as its shortcut, not zero.
        self.shortcut = past
        self.shortcut_norm: Any = None if past is None else create(norm, dim=out_dim, **kinds)

    def __call__(self, x_BHWD: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Apply the block.

        Args:
          x_BHWD: [B, H, W, D].
          weights_B: Handed on to the norms: weights of the rows in training, None in evaluation.

        Returns:
          [B, H / stride, W / stride, F].
        """
        y = x_BHWD
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(jax.nn.relu(y) if i else y), weights_B)
        if self.shortcut is not None:
            x_BHWD = self.shortcut_norm(self.shortcut(x_BHWD), weights_B)
        return constrain(jax.nn.relu(x_BHWD + y), IMAGE_AXES)


class BasicBlock(_Residual):
    """Two convolutions of 3 x 3; the first has the stride.

    Args:
      norm: Template of the norms.
      last_norm: Template of the norm before the sum; at a scale of 0 a block starts as identity.
      in_dim: D.
      width: F.
      stride: Of the block; where it is not 1, or D is not F, the way past is a convolution too.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: He et al. 2015, arXiv:1512.03385, figure 5 left; the scale of 0: Goyal et al. 2017,
      arXiv:1706.02677, section 5.1.
    """

    EXPANSION: ClassVar[int] = 1
    _TAPS: ClassVar[tuple[int, ...]] = (3, 3)
    _STRIDED: ClassVar[int] = 0


class BottleneckBlock(_Residual):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, the last to four times the width.

    Args:
      norm: Template of the norms.
      last_norm: Template of the norm before the sum; at a scale of 0 a block starts as identity.
      in_dim: D.
      width: F / 4.
      stride: Of the block; where it is not 1, or D is not F, the way past is a convolution too.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: He et al. 2015, arXiv:1512.03385, figure 5 right; the scale of 0: Goyal et al. 2017,
      arXiv:1706.02677, section 5.1.
    Deviation: The stride is in the 3 x 3 convolution and not in the first one ("v1.5"), as is
      usual since.
    """

    EXPANSION: ClassVar[int] = 4
    _TAPS: ClassVar[tuple[int, ...]] = (1, 3, 1)
    _STRIDED: ClassVar[int] = 1


class _Stem(nnx.Module):
    """A convolution, norm and relu; subclasses say of what size."""

    INHERITED: ClassVar[tuple[str, ...]] = ("in_dim", "out_dim", "dtype", "param_dtype", "rngs")
    _TAPS: ClassVar[int]
    _STRIDE: ClassVar[int]

    def __init__(
        self,
        norm: Template = BatchNorm,
        *,
        in_dim: int,
        out_dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        convolution = _convolution(self._TAPS, self._STRIDE)
        self.convolution = create(convolution, in_dim=in_dim, out_dim=out_dim, **kinds)
        self.norm = create(norm, dim=out_dim, **kinds)

    def __call__(self, x_BHWC: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Map images.

        Args:
          x_BHWC: [B, H, W, C].
          weights_B: Handed on to the norm: weights of the rows in training, None in evaluation.

        Returns:
          [B, H / stride, W / stride, F].
        """
        x = jax.nn.relu(self.norm(self.convolution(x_BHWC), weights_B))
        return constrain(x, IMAGE_AXES)


class LargeStem(_Stem):
    """A convolution of 7 x 7 at stride 2, norm, relu, and the largest of 3 x 3 at stride 2.

    Args:
      norm: Template of the norm.
      in_dim: C.
      out_dim: F.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: He et al. 2015, arXiv:1512.03385, table 1.
    """

    _TAPS: ClassVar[int] = 7
    _STRIDE: ClassVar[int] = 2

    def __call__(self, x_BHWC: jax.Array, weights_B: jax.Array | None = None) -> jax.Array:
        """Map images to a quarter of their size.

        Args:
          x_BHWC: Images [B, H, W, C].
          weights_B: Weights of the rows [B]; a row of weight 0 is padding. None means evaluation.

        Returns:
          [B, H / 4, W / 4, F].
        """
        x = super().__call__(x_BHWC, weights_B)
        rim = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), rim)
        return constrain(x, IMAGE_AXES)


class SmallStem(_Stem):
    """A convolution of 3 x 3, norm and relu, for images of few pixels.

    Args:
      norm: Template of the norm.
      in_dim: C.
      out_dim: F.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: He et al. 2015, arXiv:1512.03385, section 4.2.
    """

    _TAPS: ClassVar[int] = 3
    _STRIDE: ClassVar[int] = 1


def _convolution(taps: int, stride: int) -> Any:
    """A square convolution with as many zeros on both sides, so that strides start at the rim."""
    rim = taps // 2
    return functools.partial(
        Convolution, (taps, taps), strides=(stride, stride), padding=((rim, rim), (rim, rim))
    )
