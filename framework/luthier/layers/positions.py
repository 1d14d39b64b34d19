"""Where a token stands, told to the model.

Shapes: B rows, L length, D embed, H heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers.initializers import Initializer, Normal
from luthier.layers.parameters import DType, vector, wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """Which document of its row each token belongs to, and where it stands in it.

    Args:
      positions_BL: int32 [B, L], from 0 in every segment.
      segments_BL: int32 [B, L], 0 for padding, 1 and up for the documents of a row.
    """

    positions_BL: jax.Array
    segments_BL: jax.Array

    @classmethod
    def single(cls, batch_size: int, length: int) -> Tokens:
        """Describe rows that are one document each, without padding."""
        positions_L = jnp.arange(length, dtype=jnp.int32)
        shape = (batch_size, length)
        return cls(jnp.broadcast_to(positions_L, shape), jnp.ones(shape, jnp.int32))


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions: the pair `(x_i, x_{i + K/2})` is turned by the angle `p base^(-2i/K)`.

    Args:
      base: Base of the geometric series of frequencies.

    Source: Su et al. 2021, arXiv 2104.09864, equations 15 and 34.
    Deviation: Pairs are half a head apart and not neighbours, as in GPT-NeoX and Llama.
    """

    RANGES: ClassVar[dict[str, str]] = {"base": "0 < x"}
    base: float = 10_000.0

    def __call__(self, x_BLHK: jax.Array, positions_BL: jax.Array) -> jax.Array:
        """Rotate queries or keys.

        Args:
          x_BLHK: [B, L, H, K], K even.
          positions_BL: int32 [B, L].

        Returns:
          The same shape and type; the angles are computed in float32 or wider.
        """
        half = x_BLHK.shape[-1] // 2
        kind = wide(x_BLHK.dtype)
        frequencies = jnp.asarray(self.base, kind) ** (-jnp.arange(half, dtype=kind) / half)
        angles = (positions_BL[:, :, None].astype(kind) * frequencies)[:, :, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        x = x_BLHK.astype(kind)
        first, second = x[..., :half], x[..., half:]
        turned = (first * cos - second * sin, second * cos + first * sin)
        return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)


class LearnedPositions(nnx.Module):
    """A learned vector for every position, added to the token's embedding.

    Args:
      max_length: Number of positions.
      table: Initializer of the vectors.
      dim: D.
      dtype: Type of the result.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.
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
        return self.table[...].astype(self.dtype)[positions_BL]
