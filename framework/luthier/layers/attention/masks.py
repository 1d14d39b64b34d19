"""Which tokens a token may look at.

Masks are made from positions and segments, so they hold for packed rows and for caches alike. They
rely on positions rising along a row within each segment.

Shapes: B rows, L queries, S keys.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import jax

from luthier.layers.positions import Tokens


class Mask(Protocol):
    """Decides which keys each query may look at."""

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the query may look at the key."""


@dataclasses.dataclass(frozen=True)
class SameDocument:
    """Every token sees all tokens of its document; padding sees nothing and is seen by nothing."""

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where both tokens are of one document."""
        query_segments, key_segments = query.segments_BL[:, :, None], key.segments_BL[:, None, :]
        return (query_segments == key_segments) & (key_segments > 0)


@dataclasses.dataclass(frozen=True)
class Causal:
    """Every token sees itself and the earlier tokens of its document."""

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the key is of the same document and not later."""
        causal = query.positions_BL[:, :, None] >= key.positions_BL[:, None, :]
        return SameDocument()(query, key) & causal


@dataclasses.dataclass(frozen=True)
class Window:
    """Every token sees itself and the `size - 1` tokens before it, within its document.

    Args:
      size: Number of tokens that a token sees, itself included.
    """

    RANGES: ClassVar[dict[str, str]] = {"size": "1 <= x"}
    size: int

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the key is visible and nearer than `size`."""
        distance_BLS = query.positions_BL[:, :, None] - key.positions_BL[:, None, :]
        return Causal()(query, key) & (distance_BLS < self.size)
