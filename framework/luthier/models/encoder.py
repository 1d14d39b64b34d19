"""An encoder: every token of a text sees all others, as in BERT and ALBERT.

Shapes: B rows, L length, D embed, V vocab.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.errors import BadInput, Problem
from luthier.layers import (
    DropoutKeys,
    Scanned,
    Stack,
    Template,
    Tokens,
    create,
    fold,
)
from luthier.parallel import gather_length

DType = Any


class Encoder(nnx.Module):
    """Embedding, layers, a head that scores masked tokens, and a pooler.

    Attention is not causal where the block's core has the mask `SameDocument`, which also keeps
    packed texts apart.

    Args:
      vocab_size: V.
      dim: D.
      num_layers: Number of blocks.
      block: Template of a layer, such as `PostNormBlock`.
      embedding: Template of the embedding: `TypedEmbedding`, or a `FactorizedEmbedding` of it.
      norm: Template of a norm after the last layer; None where blocks end with one.
      head: Template of the map to logits, such as `MaskedHead`; None leaves it out.
      pooler: Template of the pooling of a row to one vector, such as `Pooler`; None leaves it out.
      stack: The stack of layers: `Scanned`, `Unrolled`, or `Shared` for one set of parameters.
      dtype: Dtype of the computation, in all parts that do not set their own.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Devlin et al. 2018, arXiv 1810.04805, section 3; Lan et al. 2019, arXiv 1909.11942.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {
        "vocab_size": "1 <= x",
        "dim": "1 <= x",
        "num_layers": "1 <= x",
    }

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        num_layers: int,
        block: Template,
        embedding: Template,
        norm: Template | None = None,
        head: Template | None = None,
        pooler: Template | None = None,
        stack: Stack = Scanned(),
        *,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype}
        self.vocab_size = vocab_size
        self.stack = stack
        self.embedding = create(embedding, vocab_size=vocab_size, rngs=rngs, **inherited)
        self.blocks = stack.create(
            lambda rngs: create(block, rngs=rngs, **inherited), num_layers, rngs
        )
        # A factorized embedding has another dimension than the model; the head, which ends in the
        # table, takes it from the table.
        ends = {
            "vocab_size": vocab_size,
            "embed_dim": self.embedding.lookup.table.shape[1],
            "rngs": rngs,
            **inherited,
        }
        self.norm = None if norm is None else create(norm, **ends)
        self.head = None if head is None else create(head, **ends)
        self.pooler = None if pooler is None else create(pooler, **ends)

    def hidden(
        self,
        inputs_BL: jax.Array,
        *,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        types_BL: jax.Array | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Run embedding and layers.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          positions_BL: Positions, from 0 in every segment, int32 [B, L]; None means 0, 1, ...
          segments_BL: Texts of the row from 1, 0 for padding, int32 [B, L]; None means one.
            Tokens see only their own text.
          types_BL: Token types, int32 [B, L]; None means 0 for all.
          dropout: Keys of the tokens; None means no dropout (evaluation).

        Returns:
          [B, L, D].
        """
        tokens = _describe(inputs_BL, positions_BL, segments_BL)
        x_BLD = self.embedding(inputs_BL, tokens, fold(dropout, 0), types_BL)

        # As in `Decoder.hidden`: what belongs to rows is passed as `rows`, for pipelines.
        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, _: None, rows: Any) -> Any:
            tokens, below = rows
            return block(x_BLD, tokens, fold(below, index)), None

        rows = (tokens, fold(dropout, 1))
        x_BLD, _ = self.stack.apply(self.blocks, apply, x_BLD, rows=rows)
        return gather_length(x_BLD if self.norm is None else self.norm(x_BLD))

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the tokens themselves.

        Args:
          hidden_BLD: Hidden states [B, L, D].

        Returns:
          Float32 or wider [B, L, V].

        Raises:
          BadInput: The model has no head.
        """
        if self.head is None:
            what = "the encoder has no head, so it gives no logits"
            raise BadInput(Problem(what, remedy="set head to a MaskedHead"))
        return self.head(hidden_BLD, self.embedding.lookup)

    def pooled(self, hidden_BLD: jax.Array, *, segments_BL: jax.Array | None = None) -> jax.Array:
        """Make one vector of each row.

        Args:
          hidden_BLD: The result of `hidden`.
          segments_BL: As for `hidden`.

        Returns:
          [B, D].

        Raises:
          BadInput: The model has no pooler.
        """
        if self.pooler is None:
            what = "the encoder has no pooler, so it gives no vector for a row"
            raise BadInput(Problem(what, remedy="set pooler to a Pooler"))
        return self.pooler(hidden_BLD, _describe(hidden_BLD[..., 0], None, segments_BL))

    def __call__(self, inputs_BL: jax.Array, **described: Any) -> jax.Array:
        """Return the logits of the tokens themselves.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          **described: Further arguments of `hidden`.

        Returns:
          Float32 or wider [B, L, V].
        """
        return self.logits(self.hidden(inputs_BL, **described))


def _describe(
    inputs_BL: jax.Array, positions_BL: jax.Array | None, segments_BL: jax.Array | None
) -> Tokens:
    single = Tokens.single(*inputs_BL.shape)
    return Tokens(
        single.positions_BL if positions_BL is None else positions_BL,
        single.segments_BL if segments_BL is None else segments_BL,
    )
