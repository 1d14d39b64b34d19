"""Heads of encoders and decoders: masked tokens, one vector for a row, logits.

Shapes: B rows, L length, D embed, E embed of the table, V vocab.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers.embedding import Embedding, TiedUnembedding
from luthier.layers.initializers import Initializer, Zeros
from luthier.layers.linear import Linear
from luthier.layers.parameters import DType, Template, create, value_of, vector
from luthier.layers.positions import Tokens


class MaskedHead(nnx.Module):
    """Scores the vocabulary for every token: `norm(f(x W)) T^t + b`, with T the embedding's table.

    Args:
      norm: Template of the norm.
      activation: f, such as `jax.nn.gelu`.
      transform: Template of W.
      bias: Initializer of b.
      vocab_size: V.
      embed_dim: E.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Devlin et al. 2018, arXiv 1810.04805, section 3.1, task 1.
    Deviation: The paper leaves the transform and the bias to its published program.
    """

    INHERITED: ClassVar[tuple[str, ...]] = (
        "vocab_size",
        "embed_dim",
        "dim",
        "dtype",
        "param_dtype",
        "rngs",
    )
    TIES: ClassVar[str] = "the embedding"

    def __init__(
        self,
        norm: Template,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
        transform: Template = Linear,
        bias: Initializer = Zeros(),
        *,
        vocab_size: int,
        embed_dim: int,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.activation = activation
        sizes = {"inputs": (dim,), "outputs": (embed_dim,)}
        axes = {"input_axes": ("embed",), "output_axes": (None,)}
        self.transform = create(transform, **sizes, **axes, **kinds)
        self.norm = create(norm, dim=embed_dim, **kinds)
        # Of the vocabulary's own size, which no mesh needs to divide: it is small.
        self.bias = vector(bias, (vocab_size,), (None,), param_dtype, rngs)

    def __call__(self, hidden_BLD: jax.Array, embedding: Embedding) -> jax.Array:
        """Score every token of the vocabulary.

        Args:
          hidden_BLD: [B, L, D].
          embedding: The module whose table is used.

        Returns:
          Logits [B, L, V], float32 or wider.
        """
        # The activation is computed again in the backward pass, as in `Mlp`.
        x_BLE = self.norm(jax.checkpoint(self.activation)(self.transform(hidden_BLD)))
        logits_BLV = TiedUnembedding()(x_BLE, embedding)
        return logits_BLV + value_of(self.bias, logits_BLV.dtype)


class Pooler(nnx.Module):
    """One vector for each row: `tanh(x_0 W)`, of the state of its first token.

    Args:
      transform: Template of W.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Devlin et al. 2018, arXiv 1810.04805, section 3.1, task 2.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")

    def __init__(
        self,
        transform: Template = Linear,
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        sizes = {"inputs": (dim,), "outputs": (dim,)}
        axes = {"input_axes": ("embed",), "output_axes": (None,)}
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.transform = create(transform, **sizes, **axes, **kinds)

    def __call__(self, hidden_BLD: jax.Array, tokens: Tokens) -> jax.Array:
        """Return one vector for each row.

        Args:
          hidden_BLD: Hidden states [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.

        Returns:
          [B, D].
        """
        return jnp.tanh(self.transform(hidden_BLD[:, 0]))


class MeanOfTokens(nnx.Module):
    """One vector for each row: the mean over its tokens, without padding.

    Source: Reimers and Gurevych 2019, arXiv 1908.10084, section 3 (mean pooling).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ()

    def __call__(self, hidden_BLD: jax.Array, tokens: Tokens) -> jax.Array:
        """Return the mean over the tokens of each row.

        Args:
          hidden_BLD: Hidden states [B, L, D].
          tokens: Positions and segments [B, L]; tokens of segment 0 are padding.

        Returns:
          [B, D]; zero for rows that are padding throughout.
        """
        # `where` before the sum, so that padding adds nothing even if it is not finite; a row of
        # padding is 0 / 1.
        real_BL1 = (tokens.segments_BL > 0)[..., None]
        total_BD = jnp.where(real_BL1, hidden_BLD, 0).sum(1)
        return total_BD / jnp.maximum(real_BL1.sum(1), 1).astype(hidden_BLD.dtype)


class ScaledTiedUnembedding(nnx.Module):
    """Logits by the inner products with the embedding table, times `scale`.

    Args:
      scale: Factor of the hidden states; None means `D^-0.5`.

    Source: Raffel et al. 2019, arXiv 1910.10683, whose program scales tied logits so (Shazeer and
      Stern 2018, arXiv 1804.04235, for tables of unit variance).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar[dict[str, str]] = {"scale": "0 < x"}

    def __init__(self, scale: Any = None):
        self.scale = scale

    def __call__(self, hidden_BLD: jax.Array, embedding: Embedding) -> jax.Array:
        """Score every token of the vocabulary; see `TiedUnembedding`.

        Args:
          hidden_BLD: Hidden states [B, L, D].
          embedding: The embedding, whose table is the kernel.

        Returns:
          Logits, float32 or wider [B, L, V].
        """
        # The hidden states are scaled and not the logits, as in T5: D numbers and not V.
        scale = hidden_BLD.shape[-1] ** -0.5 if self.scale is None else self.scale
        return TiedUnembedding()(hidden_BLD * jnp.asarray(scale, hidden_BLD.dtype), embedding)
