"""A projection of its own for queries, where attention has one template for all three."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

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


def query_and_others(
    query: Template,
    others: Template,
    *,
    inputs: Sequence[int],
    outputs: Sequence[int],
    input_axes: Sequence[str | None],
    output_axes: Sequence[str | None],
    dtype: DType = jnp.float32,
    param_dtype: DType = jnp.float32,
    rngs: nnx.Rngs,
) -> Any:
    """Make the projection of queries from one template, those of keys and values from another.

    T5 needs it: its scores are not scaled, so the kernel of its queries starts smaller, with a
    variance of `1 / (D K)`.

    Args:
      query: Template of the query map, which gives `heads`.
      others: Template of the key and value maps, which give `kv_heads`.
      inputs: Sizes of the input dimensions.
      outputs: Sizes of the output dimensions.
      input_axes: Logical axis names of the input dimensions.
      output_axes: Logical axis names of the output dimensions, which distinguish the projections.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Returns:
      The projection: that of `query` where the outputs are `heads`, otherwise that of `others`.

    Source: Raffel et al. 2019, arXiv 1910.10683, and the initializers of its published program.
    """
    return create(
        query if output_axes[0] == "heads" else others,
        inputs=inputs,
        outputs=outputs,
        input_axes=input_axes,
        output_axes=output_axes,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
    )


# The arguments that its caller passes, as modules declare them in their class. `setattr`, because
# mypy knows no attributes of functions.
setattr(  # noqa: B010
    query_and_others,
    "INHERITED",
    ("inputs", "outputs", "input_axes", "output_axes", "dtype", "param_dtype", "rngs"),
)


# A layer of a decoder that also looks at an encoded source.
#
# Shapes: B rows, L length, S source length, D embed.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoded:
    """A source as the decoder sees it.

    Args:
      states_BSD: The encoder's output, [B, S, D].
      tokens: Positions and segments of its tokens.
    """

    states_BSD: jax.Array
    tokens: Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossCache:
    """The cache of a layer of a decoder with a source.

    Args:
      own: Keys and values of the target's tokens so far.
      source: Keys and values of the source.
    """

    own: KeyValues
    source: KeyValues


class PreNormCrossBlock(nnx.Module):
    """A decoder's layer, normalized before each part.

    `x += dropout(attention(norm(x)))`, `x += dropout(cross_attention(norm(x), source))`,
    `x += dropout(mlp(norm(x)))`.

    Args:
      attention: Template of the attention within the target, causal.
      cross_attention: Template of the attention to the source, such as `CrossAttention`.
      mlp: Template of the feed-forward part.
      norm: Template of the three norms.
      dropout: Template of the dropout on each part; None means none.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Raffel et al. 2019,
      arXiv 1910.10683, section 2.1 (norms before each part).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        attention: Template,
        cross_attention: Template,
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
        self.cross_norm = create(norm, **inherited)
        self.cross_attention = create(cross_attention, **inherited)
        self.mlp_norm = create(norm, **inherited)
        self.mlp = create(mlp, **inherited)
        self.dropout = None if dropout is None else create(dropout, **inherited)

    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        source: Encoded,
        dropout: DropoutKeys | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Apply the layer.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments of the target's tokens.
          source: The encoded source.
          dropout: Keys of this layer; None means no dropout.
          bias: Makes the bias of the scores within the target; None means no bias.

        Returns:
          The same shape and type as x.
        """
        # Sites of dropout: 0 to 2 the three sums, 3 and 4 within the attentions, 5 the mlp.
        normed_BLD = gather_length(self.attention_norm(x_BLD))
        part_BLD = self.attention(normed_BLD, tokens, fold(dropout, 3), bias)
        x_BLD = self._add(x_BLD, part_BLD, dropout, 0)
        memory = self.cross_attention.remember(source.states_BSD)
        return self._finish(x_BLD, tokens, memory, source.tokens, dropout)

    def init_cache(self, batch_size: int, length: int, source: Encoded) -> CrossCache:
        """Make a cache for `length` tokens in each of `batch_size` rows, given their `source`.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.
          source: The encoded source.

        Returns:
          The cache of the target, and keys and values of the source.
        """
        own = self.attention.init_cache(batch_size, length)
        return CrossCache(own, self.cross_attention.remember(source.states_BSD))

    def decode(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        source: Tokens,
        cache: CrossCache,
        cached: Tokens,
        start: jax.Array,
        bias: Bias | None = None,
    ) -> tuple[jax.Array, CrossCache]:
        """Apply the layer to new tokens; see `Attention.decode`.

        Args:
          x_BLD: [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          source: Positions and segments of the source's tokens.
          cache: The result of `init_cache` or of the last call.
          cached: Positions and segments of the S places of the cache, the new tokens included.
          start: The place of the first new token, an int32 scalar.
          bias: Makes the bias that is added to the scores; None means no bias.

        Returns:
          [B, L, D] and the cache with the new tokens.
        """
        normed_BLD = gather_length(self.attention_norm(x_BLD))
        part_BLD, own = self.attention.decode(normed_BLD, tokens, cache.own, cached, start, bias)
        x_BLD = self._add(x_BLD, part_BLD, None, 0)
        x_BLD = self._finish(x_BLD, tokens, cache.source, source, None)
        return x_BLD, CrossCache(own, cache.source)

    def _finish(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        memory: KeyValues,
        source: Tokens,
        dropout: DropoutKeys | None,
    ) -> jax.Array:
        part_BLD = self.cross_attention(
            gather_length(self.cross_norm(x_BLD)), tokens, memory, source, fold(dropout, 4)
        )
        x_BLD = self._add(x_BLD, part_BLD, dropout, 1)
        keys = fold(dropout, 5)
        normed_BLD = gather_length(self.mlp_norm(x_BLD))
        part_BLD = feed_forward(self.mlp, normed_BLD, tokens, keys)
        return self._add(x_BLD, part_BLD, dropout, 2)

    def _add(
        self, x_BLD: jax.Array, part_BLD: jax.Array, dropout: DropoutKeys | None, site: int
    ) -> jax.Array:
        if self.dropout is not None:
            part_BLD = self.dropout(part_BLD, fold(dropout, site))
        return constrain(x_BLD + part_BLD.astype(x_BLD.dtype), RESIDUAL_AXES)
