"""A vision transformer: images to classes, by attention between patches.

Shapes: B rows, H image height, W image width, C channels, N patches, L tokens, D embed, K classes.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers import (
    DropoutKeys,
    Linear,
    Scanned,
    Stack,
    Template,
    Tokens,
    Zeros,
    create,
    fold,
)
from luthier.layers.encoder import ClassToken
from luthier.layers.parameters import wide
from luthier.parallel import gather_length

DType = Any


class VisionTransformer(nnx.Module):
    """Classifies images: patches, layers, norm, pooling, one linear map.

    Attention between patches is not causal: the block's attention needs a core whose mask is
    `SameDocument`.

    Args:
      num_classes: K.
      dim: D.
      num_layers: Number of blocks.
      block: Template of a layer, such as `PreNormBlock`.
      norm: Template of the norm after the last layer.
      embedding: Template of the map from images to tokens, `PatchEmbedding` with its sizes.
      pooling: Template of the pooling of tokens to one vector: `ClassToken` or `MeanPool`.
      head: Template of the map from that vector to logits; None leaves it out.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      dtype: Dtype of the computation, in all parts that do not set their own.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Dosovitskiy et al. 2020, arXiv 2010.11929, equations 1 to 4.
    Deviation: The original puts a hidden layer into the head while it pre-trains; here the head is
      one linear map throughout, as in Beyer et al. 2022, arXiv 2205.01580.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {
        "num_classes": "1 <= x",
        "dim": "1 <= x",
        "num_layers": "1 <= x",
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        num_layers: int,
        block: Template,
        norm: Template,
        embedding: Template,
        pooling: Template = ClassToken,
        head: Template | None = functools.partial(Linear, Zeros(), Zeros()),
        stack: Stack = Scanned(),
        *,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # The pooling is made first: it knows how many tokens of its own it puts before the patches,
        # and the embedding has a position for each of them.
        kinds = {"dtype": dtype, "param_dtype": param_dtype}
        inherited = {"dim": dim, **kinds}
        self.stack = stack
        self.pooling = create(pooling, rngs=rngs, **inherited)
        num_tokens = self.pooling.num_tokens
        self.embedding = create(embedding, num_tokens=num_tokens, rngs=rngs, **inherited)
        self.blocks = stack.create(
            lambda rngs: create(block, rngs=rngs, **inherited), num_layers, rngs
        )
        self.norm = create(norm, rngs=rngs, **inherited)
        # Classes are few, and their number is seldom even, so no mesh axis splits them.
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        classes = {"outputs": (num_classes,), "output_axes": (None,)}
        self.head = None if head is None else create(head, rngs=rngs, **embed, **classes, **kinds)

    def hidden(self, images_BHWC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Run everything but pooling and head.

        Args:
          images_BHWC: Images of the model's size, [B, H, W, C].
          dropout: Keys, one for each row [B, 1]; None means no dropout (evaluation).

        Returns:
          [B, L, D], normalized; tokens of the pooling first, then the patches along rows.
        """
        # Every row is one document of L tokens; positions are in the embedding, and the tokens here
        # only say that nothing is padding.
        B, L = images_BHWC.shape[0], self.embedding.positions.shape[0]
        tokens = Tokens.single(B, L)
        keys = None if dropout is None else _each_token(dropout, L)
        x_BLD = self.embedding(images_BHWC, self.pooling.prepend, fold(keys, 0))

        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, _: None, rows: Any) -> Any:
            tokens, below = rows
            return block(x_BLD, tokens, fold(below, index)), None

        rows = (tokens, fold(keys, 1))
        x_BLD, _ = self.stack.apply(self.blocks, apply, x_BLD, rows=rows)
        return gather_length(self.norm(x_BLD))

    def __call__(self, images_BHWC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Return the logits of the classes.

        Args:
          images_BHWC: Images of the model's size, [B, H, W, C].
          dropout: Keys, one for each row [B, 1]; None means no dropout (evaluation).

        Returns:
          Float32 or wider [B, K].

        Raises:
          BadInput: The model has no head.
        """
        if self.head is None:
            what = "the vision transformer has no head, so it gives no logits"
            raise BadInput(Problem(what, remedy="set head to a Linear"))
        x_BD = self.pooling(self.hidden(images_BHWC, dropout=dropout))
        logits_BK = self.head(x_BD)
        return logits_BK.astype(wide(logits_BK.dtype))


def _each_token(keys: DropoutKeys, length: int) -> DropoutKeys:
    """Key every token by its row's key and its place, where there is one key for each row."""
    # Classification keys examples; the tokens of one differ by their place, which is fixed.
    keys_B1 = keys.token_keys_BL
    if keys_B1.shape[1] != 1:
        return keys
    places_L = jnp.arange(length, dtype=jnp.uint32)
    fold_in = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    return DropoutKeys(fold_in(keys_B1[:, 0], places_L))
