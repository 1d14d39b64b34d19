"""Attention with a bias of its own, where others have one for all layers.

Shapes: B rows, L length, D embed, H heads, S keys.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.attention.biases import Bias
from luthier.layers.attention.multi_head import KeyValues
from luthier.layers.dropout import DropoutKeys
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens


class OwnBias(nnx.Module):
    """Attention to whose scores this layer alone adds a bias, such as `RelativeBias`.

    A bias that the decoder has for all layers is added as well.

    Args:
      attention: Template of the attention, such as `Attention`.
      bias: Template of the bias.
      dim: D.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Source: Du et al. 2021, arXiv 2112.06905, section 4 (relative positions by layer).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        attention: Template,
        bias: Template,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.attention = create(attention, **inherited)
        self.bias = create(bias, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Attend within the rows; see `Attention`. Returns [B, L, D]."""
        return self.attention(x_BLD, tokens, dropout, self._with(bias))

    def init_cache(self, batch_size: int, length: int) -> KeyValues:
        """Make an empty cache for `length` tokens in each row."""
        return self.attention.init_cache(batch_size, length)

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        cache: KeyValues,
        cached: Tokens,
        start: jax.Array,
        bias: Bias | None = None,
    ) -> tuple[jax.Array, KeyValues]:
        """Attend from new tokens to all that came before; see `Attention.decode`."""
        return self.attention.decode(x_BLD, tokens, cache, cached, start, self._with(bias))

    def _with(self, shared: Bias | None) -> Any:
        if shared is None:
            return self.bias
        return lambda query, key: self.bias(query, key) + shared(query, key)
