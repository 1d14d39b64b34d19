"""A classifier of series: a convolution, layers, the mean over time, one linear map.

Shapes: B rows, L length, C channels, N tokens, D dim, K classes.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import (
    Convolution,
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
from luthier.layers.encoder import MeanPool
from luthier.layers.parameters import wide
from luthier.parallel import RESIDUAL_AXES, constrain, gather_length

DType = Any

# Zeros, so that training starts from equal probabilities: a loss of log K.
_HEAD = functools.partial(Linear, Zeros(), Zeros())
# Inner: one key with many numbers; outer: many keys. [B] keys and [N] numbers give [B, N] keys.
_fold_each = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))


class SeriesClassifier(nnx.Module):
    """Classifies series, of any length that the embedding takes.

    A convolution over time makes tokens of a series, fewer of them where it has a stride; blocks
    mix them, by a state space (`PreNormBlock` with `S5` for its attention), by attention whose core
    has the mask `SameDocument`, or by both ways (`ConformerBlock`). There are no positions but
    those that blocks have of their own.

    Args:
      num_classes: K.
      dim: D.
      num_layers: Number of blocks.
      block: Template of a layer.
      norm: Template of the norm after the last layer.
      embedding: Template of the convolution, `Convolution` with its one-dimensional kernel size.
      num_channels: C.
      pooling: Template of the pooling of tokens to one vector: `MeanPool` or `ClassToken`.
      head: Template of the map from that vector to logits.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      dtype: Dtype of the computation, in all parts that do not set their own; parameters are stored
        in float32.
      rngs: Random number generators used to initialize the parameters.

    Source: Wang et al. 2016, arXiv:1611.06455, section II (convolutions, and the mean over time);
      Smith et al. 2022, arXiv:2208.04933, appendix G.3 (the mean over a state space's outputs).
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {
        "num_classes": "1 <= x",
        "dim": "1 <= x",
        "num_layers": "1 <= x",
        "num_channels": "1 <= x",
    }

    def __init__(
        self,
        num_classes: int,
        dim: int,
        num_layers: int,
        block: Template,
        norm: Template,
        embedding: Template = functools.partial(Convolution, (7,), bias=Zeros()),
        num_channels: int = 1,
        pooling: Template = MeanPool,
        head: Template = _HEAD,
        stack: Stack = Scanned(),
        *,
        dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        kinds = {"dtype": dtype, "param_dtype": jnp.float32}
        inherited = {"dim": dim, **kinds}
        self.stack = stack
        ends = {"in_dim": num_channels, "out_dim": dim}
        self.embedding = create(embedding, rngs=rngs, **ends, **kinds)
        self.pooling = create(pooling, rngs=rngs, **inherited)
        self.blocks = stack.create(
            lambda rngs: create(block, rngs=rngs, **inherited), num_layers, rngs
        )
        self.norm = create(norm, rngs=rngs, **inherited)
        # Classes are few and seldom divisible, so no mesh axis shards them.
        embed = {"inputs": (dim,), "input_axes": ("embed",)}
        classes = {"outputs": (num_classes,), "output_axes": (None,)}
        self.head = create(head, rngs=rngs, **embed, **classes, **kinds)

    def hidden(self, series_BLC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Run everything but pooling and head.

        Args:
          series_BLC: [B, L, C].
          dropout: Keys, one for each row [B, 1]; None means no dropout (evaluation).

        Returns:
          [B, N, D], normalized; tokens of the pooling first, then those of the series in time.
        """
        # The series of a batch have one length and are not packed: every row is one segment.
        # Dropout has a key for each token, made from the row's, so that a row is dropped alike
        # wherever it stands in a batch.
        x_BND = self.pooling.prepend(self.embedding(series_BLC))
        x_BND = constrain(x_BND, RESIDUAL_AXES)
        tokens = Tokens.single(*x_BND.shape[:2])
        keys = None if dropout is None else _each_token(dropout, x_BND.shape[1])

        # `rows` holds what goes along with the rows: a stack that cuts the batch (a pipeline) cuts
        # it too. The layer's number is folded in inside, where it may be the index of a scan.
        def apply(block: Any, index: jax.Array, x_BND: jax.Array, _: None, rows: Any) -> Any:
            tokens, keys = rows
            return block(x_BND, tokens, fold(keys, index)), None

        x_BND, _ = self.stack.apply(self.blocks, apply, x_BND, rows=(tokens, keys))
        return gather_length(self.norm(x_BND))

    def __call__(self, series_BLC: jax.Array, *, dropout: DropoutKeys | None = None) -> jax.Array:
        """Return the logits of the classes.

        Args:
          series_BLC: [B, L, C].
          dropout: Keys, one for each row [B, 1]; None means no dropout (evaluation).

        Returns:
          Float32 or wider [B, K].
        """
        logits_BK = self.head(self.pooling(self.hidden(series_BLC, dropout=dropout)))
        return logits_BK.astype(wide(logits_BK.dtype))


def _each_token(keys: DropoutKeys, length: int) -> DropoutKeys:
    """Key every token by its row's key and its place: [B, 1] to [B, N]."""
    places_N = jnp.arange(length, dtype=jnp.uint32)
    return DropoutKeys(_fold_each(keys.token_keys_BL[:, 0], places_N))
