"""Residual blocks: attention and feed-forward, wired into a layer.

Shapes: B rows, L length, D embed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.attention.biases import Bias
from luthier.layers.attention.multi_head import KeyValues
from luthier.layers.dropout import DropoutKeys, fold
from luthier.layers.experts import feed_forward
from luthier.layers.parameters import DType, Template, create
from luthier.layers.positions import Tokens
from luthier.parallel import RESIDUAL_AXES, constrain, gather_length

# Returns the result of the attention, and its cache or None.
_Attend = Callable[[jax.Array], tuple[jax.Array, Any]]


class Block(Protocol):
    """One layer of a decoder.

    A decoder that has a bias hands it to its blocks as the keyword `bias`, to both methods.
    """

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Apply the layer.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          dropout: Keys of the tokens at this site; None means no dropout.

        Returns:
          [B, L, D] in the type of x.
        """

    def init_cache(self, batch_size: int, length: int) -> object:
        """Make an empty cache.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.

        Returns:
          The cache, a pytree.
        """

    def decode(
        self, x_BLD: jax.Array, tokens: Tokens, cache: object, cached: Tokens, start: jax.Array
    ) -> tuple[jax.Array, object]:
        """Apply the layer to new tokens.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          cache: The result of `init_cache` or of the last call.
          cached: Positions and segments of the S places of the cache, the new tokens included.
          start: The place of the first new token, an int32 scalar.

        Returns:
          [B, L, D] and the cache with the new tokens.
        """


class _Residual(nnx.Module):
    """Base of the blocks: their parts, the calls of these, and the sum with the residual.

    Args:
      attention: Template of the attention.
      mlp: Template of the feed-forward part.
      norm: Template of the norms.
      dropout: Template of the dropout on both parts; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    # Norms before or after each part, by name, made in this order around the part.
    _BEFORE: ClassVar[tuple[str, ...]] = ()
    _AFTER: ClassVar[tuple[str, ...]] = ()

    attention: Any
    mlp: Any

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
        # The order in which parts are made decides the keys of their parameters: norms before a
        # part come first, then the part, then norms after it.
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        for part, template in (("attention", attention), ("mlp", mlp)):
            for name in self._BEFORE:
                setattr(self, name.format(part), create(norm, **inherited))
            setattr(self, part, create(template, **inherited))
            for name in self._AFTER:
                setattr(self, name.format(part), create(norm, **inherited))
        self.dropout = None if dropout is None else create(dropout, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Apply the layer.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the tokens.
          dropout: Keys of this layer; None means no dropout.
          bias: Makes the bias of the attention's scores; None means no bias.

        Returns:
          The same shape and type.
        """

        def attend(x_BLD: jax.Array) -> tuple[jax.Array, None]:
            return self.attention(x_BLD, tokens, fold(dropout, 2), bias), None

        return self._wire(x_BLD, attend, tokens, dropout)[0]

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
        """Apply the layer to new tokens; see `Attention.decode`."""

        def attend(x_BLD: jax.Array) -> tuple[jax.Array, KeyValues]:
            return self.attention.decode(x_BLD, tokens, cache, cached, start, bias)

        return self._wire(x_BLD, attend, tokens, None)

    def _wire(
        self, x_BLD: jax.Array, attend: _Attend, tokens: Tokens, dropout: DropoutKeys | None
    ) -> tuple[jax.Array, Any]:
        """Run both parts one after the other, each with its norms and the residual around it."""
        # Sites of dropout: 0 and 1 the sums, 2 within the attention, 3 within the mlp. Different
        # numbers, or two masks of a token would be equal.
        part_BLD, left = attend(self._read("attention", x_BLD))
        part_BLD = self._normed("attention", self._AFTER, part_BLD)
        x_BLD = self._add(x_BLD, part_BLD, dropout, 0)
        part_BLD = self._fed(self._read("mlp", x_BLD), tokens, dropout)
        part_BLD = self._normed("mlp", self._AFTER, part_BLD)
        return self._add(x_BLD, part_BLD, dropout, 1), left

    def _fed(self, x_BLD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None) -> jax.Array:
        return feed_forward(self.mlp, x_BLD, tokens, fold(dropout, 3))

    def _read(self, part: str, x_BLD: jax.Array) -> jax.Array:
        """Return what a part of the layer reads of the residual stream."""
        return gather_length(self._normed(part, self._BEFORE, x_BLD))

    def _normed(self, part: str, names: tuple[str, ...], x_BLD: jax.Array) -> jax.Array:
        for name in names:
            x_BLD = getattr(self, name.format(part))(x_BLD)
        return x_BLD

    def _add(
        self, x_BLD: jax.Array, part_BLD: jax.Array, dropout: DropoutKeys | None, site: int
    ) -> jax.Array:
        if self.dropout is not None:
            part_BLD = self.dropout(part_BLD, fold(dropout, site))
        # The residual stream keeps its type, that of the embedding, whatever a part computes in.
        return constrain(x_BLD + part_BLD.astype(x_BLD.dtype), RESIDUAL_AXES)


