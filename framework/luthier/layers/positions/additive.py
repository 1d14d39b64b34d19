"""Vectors that are added to the embeddings of tokens for their positions.

Shapes: B rows, L length, D embed.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, Normal
from luthier.layers.parameters import DType, looked_up, vector, wide


class LearnedPositions(nnx.Module):
    """A learned vector for every position, added to the token's embedding.

    Args:
      max_length: Number of positions.
      table: Initializer of the vectors.
      dim: D.
      dtype: Type of the result.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

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
        """Refuse rows that may hold positions which have no vector.

        Args:
          length: Length of the rows.

        Raises:
          BadInput: The rows are longer than `max_length`.
        """
        if length > self.max_length:
            what = f"rows of {length} tokens, but only {self.max_length} learned positions"
            raise BadInput(Problem(what, remedy="shorten the rows or raise max_length"))

    def __call__(self, positions_BL: jax.Array) -> jax.Array:
        """Return the vectors of positions [B, L] as [B, L, D]."""
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
        """Return the vectors of positions [B, L] as [B, L, D]."""
        half = self.dim // 2
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

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype")
    RANGES: ClassVar[dict[str, str]] = {"max_timescale": "0 < x", "dim": "1 <= x"}

    def __init__(self, max_timescale: float = 10_000.0, *, dim: int, dtype: DType = jnp.float32):
        self.max_timescale = max_timescale
        self.dim = dim
        self.dtype = dtype

    def __call__(self, positions_BL: jax.Array) -> jax.Array:
        """Return the vectors of positions [B, L] as [B, L, D]."""
        kind = wide(self.dtype)
        half = -(-self.dim // 2)
        exponents = -2.0 * jnp.arange(half, dtype=kind) / self.dim
        angles_BLF = _angles(positions_BL, jnp.asarray(self.max_timescale, kind) ** exponents)
        pairs = jnp.stack([jnp.sin(angles_BLF), jnp.cos(angles_BLF)], axis=-1)
        x_BLD = pairs.reshape(*positions_BL.shape, -1)
        return x_BLD[..., : self.dim].astype(self.dtype)


def _angles(positions_BL: jax.Array, frequencies: jax.Array) -> jax.Array:
    return positions_BL[:, :, None].astype(frequencies.dtype) * frequencies
