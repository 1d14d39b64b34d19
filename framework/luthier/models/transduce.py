"""Generation of targets from sources, token by token.

Shapes: B rows, S source length, D embed, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import Tokens
from luthier.layers.encoder import Encoded
from luthier.models.encoder_decoder import EncoderDecoder, TargetCache
from luthier.models.generate import generate, token_problems

# Sizes are rounded up to a multiple of this, so that near ones share a compiled program.
_LENGTH_MULTIPLE = 32


class Conditional(nnx.Module):
    """A language model of targets, given their sources, which `generate` can continue.

    Args:
      model: The encoder-decoder.
      source: The result of its `encode`, one source in each row.
    """

    # The encoded sources are variables of the module, so that `nnx.split` in `generate` makes them
    # arguments of the compiled loop. As plain attributes they would be constants of the program,
    # which would then be compiled for each set of sources.

    def __init__(self, model: EncoderDecoder, source: Encoded):
        self.model = model
        self.vocab_size = getattr(model, "vocab_size", None)
        self.states_BSD = nnx.Variable(source.states_BSD)
        self.positions_BS = nnx.Variable(source.tokens.positions_BL)
        self.segments_BS = nnx.Variable(source.tokens.segments_BL)

    @property
    def source(self) -> Encoded:
        """The sources."""
        tokens = Tokens(self.positions_BS[...], self.segments_BS[...])
        return Encoded(self.states_BSD[...], tokens)

    def hidden(self, inputs_BL: jax.Array, **described: Any) -> jax.Array:
        """Return the states of targets; see `EncoderDecoder.decode_hidden`.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          **described: Further arguments of `hidden`.

        Returns:
          [B, L, D].
        """
        return self.model.decode_hidden(inputs_BL, self.source, **described)

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the next tokens.

        Args:
          hidden_BLD: Hidden states [B, L, D].

        Returns:
          Float32 [B, L, V].
        """
        return self.model.logits(hidden_BLD)

    def init_cache(self, batch_size: int, length: int) -> TargetCache:
        """Make a cache for the rows of the sources and their targets.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a target.

        Returns:
          The cache.
        """
        return self.model.init_cache(self.source, length)

    def decode(self, tokens_BL: jax.Array, cache: TargetCache) -> tuple[jax.Array, TargetCache]:
        """Append tokens to every target; see `EncoderDecoder.decode`.

        Args:
          tokens_BL: The next L >= 1 tokens of each row, int32 [B, L].
          cache: The result of `init_cache` or of the last call.

        Returns:
          The logits after the last of them, float32 [B, V], and the cache for the next call.
        """
        return self.model.decode(tokens_BL, cache)


def transduce(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    *,
    start_token: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Sequence[int] = (),
    seed: int = 0,
) -> list[list[int]]:
    """Make a target for every source by sampling.

    The draws for a source depend on the seed, the source and its place among the sources.

    Args:
      model: The encoder-decoder.
      sources: Token ids; lengths may differ.
      start_token: The token that every target begins with; it is not returned.
      max_new_tokens: Most tokens of a target.
      temperature: Divides the logits; 0 takes the likeliest token each time.
      top_k: Draw from the k likeliest tokens; None means all.
      top_p: Draw from the smallest set of likeliest tokens with probability p; None means all.
      stop_tokens: A target ends where one of these is drawn; it is not returned.
      seed: Seed of the draws.

    Returns:
      The tokens of each target.

    Raises:
      BadInput: An argument is out of its range; all such arguments are named.
    """
    if not sources:
        return []
    if problems := token_problems(sources, getattr(model, "vocab_size", None), "source"):
        raise BadInput(problems)
    # Sources are encoded once, all at the same length: padding has segment 0, which neither the
    # encoder nor the decoder attends to. Then every target starts from one start token.
    lengths_B = np.array([len(source) for source in sources], np.int32)
    longest = max(int(lengths_B.max()), 1)
    inputs_BS = np.zeros((len(sources), longest + -longest % _LENGTH_MULTIPLE), np.int32)
    for row, source in zip(inputs_BS, sources, strict=True):
        row[: len(source)] = source
    segments_BS = (np.arange(inputs_BS.shape[1]) < lengths_B[:, None]).astype(np.int32)
    graphdef, state = nnx.split(model)
    encoded = _encode(graphdef, state, inputs_BS, segments_BS)
    return generate(
        Conditional(model, encoded),
        [[start_token]] * len(sources),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop_tokens=stop_tokens,
        seed=seed,
    )


@functools.partial(jax.jit, static_argnums=0)
def _encode(graphdef: Any, state: Any, inputs_BS: jax.Array, segments_BS: jax.Array) -> Encoded:
    return nnx.merge(graphdef, state).encode(inputs_BS, segments_BL=segments_BS)
