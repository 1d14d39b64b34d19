"""Embeddings of encoders: with token types and a norm, and factorized ones.

Shapes: B rows, L length, D embed, E embed of the table, V vocab.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.dropout import DropoutKeys
from luthier.layers.embedding import Embedding
from luthier.layers.initializers import Initializer, Normal
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, looked_up, value_of, vector, wide
from luthier.layers.positions import Tokens


class TypedEmbedding(nnx.Module):
    """The sum of vectors for token, position and token type, normalized.

    `x = dropout(norm(token + position + type))`; the type says which of two texts a token is of.

    Args:
      norm: Template of the norm.
      tokens: Template of the token and position embedding, without dropout of its own.
      num_types: Number of token types.
      types: Initializer of the vectors of the types.
      dropout: Template of the dropout on the result; None means none.
      vocab_size: V.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Devlin et al. 2018, arXiv 1810.04805, figure 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("vocab_size", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_types": "1 <= x", "vocab_size": "1 <= x"}
    RELATIONS: ClassVar[dict[str, str]] = {
        "tokens.dropout is None": "that of the tokens is never applied: set dropout beside it",
    }

    def __init__(
        self,
        norm: Template,
        tokens: Template = Embedding,
        num_types: int = 2,
        types: Initializer = Normal(0.02),
        dropout: Template | None = None,
        *,
        vocab_size: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.dtype = dtype
        self.tokens = create(tokens, vocab_size=vocab_size, **inherited)
        self.types = vector(types, (num_types, dim), (None, "embed"), param_dtype, rngs)
        self.norm = create(norm, **inherited)
        self.dropout = None if dropout is None else create(dropout, **inherited)

    @property
    def lookup(self) -> Embedding:
        """The embedding that holds the table of the vocabulary."""
        return self.tokens

    def __call__(
        self,
        inputs_BL: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        types_BL: jax.Array | None = None,
    ) -> jax.Array:
        """Embed tokens.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          tokens: Their positions and segments.
          dropout: Keys of this site; None means no dropout.
          types_BL: Token types, int32 [B, L]; None means 0 for all.

        Returns:
          [B, L, D] in `dtype`.
        """
        x_BLD = self.tokens(inputs_BL, tokens)
        if types_BL is None:  # added in float32, as in `biased`
            kind = wide(x_BLD.dtype)
            x_BLD = (x_BLD.astype(kind) + value_of(self.types, kind)[0]).astype(x_BLD.dtype)
        else:
            x_BLD = x_BLD + looked_up(self.types, types_BL, self.dtype)
        x_BLD = self.norm(x_BLD)
        return x_BLD if self.dropout is None else self.dropout(x_BLD, dropout)


class FactorizedEmbedding(nnx.Module):
    """An embedding of a smaller dimension, mapped up: `V E + E D` parameters in place of `V D`.

    Args:
      embed_dim: E.
      embedding: Template of the embedding, such as `TypedEmbedding`, which gets E as its `dim`.
      projection: Template of the map from E to D.
      vocab_size: V.
      dim: D.
      dtype: Type of the result.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Lan et al. 2019, arXiv 1909.11942, section 3.1 (factorized embedding parameterization).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("vocab_size", "dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"embed_dim": "1 <= x"}

    def __init__(
        self,
        embed_dim: int,
        embedding: Template,
        projection: Template = Linear,
        *,
        vocab_size: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.embedding = create(embedding, vocab_size=vocab_size, dim=embed_dim, **kinds)
        # No axis for E: the table is split by its own `embed`, which is E, and this kernel by D.
        small = {"inputs": (embed_dim,), "input_axes": (None,)}
        self.projection = create(
            projection, **small, outputs=(dim,), output_axes=("embed",), **kinds
        )

    @property
    def lookup(self) -> Embedding:
        """The embedding that holds the table of the vocabulary."""
        return self.embedding.lookup

    def __call__(
        self,
        inputs_BL: jax.Array,
        tokens: Tokens,
        dropout: DropoutKeys | None = None,
        types_BL: jax.Array | None = None,
    ) -> jax.Array:
        """Embed tokens; see `TypedEmbedding`.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.
          dropout: Keys of the tokens at this site; None means no dropout.
          types_BL: Token types, int32 [B, L]; None means 0 for all.

        Returns:
          [B, L, D] in `dtype`.
        """
        return self.projection(self.embedding(inputs_BL, tokens, dropout, types_BL))
