"""Positions and segments of tokens, rotary embeddings, and vectors added for positions.

Shapes: B rows, L length. Layers take positions from here and never from places in an array, so
that packed rows, caches and rows of one document are the same to them: what Raffel et al. 2019
(arXiv 1910.10683, section 3.5.2) call packing needs no further care.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, Normal
from luthier.layers.parameters import DType, looked_up, vector, wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """The position of each token in its document, and the number of that document in its row.

    Args:
      positions_BL: int32 [B, L], from 0 in every segment.
      segments_BL: int32 [B, L], 0 for padding, 1 and up for the documents of a row.

    Example:
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> print(tokens.positions_BL, tokens.segments_BL)
      [[0 1 2]] [[1 1 1]]

    Source: Raffel et al. 2019, arXiv 1910.10683, section 3.5.2 (several sequences in one row).
    """

    positions_BL: jax.Array
    segments_BL: jax.Array

    @classmethod
    def single(cls, batch_size: int, length: int) -> Tokens:
        """Describe rows that are one document each, without padding.

        Args:
          batch_size: Number of rows, B.
          length: Tokens of each row, L.

        Returns:
          Positions 0, 1, ... and segments 1, int32 [B, L].
        """
        positions_L = jnp.arange(length, dtype=jnp.int32)
        shape = (batch_size, length)
        return cls(jnp.broadcast_to(positions_L, shape), jnp.ones(shape, jnp.int32))


# Rotary positions, and how their frequencies are stretched for longer rows.
#
# Shapes: B rows, L length, H heads, K head_dim.


class RotaryScaling(Protocol):
    """Changes the frequencies of a rotation, so that it reaches further."""

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the changed frequencies, in radians per position, of the same shape and type.

        Args:
          frequencies: Radians per position, float32 [K / 2].

        Returns:
          Radians per position, float32 [K / 2].
        """


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: `w' = w / factor`, as if positions stood closer together.

    Args:
      factor: Factor by which rows become longer.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.LinearScaling(factor=2.0)(jnp.array([1.0, 0.5])))
      [0.5  0.25]

    Source: Chen et al. 2023, arXiv 2306.15595, equation 4.
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x"}
    factor: float

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the frequencies divided by the factor.

        Args:
          frequencies: Radians per position, float32 [K / 2].

        Returns:
          Radians per position, float32 [K / 2].
        """
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Stretches slow rotations by `factor`, keeps fast ones, and blends those between.

    With `r = original_length * w / (2 pi)`, the turns that a frequency makes over the rows of the
    first training, and `s = (r - low) / (high - low)` cut to [0, 1],
    `w' = (1 - s) w / factor + s w`.

    Args:
      factor: Factor by which rows become longer.
      low_frequency_factor: Turns up to which a frequency is stretched whole.
      high_frequency_factor: Turns from which a frequency is kept.
      original_length: Tokens in the rows of the first training.

    Source: Grattafiori et al. 2024, arXiv 2407.21783, section 3.4.2, and the released model code;
      the blend is that of Peng et al. 2023, arXiv 2309.00071, definition 2 ("NTK by parts").
    """

    RANGES: ClassVar[dict[str, str]] = {"factor": "0 < x", "original_length": "1 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("low_frequency_factor < high_frequency_factor",)
    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def __call__(self, frequencies: jax.Array) -> jax.Array:
        """Return the frequencies, slow ones divided by the factor.

        Args:
          frequencies: Radians per position, float32 [K / 2].

        Returns:
          Radians per position, float32 [K / 2].
        """
        turns = self.original_length * frequencies / (2 * jnp.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        smooth = jnp.clip((turns - low) / (high - low), 0.0, 1.0)  # s above
        return (1.0 - smooth) * frequencies / self.factor + smooth * frequencies


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions: the pair `(x_i, x_{i + R/2})` is turned by the angle `p base^(-2i/R)`.

    Args:
      base: Base of the geometric series of frequencies.
      scaling: Changes the frequencies; None keeps them.
      fraction: Part of the head that is turned: the first R = fraction K elements.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> query_BLHK = jnp.ones((1, 3, 2, 4))
      >>> layers.Rotary()(query_BLHK, jnp.arange(3)[None]).shape
      (1, 3, 2, 4)

    Source: Su et al. 2021, arXiv 2104.09864, equations 15 and 34; Black et al. 2022,
      arXiv 2204.06745, section 2.1.1 (a part of the head).

    Deviation: Pairs are half a head apart and not neighbours, as in GPT-NeoX and Llama.
    """

    RANGES: ClassVar[dict[str, str]] = {"base": "0 < x", "fraction": "0 < x <= 1"}
    base: float = 10_000.0
    scaling: RotaryScaling | None = None
    fraction: float = 1.0

    def __call__(self, x_BLHK: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Rotate queries or keys.

        Args:
          x_BLHK: [B, L, H, K]; the part that is turned is even.
          positions_BL: int32 [B, L].

        Returns:
          The same shape and type; the angles are computed in float32 or wider.
        """
        # Angles in float32: bfloat16 cannot represent position 257, and it is the absolute error of
        # an angle that counts. They are computed from positions, not read from a table by place in
        # the array: packed rows and caches have positions of their own.
        half = int(x_BLHK.shape[-1] * self.fraction) // 2
        kind = wide(x_BLHK.dtype)
        frequencies = jnp.asarray(self.base, kind) ** (-jnp.arange(half, dtype=kind) / half)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        angles = (positions_BL[:, :, None].astype(kind) * frequencies)[:, :, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        x = x_BLHK.astype(kind)
        first, second = x[..., :half], x[..., half : 2 * half]
        # [cos -sin; sin cos] on each pair (x_i, x_{i + R/2}); the rest of the head passes.
        turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
        return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)


# Vectors that are added to the embeddings of tokens for their positions.
#
# Shapes: B rows, L length, D embed.


class LearnedPositions(nnx.Module):
    """A learned vector for every position, added to the token's embedding.

    Args:
      max_length: Number of positions.
      table: Initializer of the vectors.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> positions = layers.LearnedPositions(max_length=16, dim=8, rngs=nnx.Rngs(0))
      >>> positions(jnp.array([[0, 1, 2]])).shape
      (1, 3, 8)

    Source: Gehring et al. 2017, arXiv 1705.03122, section 3.1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"max_length": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        max_length: int,
        table: Initializer = Normal(0.02),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.max_length = max_length
        self.dtype = dtype
        self.table = vector(table, (max_length, dim), (None, "embed"), param_dtype, rngs)

    def check_length(self, length: int) -> None:
        """Reject rows that may hold positions without a vector.

        Args:
          length: Length of the rows.

        Raises:
          BadInput: The rows are longer than `max_length`.
        """
        if length > self.max_length:
            what = f"rows of {length} tokens, but only {self.max_length} learned positions"
            raise BadInput(Problem(what, remedy="shorten the rows or raise max_length"))

    def __call__(self, positions_BL: jax.Array) -> jax.Array:
        """Return the vectors of positions.

        Args:
          positions_BL: Positions, int32 [B, L].

        Returns:
          [B, L, D] in `dtype`.
        """
        # Shapes are static, so the check costs nothing at run time. It bounds the positions that
        # a row can hold; one beyond the table (in a cache, say) gets the last vector, not NaN.
        self.check_length(positions_BL.shape[1])
        return looked_up(self.table, positions_BL, self.dtype, beyond="clip")


class Sinusoids(nnx.Module):
    """Sines, then cosines, of wavelengths from `2 pi min_timescale` to `2 pi max_timescale`.

    `x_i = sin(p / t_i)` and `x_{i + D/2} = cos(p / t_i)`, with `t_i` a geometric series of D/2
    numbers that includes both ends; an odd D ends in a zero. No parameters.

    Args:
      min_timescale: The first of the series, in positions.
      max_timescale: The last of the series, in positions.
      dim: D.
      dtype: Type of the result.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.Sinusoids(dim=4)(jnp.array([[0]])))
      [[[0. 0. 1. 1.]]]

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5, as in tensor2tensor and Pax.

    Deviation: From the paper, as in those: halves and not neighbours, and both ends included.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype")
    RANGES: ClassVar[dict[str, str]] = {
        "min_timescale": "0 < x",
        "max_timescale": "0 < x",
        "dim": "2 <= x",
    }
    RELATIONS: ClassVar[tuple[str, ...]] = ("min_timescale < max_timescale",)

    def __init__(
        self,
        min_timescale: float = 1.0,
        max_timescale: float = 10_000.0,
        *,
        dim: int,
        dtype: DType = jnp.float32,
    ):
        self.min_timescale = min_timescale
        self.max_timescale = max_timescale
        self.dim = dim
        self.dtype = dtype

    def __call__(self, positions_BL: jax.Array) -> jax.Array:
        """Return the vectors of positions.

        Args:
          positions_BL: Positions, int32 [B, L].

        Returns:
          [B, L, D] in `dtype`.
        """
        # t_i = min (max / min)^(i / (D/2 - 1)), so the frequencies are 1 / t_i = r^-step / min.
        half = self.dim // 2
        # `max(half - 1, 1)` for D of 2 or 3, whose only frequency is the first.
        ratio = self.max_timescale / jnp.asarray(self.min_timescale, wide(self.dtype))
        steps = jnp.arange(half, dtype=ratio.dtype) / max(half - 1, 1)
        angles_BLF = _angles(positions_BL, ratio**-steps / self.min_timescale)
        halves = jnp.concatenate([jnp.sin(angles_BLF), jnp.cos(angles_BLF)], axis=-1)
        return jnp.pad(halves, ((0, 0), (0, 0), (0, self.dim % 2))).astype(self.dtype)


class InterleavedSinusoids(nnx.Module):
    """Sines and cosines by turns: `x_{2i} = sin(p w_i)`, `x_{2i+1} = cos(p w_i)`.

    The frequencies are `w_i = max_timescale^(-2i/D)`. No parameters.

    Args:
      max_timescale: The end of the series of `1 / w_i`, which is not reached, in positions.
      dim: D.
      dtype: Type of the result.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> print(layers.InterleavedSinusoids(dim=4)(jnp.array([[0]])))
      [[[0. 1. 0. 1.]]]

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype")
    RANGES: ClassVar[dict[str, str]] = {"max_timescale": "0 < x", "dim": "1 <= x"}

    def __init__(self, max_timescale: float = 10_000.0, *, dim: int, dtype: DType = jnp.float32):
        self.max_timescale = max_timescale
        self.dim = dim
        self.dtype = dtype

    def __call__(self, positions_BL: jax.Array) -> jax.Array:
        """Return the vectors of positions.

        Args:
          positions_BL: Positions, int32 [B, L].

        Returns:
          [B, L, D] in `dtype`.
        """
        kind = wide(self.dtype)
        half = -(-self.dim // 2)
        exponents = -2.0 * jnp.arange(half, dtype=kind) / self.dim
        angles_BLF = _angles(positions_BL, jnp.asarray(self.max_timescale, kind) ** exponents)
        pairs = jnp.stack([jnp.sin(angles_BLF), jnp.cos(angles_BLF)], axis=-1)
        x_BLD = pairs.reshape(*positions_BL.shape, -1)
        return x_BLD[..., : self.dim].astype(self.dtype)


def _angles(positions_BL: jax.Array, frequencies: jax.Array) -> jax.Array:
    return positions_BL[:, :, None].astype(frequencies.dtype) * frequencies
