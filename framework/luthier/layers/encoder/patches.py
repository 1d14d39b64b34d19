"""Images as rows of patches, and rows of patches as one vector.

Shapes: B rows, H image height, W image width, C channels, N patches, P numbers in a patch,
T = B N, L tokens, D embed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.dropout import DropoutKeys
from luthier.layers.initializers import FanIn, Initializer, Normal, Zeros
from luthier.layers.parameters import (
    DType,
    Template,
    biased,
    create,
    parameter,
    value_of,
    vector,
    wide,
)
from luthier.parallel import RESIDUAL_AXES, constrain


class PatchEmbedding(nnx.Module):
    """Cuts images into patches, maps each by one linear map, and adds a learned position.

    `x_n = W patch_n + b + e_n`, patches counted along rows first: a convolution whose stride is the
    size of its kernel. Tokens in front of the patches get positions too.

    Args:
      image_size: Height and width of the images in pixels.
      patch_size: Height and width of a patch in pixels, which divide those of the image.
      num_channels: C.
      kernel: Initializer of W, which it sees as a matrix (fan in, fan out).
      bias: Initializer of b; None means no bias.
      positions: Initializer of e.
      dropout: Template of the dropout on the sum; None means none.
      num_tokens: Number of tokens in front of the patches.
      dim: D.
      dtype: Dtype of the computation, and of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Raises:
      BadInput: The patches do not fill the image.

    Example:
      >>> from flax import nnx
      >>> from luthier import layers
      >>> patches = layers.PatchEmbedding(
      ...     image_size=(8, 8), patch_size=(4, 4), num_tokens=4, dim=16, rngs=nnx.Rngs(0)
      ... )
      >>> patches.kernel.shape
      (4, 4, 3, 16)

    Source: Dosovitskiy et al. 2020, arXiv 2010.11929, equation 1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("num_tokens", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_channels": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        image_size: Sequence[int],
        patch_size: Sequence[int],
        num_channels: int = 3,
        kernel: Initializer = FanIn(),
        bias: Initializer | None = Zeros(),
        positions: Initializer = Normal(0.02),
        dropout: Template | None = None,
        *,
        num_tokens: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.image_size = tuple(image_size)
        self.patch_size = tuple(patch_size)
        self.num_channels = num_channels
        self.dtype = dtype
        _check_grid(self.image_size, self.patch_size)
        # The kernel is stored as that of a convolution, [height, width, C, D], and is initialized
        # as the matrix (height width C, D).
        axes = (None, None, None, "embed")
        inputs = (*self.patch_size, num_channels)
        rows = (num_tokens + math.prod(self.grid), dim)
        self.kernel = parameter(kernel, inputs, (dim,), axes, param_dtype, rngs)
        self.bias = None if bias is None else vector(bias, (dim,), ("embed",), param_dtype, rngs)
        self.positions = vector(positions, rows, (None, "embed"), param_dtype, rngs)
        self.dropout = None if dropout is None else create(dropout, dim=dim, dtype=dtype, rngs=rngs)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of patches down and across an image."""
        (height, width), (patch_height, patch_width) = self.image_size, self.patch_size
        return height // patch_height, width // patch_width

    def __call__(
        self,
        images_BHWC: jax.Array,
        prepend: Callable[[jax.Array], jax.Array],
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Embed images.

        Args:
          images_BHWC: [B, H, W, C] of the module's size.
          prepend: Puts further tokens in front of the patches, [B, N, D] to [B, L, D].
          dropout: Keys of the tokens; None means no dropout.

        Returns:
          [B, L, D] in `dtype`.

        Raises:
          BadInput: The images have another size.
        """
        x_BLD = biased(prepend(self._patches(images_BHWC)), self.positions)
        if self.dropout is not None:
            x_BLD = self.dropout(x_BLD, dropout)
        return constrain(x_BLD, RESIDUAL_AXES)

    def _patches(self, images_BHWC: jax.Array) -> jax.Array:
        B, *found = images_BHWC.shape
        expected = [*self.image_size, self.num_channels]
        if found != expected:
            what = f"images of height, width, channels {found}, but the model is for {expected}"
            raise BadInput(Problem(what, remedy="set image_size and num_channels, or resize"))
        # [B, rows, height, columns, width, C] -> [B, rows, columns, height, width, C]: after the
        # swap a patch is contiguous, and flattens to the order of the kernel's input dimensions.
        (height, width), (rows, columns) = self.patch_size, self.grid
        cut = images_BHWC.astype(self.dtype).reshape(B, rows, height, columns, width, -1)
        kernel = value_of(self.kernel, self.dtype)
        kernel_PD = kernel.reshape(-1, kernel.shape[-1])
        # A matrix product, not a tensor product: see `Linear`.
        patches_TP = cut.swapaxes(2, 3).reshape(-1, kernel_PD.shape[0])
        x_BND = (patches_TP @ kernel_PD).reshape(B, rows * columns, -1)
        return x_BND if self.bias is None else biased(x_BND, self.bias)


class Pooling(Protocol):
    """Makes one vector of the tokens of a row, and may add tokens of its own to do so."""

    num_tokens: int

    def prepend(self, x_BND: jax.Array) -> jax.Array:
        """Return the row with the pooling's own tokens in front.

        Args:
          x_BND: Patches [B, N, D].

        Returns:
          [B, M + N, D], with M tokens in front.
        """

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return one vector for each row, [B, D].

        Args:
          x_BLD: [B, L, D].

        Returns:
          [B, D].
        """


class ClassToken(nnx.Module):
    """A learned token in front of each row, whose last state stands for the row.

    Args:
      token: Initializer of the token.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> token = layers.ClassToken(dim=8, rngs=nnx.Rngs(0))
      >>> token.prepend(jnp.ones((2, 4, 8))).shape
      (2, 5, 8)

    Source: Dosovitskiy et al. 2020, arXiv 2010.11929, equations 1 and 4.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"dim": "1 <= x"}

    def __init__(
        self,
        token: Initializer = Zeros(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_tokens = 1
        self.dtype = dtype
        self.token = vector(token, (dim,), ("embed",), param_dtype, rngs)

    def prepend(self, x_BND: jax.Array) -> jax.Array:
        """Return the row with the class token in front.

        Args:
          x_BND: Patches [B, N, D].

        Returns:
          [B, 1 + N, D].
        """
        B, _, D = x_BND.shape
        token_1D = value_of(self.token, wide(self.dtype))  # the gradient sums over B: in float32
        token_B1D = jnp.broadcast_to(token_1D, (B, 1, D)).astype(self.dtype)
        return jnp.concatenate([token_B1D, x_BND], axis=1)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the state of the token, [B, D].

        Args:
          x_BLD: [B, L, D].

        Returns:
          [B, D].
        """
        return x_BLD[:, 0]


class MeanPool(nnx.Module):
    """The mean over the patches, without a token of its own.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> layers.MeanPool()(jnp.ones((2, 4, 8))).shape
      (2, 8)

    Source: Beyer, Zhai and Kolesnikov 2022, arXiv 2205.01580, section 2 (in place of the token).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.num_tokens = 0

    def prepend(self, x_BND: jax.Array) -> jax.Array:
        """Return the patches as they are.

        Args:
          x_BND: Patches [B, N, D].

        Returns:
          [B, N, D].
        """
        return x_BND

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the mean over the tokens, [B, D].

        Args:
          x_BLD: [B, L, D].

        Returns:
          [B, D].
        """
        return x_BLD.mean(1)


def _check_grid(image_size: Sequence[int], patch_size: Sequence[int]) -> None:
    problems = []
    for name, size in (("image_size", image_size), ("patch_size", patch_size)):
        if len(size) != 2 or math.prod(size) < 1:
            problems.append(Problem(f"{name} is {size}, not a height and a width >= 1"))
    if not problems and any(a % b for a, b in zip(image_size, patch_size, strict=True)):
        what = f"patches of {tuple(patch_size)} do not fill images of {tuple(image_size)} pixels"
        raise BadInput(Problem(what, remedy="make each image size a multiple of its patch size"))
    if problems:
        raise BadInput(problems)
