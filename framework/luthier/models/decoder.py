"""A decoder: the assembly of embedding, layers and unembedding into a language model.

Shapes: B rows, L length, D embed, V vocab, S cached length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import (
    DropoutKeys,
    Embedding,
    Scanned,
    Stack,
    Template,
    TiedUnembedding,
    Tokens,
    create,
    fold,
)
from luthier.parallel import gather_length

DType = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The keys and values of a decoder for the tokens so far.

    Args:
      layers: The caches of the blocks, stacked over the layers as the stack does.
      length: Number of places that are filled, the same in every row: int32 scalar.
      places_S: The number of each place of the cache: int32 [S].
      starts_B: The place of the first token of each row; the places before it are padding: int32
        [B].
    """

    layers: Any
    length: jax.Array
    places_S: jax.Array
    starts_B: jax.Array


class Decoder(nnx.Module):
    """A causal language model: embedding, layers, norm, unembedding.

    Args:
      vocab_size: V.
      dim: D.
      num_layers: Number of blocks.
      block: Template of a layer, such as `PreNormBlock`; of several, the layers take turns.
      norm: Template of the norm after the last layer.
      embedding: Template of the embedding, which also knows learned positions and dropout.
      unembedding: Template of the map to logits, `TiedUnembedding` or `Unembedding`.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      bias: Template of a bias of the attention scores of all layers, such as `Alibi`; None means
        no bias.
      dtype: Dtype of the computation, in all parts that do not set their own.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Example:
      >>> import functools
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from luthier import layers, models
      >>> block = functools.partial(
      ...     layers.PreNormBlock,
      ...     attention=functools.partial(layers.Attention, num_heads=2),
      ...     mlp=functools.partial(layers.Mlp, hidden_dim=16),
      ...     norm=layers.RMSNorm,
      ... )
      >>> def make():
      ...     return models.Decoder(
      ...         vocab_size=16, dim=8, num_layers=2, block=block, norm=layers.RMSNorm,
      ...         rngs=nnx.Rngs(0),
      ...     )
      >>> model = nnx.eval_shape(make)  # the shapes alone; `make()` makes the arrays
      >>> tokens_BL = jnp.array([[3, 1, 2]])
      >>> nnx.eval_shape(lambda model, tokens_BL: model(tokens_BL), model, tokens_BL).shape
      (1, 3, 16)
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
        block: Template | Sequence[Template],
        norm: Template,
        embedding: Template = Embedding,
        unembedding: Template = TiedUnembedding,
        stack: Stack = Scanned(),
        bias: Template | None = None,
        *,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # Parts come as templates and get sizes and types from here, so that a size is set once. The
        # order in which they are made decides the keys of their parameters. Blocks get `rngs` from
        # the stack, which makes one key for each layer.
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype}
        ends = {"vocab_size": vocab_size, "rngs": rngs, **inherited}
        self.vocab_size = vocab_size
        self.stack = stack
        self.embedding = create(embedding, **ends)
        blocks = [block] if callable(block) else block
        # Partials, because a lambda in a comprehension would see the last template only.
        makers = [functools.partial(_create_block, template, inherited) for template in blocks]
        self.blocks = stack.create(makers, num_layers, rngs)
        self.norm = create(norm, rngs=rngs, **inherited)
        self.unembedding = create(unembedding, **ends)
        self.bias = None if bias is None else create(bias, rngs=rngs, **inherited)

    def hidden(
        self,
        inputs_BL: jax.Array,
        *,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Run everything but the unembedding.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          positions_BL: Positions, from 0 in every segment, int32 [B, L]; None means 0, 1, ...
          segments_BL: Documents of the row from 1, 0 for padding, int32 [B, L]; None means one.
          dropout: Keys of the tokens; None means no dropout (evaluation).

        Returns:
          [B, L, D], normalized.
        """
        # Without a description, rows are one document each: the constants fold away in XLA, and
        # generation and packed training run the same code.
        single = Tokens.single(*inputs_BL.shape)
        tokens = Tokens(
            single.positions_BL if positions_BL is None else positions_BL,
            single.segments_BL if segments_BL is None else segments_BL,
        )
        x_BLD = self.embedding(inputs_BL, tokens, fold(dropout, 0))

        # Runs inside the loop of the stack; `index` is traced there, and folded into the dropout
        # keys, so that layers of one program have different masks. What belongs to rows (positions,
        # segments, keys) is passed as `rows` and not closed over: a pipeline runs some rows at a
        # time, and hands theirs in. The bias is closed over, a constant of the loop.
        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, _: None, rows: Any) -> Any:
            tokens, below = rows
            return block(x_BLD, tokens, fold(below, index), **self._shared()), None

        rows = (tokens, fold(dropout, 1))
        x_BLD, _ = self.stack.apply(self.blocks, apply, x_BLD, rows=rows)
        return gather_length(self.norm(x_BLD))

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the next tokens.

        Args:
          hidden_BLD: Hidden states [B, L, D].

        Returns:
          Float32 [B, L, V].
        """
        return self.unembedding(hidden_BLD, self.embedding)

    def __call__(self, inputs_BL: jax.Array, **described: Any) -> jax.Array:
        """Return the logits of the next tokens.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          **described: Further arguments of `hidden`.

        Returns:
          Float32 [B, L, V].
        """
        return self.logits(self.hidden(inputs_BL, **described))

    def init_cache(self, batch_size: int, length: int) -> Cache:
        """Make an empty cache.

        Args:
          batch_size: Number of rows.
          length: Most tokens that a row will have.

        Returns:
          The cache.

        Raises:
          BadInput: The model has no positions for rows of this length.
        """
        self.embedding.check_length(length)
        layers = self.stack.init_own(
            self.blocks, lambda block: block.init_cache(batch_size, length)
        )
        places_S = jnp.arange(length, dtype=jnp.int32)
        return Cache(layers, jnp.int32(0), places_S, jnp.zeros(batch_size, jnp.int32))

    def decode(self, tokens_BL: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Append tokens to every row.

        Args:
          tokens_BL: The next L >= 1 tokens of each row, int32 [B, L].
          cache: The result of `init_cache` or of the last call, with room for them.

        Returns:
          The logits after the last of them, float32 [B, V], and the cache for the next call.
        """
        # Place s of the cache holds position s, less the place where the row starts. Places of a
        # row that are filled, the new ones included, get segment 1, all others segment 0: to the
        # masks they are padding, and no mask of its own is needed for decoding. `length` is traced,
        # so that one program serves every step; only L is static.
        L = tokens_BL.shape[1]
        start, length = cache.length, cache.length + L
        own_BS = cache.places_S - cache.starts_B[:, None]
        filled_BS = (own_BS >= 0) & (cache.places_S < length)
        cached = Tokens(jnp.maximum(own_BS, 0), filled_BS.astype(jnp.int32))
        own_BL = jnp.arange(L, dtype=jnp.int32) + (start - cache.starts_B)[:, None]
        tokens = Tokens(jnp.maximum(own_BL, 0), (own_BL >= 0).astype(jnp.int32))

        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, cache: Any) -> Any:
            return block.decode(x_BLD, tokens, cache, cached, start, **self._shared())

        x_BLD = self.embedding(tokens_BL, tokens)
        x_BLD, layers = self.stack.apply(self.blocks, apply, x_BLD, cache.layers)
        # Of a prompt only the last logits are needed, so only its last state meets the vocabulary.
        logits_B1V = self.logits(self.norm(x_BLD[:, -1:]))
        cache = dataclasses.replace(cache, layers=layers, length=length)
        return logits_B1V[:, 0], cache

    def _shared(self) -> dict[str, Any]:
        """Return the arguments of all blocks: none without a bias, which blocks need not take."""
        return {} if self.bias is None else {"bias": self.bias}


def _create_block(template: Template, inherited: dict[str, Any], rngs: nnx.Rngs) -> nnx.Module:
    return create(template, rngs=rngs, **inherited)
