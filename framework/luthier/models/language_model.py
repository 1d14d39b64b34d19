"""The interface of language models; users may bring their own.

Shapes: B rows, L length, D embed, V vocab.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax

from luthier.layers import DropoutKeys


@runtime_checkable
class LanguageModel(Protocol):
    """An `nnx.Module` that predicts the next token."""

    def hidden(
        self,
        inputs_BL: jax.Array,
        *,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
        dropout: DropoutKeys | None = None,
    ) -> jax.Array:
        """Return the states from which the logits are computed.

        Args:
          inputs_BL: Token ids, int32 [B, L].
          positions_BL: Positions, from 0 in every segment, int32 [B, L]; None means 0, 1, ...
          segments_BL: Documents of the row from 1, 0 for padding, int32 [B, L]; None means one.
          dropout: Keys of the tokens at this site; None means no dropout.

        Returns:
          [B, L, D].
        """

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the next tokens.

        Args:
          hidden_BLD: Hidden states [B, L, D].

        Returns:
          Float32 [B, L, V].
        """

    def init_cache(self, batch_size: int, length: int) -> Any:
        """Make an empty cache.

        Args:
          batch_size: Number of rows, B.
          length: Most tokens of a row.

        Returns:
          The cache, a pytree.
        """

    def decode(self, tokens_BL: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        """Append tokens to every row.

        Args:
          tokens_BL: The next L >= 1 tokens of each row, int32 [B, L].
          cache: The result of `init_cache` or of the last call.

        Returns:
          The logits after the last of them, float32 [B, V], and the cache for the next call.
        """
