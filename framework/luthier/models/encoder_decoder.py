"""An encoder-decoder: a target text predicted token by token from a source text.

Shapes: B rows, L length, S source length, D embed, V vocab, C cached length, H heads.
"""

from __future__ import annotations

import dataclasses
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
from luthier.layers.encoder import Encoded
from luthier.parallel import gather_length

DType = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetCache:
    """The keys and values of a decoder for the source, and for the target so far.

    Args:
      layers: The caches of the blocks, stacked over the layers.
      length: Number of target tokens so far, the same in every row: int32 scalar.
      places_C: The number of each place of the cache: int32 [C].
      source: Positions and segments of the source's tokens.
    """

    layers: Any
    length: jax.Array
    places_C: jax.Array
    source: Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _SharedBias:
    """A bias that was computed once for all layers."""

    bias_BHLS: jax.Array

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        return self.bias_BHLS


class _Layers(nnx.Module):
    """Layers with one bias for all of them, and a norm."""

    INHERITED: ClassVar[tuple[str, ...]] = ("dim", "dtype", "param_dtype", "rngs")
    RANGES: ClassVar[dict[str, str]] = {"num_layers": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        num_layers: int,
        block: Template,
        norm: Template,
        bias: Template | None = None,
        dropout: Template | None = None,
        stack: Stack = Scanned(),
        *,
        dim: int,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # `rngs` comes from the stack, one key for each layer, so it is not among `inherited`.
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype}
        self.stack = stack
        self.blocks = stack.create(
            lambda rngs: create(block, rngs=rngs, **inherited), num_layers, rngs
        )
        self.norm = create(norm, rngs=rngs, **inherited)
        self.bias = None if bias is None else create(bias, rngs=rngs, **inherited)
        self.dropout = None if dropout is None else create(dropout, rngs=rngs, **inherited)

    def _bias(self, query: Tokens, key: Tokens) -> _SharedBias | None:
        # T5 has one table for all layers, so the bias [B, H, L, S] is computed once, outside of the
        # loop over layers, and passed to each as a bias that ignores its arguments.
        return None if self.bias is None else _SharedBias(self.bias(query, key))

    def _finish(self, x_BLD: jax.Array, dropout: DropoutKeys | None) -> jax.Array:
        x_BLD = gather_length(self.norm(x_BLD))
        return x_BLD if self.dropout is None else self.dropout(x_BLD, fold(dropout, 1))


