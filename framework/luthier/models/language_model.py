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
        """Return the states from which the logits are computed, [B, L, D]."""

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Return the logits of the next tokens, float32 [B, L, V]."""

    def init_cache(self, batch_size: int, length: int) -> Any:
        """Return an empty cache, a pytree, for rows of up to `length` tokens."""

    def decode(self, tokens_BL: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        """Append L >= 1 tokens to every row.

        Returns the logits after the last of them, float32 [B, V], and the cache for the next call.
        """
