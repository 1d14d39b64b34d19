"""Residual blocks: attention and feed-forward, wired into a layer.

Shapes: B rows, L length, D embed.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.attention.multi_head import KeyValues
from luthier.layers.dropout import DropoutKeys, fold
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens
from luthier.parallel import constrain

RESIDUAL_AXES = ("batch", "length", "embed")


class Block(Protocol):
    """One layer of a decoder."""

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Map x [B, L, D] to the same shape and type."""

    def init_cache(self, batch_size: int, length: int) -> object:
        """Make an empty cache, a pytree, for `length` tokens in each row."""

    def decode(
        self, x_BLD: jax.Array, tokens: Tokens, cache: object, cached: Tokens, start: jax.Array
    ) -> tuple[jax.Array, object]:
        """Map the new tokens, given the cache; return them and the changed cache."""


class PreNormBlock(nnx.Module):
    """A transformer layer, normalized before each part.

    `x += dropout(attention(norm(x)))`, then `x += dropout(mlp(norm(x)))`.

    Args:
      attention: Template of the attention.
      mlp: Template of the feed-forward part.
      norm: Template of both norms.
      dropout: Template of the dropout on both parts; None means none.
      dim: D.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: Xiong et al. 2020, arXiv 2002.04745, figure 1(b).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        attention: Template,
        mlp: Template,
        norm: Template,
        dropout: Template | None = None,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.attention_norm = create(norm, **inherited)
        self.attention = create(attention, **inherited)
        self.mlp_norm = create(norm, **inherited)
        self.mlp = create(mlp, **inherited)
        self.dropout = None if dropout is None else create(dropout, **inherited)

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Apply the layer.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the tokens.
          dropout: Keys of this layer; None means no dropout.

        Returns:
          The same shape and type.
        """
        x_BLD = self._add(x_BLD, self.attention(self.attention_norm(x_BLD), tokens), dropout, 0)
        return self._add(x_BLD, self.mlp(self.mlp_norm(x_BLD)), dropout, 1)

    def init_cache(self, batch_size: int, length: int) -> KeyValues:
        """Make an empty cache for `length` tokens in each row."""
        return self.attention.init_cache(batch_size, length)

    def decode(
        self, x_BLD: jax.Array, tokens: Tokens, cache: KeyValues, cached: Tokens, start: jax.Array
    ) -> tuple[jax.Array, KeyValues]:
        """Apply the layer to new tokens; see `Attention.decode`."""
        normed_BLD = self.attention_norm(x_BLD)
        part_BLD, cache = self.attention.decode(normed_BLD, tokens, cache, cached, start)
        x_BLD = self._add(x_BLD, part_BLD, None, 0)
        return self._add(x_BLD, self.mlp(self.mlp_norm(x_BLD)), None, 1), cache

    def _add(
        self, x_BLD: jax.Array, part_BLD: jax.Array, dropout: DropoutKeys | None, site: int
    ) -> jax.Array:
        if self.dropout is not None:
            part_BLD = self.dropout(part_BLD, fold(dropout, site))
        return constrain(x_BLD + part_BLD.astype(x_BLD.dtype), RESIDUAL_AXES)