class SourceLayers(_Layers):
    """The layers of an encoder, with one relative bias for all, and the norm after them.

    Args:
      num_layers: Number of blocks.
      block: Template of a layer, such as `PreNormBlock` with attention that is not causal.
      norm: Template of the norm after the last layer.
      bias: Template of the bias that every layer adds to its scores, such as `RelativeBias`; None
        means no bias.
      dropout: Template of the dropout on the result; None means none.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1.
    """

    def __call__(
        self, x_BSD: jax.Array, tokens: Tokens, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Run the layers.

        Args:
          x_BSD: Embedded tokens, [B, S, D].
          tokens: Their positions and segments.
          dropout: Keys of this part of the model; None means no dropout.

        Returns:
          [B, S, D], normalized.
        """

        def apply(block: Any, index: jax.Array, x_BSD: jax.Array, _: None, rows: Any) -> Any:
            tokens, below, bias = rows
            return block(x_BSD, tokens, fold(below, index), bias), None

        rows = (tokens, fold(dropout, 0), self._bias(tokens, tokens))
        x_BSD, _ = self.stack.apply(self.blocks, apply, x_BSD, rows=rows)
        return self._finish(x_BSD, dropout)


class TargetLayers(_Layers):
    """The layers of a decoder that looks at a source, and the norm after them.

    Args:
      num_layers: Number of blocks.
      block: Template of a layer, such as `PreNormCrossBlock`.
      norm: Template of the norm after the last layer.
      bias: Template of the bias that every layer adds to its scores within the target, such as
        `RelativeBias`; None means no bias.
      dropout: Template of the dropout on the result; None means none.
      stack: The stack that runs the layers: `Scanned` or `Unrolled`, with its remat policy.
      dim: D.
      dtype: Dtype of the computation.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1.
    """

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, source: Encoded, dropout: DropoutKeys | None = None
    ) -> jax.Array:
        """Run the layers.

        Args:
          x_BLD: Embedded tokens, [B, L, D].
          tokens: Their positions and segments.
          source: The encoded source.
          dropout: Keys of this part of the model; None means no dropout.

        Returns:
          [B, L, D], normalized.
        """

        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, _: None, rows: Any) -> Any:
            tokens, source, below, bias = rows
            return block(x_BLD, tokens, source, fold(below, index), bias), None

        # The encoded source belongs to rows as well, with a length of its own.
        rows = (tokens, source, fold(dropout, 0), self._bias(tokens, tokens))
        x_BLD, _ = self.stack.apply(self.blocks, apply, x_BLD, rows=rows)
        return self._finish(x_BLD, dropout)

    def init_cache(self, batch_size: int, length: int, source: Encoded) -> Any:
        """Make the caches of all layers for `batch_size` rows of `length` after their `source`.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.
          source: The encoded source.

        Returns:
          The caches, stacked over the layers.
        """
        make = lambda block: block.init_cache(batch_size, length, source)  # noqa: E731
        return self.stack.init_own(self.blocks, make)

    def decode(
        self, x_BLD: jax.Array, tokens: Tokens, cached: Tokens, cache: TargetCache
    ) -> tuple[jax.Array, Any]:
        """Run the layers on new tokens.

        Args:
          x_BLD: The new tokens, embedded, [B, L, D].
          tokens: Their positions and segments.
          cached: Positions and segments of all places of the cache, the new tokens included.
          cache: The cache of the tokens before.

        Returns:
          [B, L, D], normalized, and the changed caches of the layers.
        """
        bias = self._bias(tokens, cached)

        # Here source, positions and bias are closed over: with a cache for each layer, no stack
        # splits the rows.
        def apply(block: Any, index: jax.Array, x_BLD: jax.Array, own: Any) -> Any:
            return block.decode(x_BLD, tokens, cache.source, own, cached, cache.length, bias)

        x_BLD, layers = self.stack.apply(self.blocks, apply, x_BLD, cache.layers)
        return self._finish(x_BLD, None), layers


class EncoderDecoder(nnx.Module):
    """Predicts a target from a source; both are of one vocabulary and share their embedding.

    Args:
      vocab_size: V.
      dim: D.
      encoder: Template of the layers over the source, such as `SourceLayers`.
      decoder: Template of the layers over the target, such as `TargetLayers`.
      embedding: Template of the embedding of both texts.
      unembedding: Template of the map to logits: `TiedUnembedding`, `ScaledTiedUnembedding` or
        `Unembedding`.
      dtype: Dtype of the computation, in all parts that do not set their own.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators used to initialize the parameters.

    Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1.
    """

    INHERITED: ClassVar[tuple[str, ...]] = ("rngs",)
    RANGES: ClassVar[dict[str, str]] = {"vocab_size": "1 <= x", "dim": "1 <= x"}

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        encoder: Template,
        decoder: Template,
        embedding: Template = Embedding,
        unembedding: Template = TiedUnembedding,
        *,
        dtype: DType = jnp.float32,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        # One embedding module for both texts, and its table again in a tied unembedding: the
        # gradients of all three uses are summed.
        inherited = {"dim": dim, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.vocab_size = vocab_size
        self.embedding = create(embedding, vocab_size=vocab_size, **inherited)
        self.encoder = create(encoder, **inherited)
        self.decoder = create(decoder, **inherited)
        self.unembedding = create(unembedding, vocab_size=vocab_size, **inherited)

    def encode(
        self,
        inputs_BL: jax.Array,
        *,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        dropout: DropoutKeys | None = None,
    ) -> Encoded:
        """Read sources.

        Args:
          inputs_BL: Token ids of the sources, int32 [B, S].
          positions_BL: Positions, from 0 in every segment, int32 [B, S]; None means 0, 1, ...
          segments_BL: Sources of the row from 1, 0 for padding, int32 [B, S]; None means one.
          dropout: Keys of the sources' tokens; None means no dropout (evaluation).

        Returns:
          The encoded sources, to which the decoder attends.
        """
        # Site 0 is the encoder and site 1 the decoder: both embed with the same module, and their
        # masks must differ.
        tokens = _describe(inputs_BL, positions_BL, segments_BL)
        keys = fold(dropout, 0)
        x_BSD = self.embedding(inputs_BL, tokens, fold(keys, 0))
        return Encoded(self.encoder(x_BSD, tokens, fold(keys, 1)), tokens)

    def decode_hidden(
        self,
        inputs_BL: jax.Array,
        source: Encoded,
        *,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Run everything but the unembedding on targets.

        Args:
          inputs_BL: Token ids that the next ones are predicted from, int32 [B, L].
          source: The result of `encode`.
          positions_BL: Positions, from 0 in every segment, int32 [B, L]; None means 0, 1, ...
          segments_BL: Targets of the row, each of the number of its source, 0 for padding,
            int32 [B, L]; None means one.
          dropout: Keys of the targets' tokens; None means no dropout (evaluation).

        Returns:
          [B, L, D], normalized.
        """
        tokens = _describe(inputs_BL, positions_BL, segments_BL)
        keys = fold(dropout, 1)
        x_BLD = self.embedding(inputs_BL, tokens, fold(keys, 0))
        return self.decoder(x_BLD, tokens, source, fold(keys, 1))

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the next tokens of the target.

        Args:
          hidden_BLD: Hidden states [B, L, D].

        Returns:
          Float32 or wider [B, L, V].
        """
        return self.unembedding(hidden_BLD, self.embedding)

    def __call__(self, inputs_BS: jax.Array, decoder_inputs_BL: jax.Array) -> jax.Array:
        """Return the logits for rows of one pair each, without padding or dropout.

        Args:
          inputs_BS: Token ids of the sources, int32 [B, S].
          decoder_inputs_BL: Token ids of the targets, int32 [B, L].

        Returns:
          Float32 or wider [B, L, V].
        """
        return self.logits(self.decode_hidden(decoder_inputs_BL, self.encode(inputs_BS)))

    def init_cache(self, source: Encoded, length: int) -> TargetCache:
        """Make a cache without target tokens.

        Args:
          source: The result of `encode`, one source in each row.
          length: Most tokens that a target will have.

        Returns:
          The cache.

        Raises:
          BadInput: The model has no positions for targets of this length.
        """
        self.embedding.check_length(length)
        layers = self.decoder.init_cache(source.states_BSD.shape[0], length, source)
        places_C = jnp.arange(length, dtype=jnp.int32)
        return TargetCache(layers, jnp.int32(0), places_C, source.tokens)

    def decode(self, tokens_BL: jax.Array, cache: TargetCache) -> tuple[jax.Array, TargetCache]:
        """Append tokens to every target.

        Args:
          tokens_BL: The next L >= 1 tokens of each target, int32 [B, L].
          cache: The result of `init_cache` or of the last call, with room for them.

        Returns:
          The logits after the last of them, float32 [B, V], and the cache for the next call.
        """
        # Filled places have segment 1 and the others 0, as in `Decoder.decode`.
        B, L = tokens_BL.shape
        length = cache.length + L
        places_BC = jnp.broadcast_to(cache.places_C, (B, cache.places_C.size))
        cached = Tokens(places_BC, (places_BC < length).astype(jnp.int32))
        single = Tokens.single(B, L)
        tokens = Tokens(single.positions_BL + cache.length, single.segments_BL)
        x_BLD = self.embedding(tokens_BL, tokens)
        x_BLD, layers = self.decoder.decode(x_BLD, tokens, cached, cache)
        logits_B1V = self.logits(x_BLD[:, -1:])
        return logits_B1V[:, 0], TargetCache(layers, length, cache.places_C, cache.source)


def _describe(
    inputs_BL: jax.Array, positions_BL: jax.Array | None, segments_BL: jax.Array | None
) -> Tokens:
    single = Tokens.single(*inputs_BL.shape)
    return Tokens(
        single.positions_BL if positions_BL is None else positions_BL,
        single.segments_BL if segments_BL is None else segments_BL,
    )