class PreNormBlock(_Residual):
    """A transformer layer, normalized before each part.

    `x += dropout(attention(norm(x)))`, then `x += dropout(mlp(norm(x)))`.

    Args:
      attention: Template of the attention.
      mlp: Template of the feed-forward part.
      norm: Template of both norms.
      dropout: Template of the dropout on both parts; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import functools
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> block = layers.PreNormBlock(
      ...     attention=functools.partial(layers.Attention, num_heads=2),
      ...     mlp=functools.partial(layers.Mlp, hidden_dim=16),
      ...     norm=layers.RMSNorm,
      ...     dim=8,
      ...     rngs=nnx.Rngs(0),
      ... )
      >>> block(jnp.ones((1, 3, 8)), tokens).shape
      (1, 3, 8)

    Source: Xiong et al. 2020, arXiv 2002.04745, figure 1(b).
    """

    _BEFORE: ClassVar[tuple[str, ...]] = ("{}_norm",)


class BranchNormBlock(_Residual):
    """A transformer layer, normalized after each part and inside of its residual branch.

    `x += dropout(norm(attention(x)))`, then `x += dropout(norm(mlp(x)))`. Arguments as for
    `PreNormBlock`.

    Source: Liu et al. 2021, arXiv 2111.09883, section 3.2; OLMo et al. 2024, arXiv 2501.00656,
      section 3.3.2.
    """

    _AFTER: ClassVar[tuple[str, ...]] = ("{}_norm",)


class SandwichBlock(_Residual):
    """A transformer layer, normalized before and after each part, inside of its residual branch.

    `x += dropout(norm'(attention(norm(x))))`, then `x += dropout(norm'(mlp(norm(x))))`. Arguments
    as for `PreNormBlock`; the four norms have one template.

    Source: Ding et al. 2021, arXiv 2105.13290, section 2.4; Gemma Team 2024, arXiv 2408.00118,
      section 2.
    """

    _BEFORE: ClassVar[tuple[str, ...]] = ("{}_norm",)
    _AFTER: ClassVar[tuple[str, ...]] = ("{}_post_norm",)


class PostNormBlock(_Residual):
    """A transformer layer as it first was: each sum with the residual is normalized.

    `x = norm(x + dropout(attention(x)))`, then `x = norm(x + dropout(mlp(x)))`. Arguments as for
    `PreNormBlock`.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1.
    """

    _AFTER: ClassVar[tuple[str, ...]] = ("{}_norm",)

    def _wire(
        self, x_BLD: jax.Array, attend: _Attend, tokens: Tokens, dropout: DropoutKeys | None
    ) -> tuple[jax.Array, Any]:
        # The residual stream itself passes through the norms here, so it takes their type; it is
        # cast back, because the carry of a scan over layers must keep its type.
        kind = x_BLD.dtype
        part_BLD, left = attend(gather_length(x_BLD))
        x_BLD = self._normed("attention", self._AFTER, self._add(x_BLD, part_BLD, dropout, 0))
        part_BLD = self._fed(gather_length(x_BLD), tokens, dropout)
        x_BLD = self._add(x_BLD.astype(kind), part_BLD, dropout, 1)
        return self._normed("mlp", self._AFTER, x_BLD).astype(kind), left


class ParallelBlock(_Residual):
    """A transformer layer whose parts see the same input.

    `n = norm(x)`, then `x += dropout(attention(n)) + dropout(mlp(n))`. One norm serves both parts.

    Args:
      attention: Template of the attention.
      mlp: Template of the feed-forward part.
      norm: Template of the norm.
      dropout: Template of the dropout on both parts; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Black et al. 2022, arXiv 2204.06745, section 2.1.2; Chowdhery et al. 2022,
      arXiv 2204.02311, section 2 (one norm).
    """

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
        # `_BEFORE` and `_AFTER` are empty here: the one norm belongs to neither part.
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.norm = create(norm, **inherited)
        super().__init__(attention, mlp, norm, dropout, **inherited)

    def _wire(
        self, x_BLD: jax.Array, attend: _Attend, tokens: Tokens, dropout: DropoutKeys | None
    ) -> tuple[jax.Array, Any]:
        # Both parts read `normed`, not the sum after the first: they do not depend on each other,
        # and the compiler may run their products side by side.
        normed_BLD = gather_length(self.norm(x_BLD))
        part_BLD, left = attend(normed_BLD)
        x_BLD = self._add(x_BLD, part_BLD, dropout, 0)
        return self._add(x_BLD, self._fed(normed_BLD, tokens, dropout), dropout, 1), left
