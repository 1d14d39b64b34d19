"""Attention masks.

Masks are made from positions and segments, so they hold for packed rows and for caches alike. They
rely on positions rising along a row within each segment.

Shapes: B rows, L queries, S keys.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import jax

from luthier.layers.positions import Tokens


class AttentionMask(Protocol):
    """Decides which keys each query may look at.

    A mask that hides pairs because of their order may declare their share, by which FLOPs are
    counted: see `Causal.share`.
    """

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the query may look at the key.

        The tokens may be a block of longer rows, so what is visible must follow from their
        positions and segments, and not from their places in the arrays.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          bool [B, L, S].
        """


@dataclasses.dataclass(frozen=True)
class SameDocument:
    """Every token sees all tokens of its document; padding sees nothing and is seen by nothing.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import layers
      >>> tokens = layers.Tokens(jnp.array([[0, 1, 0]]), jnp.array([[1, 1, 2]]))
      >>> print(layers.SameDocument()(tokens, tokens).astype(int))
      [[[1 1 0]
        [1 1 0]
        [0 0 1]]]
    """

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where both tokens are of one document.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          bool [B, L, S].
        """
        # Equal segments are not enough: padding has segment 0 everywhere.
        query_segments, key_segments = query.segments_BL[:, :, None], key.segments_BL[:, None, :]
        return (query_segments == key_segments) & (key_segments > 0)


@dataclasses.dataclass(frozen=True)
class Causal:
    """Every token sees itself and the earlier tokens of its document.

    Example:
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> print(layers.Causal()(tokens, tokens).astype(int))
      [[[1 0 0]
        [1 1 0]
        [1 1 1]]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the key is of the same document and not later.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          bool [B, L, S].
        """
        # Positions and not places: in a ring or a cache, queries and keys are other parts of a row.
        causal = query.positions_BL[:, :, None] >= key.positions_BL[:, None, :]
        return SameDocument()(query, key) & causal

    def share(self, num_queries: int, num_keys: int) -> Fraction:
        """Return the visible share of pairs: half, if queries and keys are the same tokens.

        Args:
          num_queries: Queries, the last of the keys.
          num_keys: Keys.

        Returns:
          A number from 0 to 1.
        """
        return _band(num_queries, num_keys, num_keys)


@dataclasses.dataclass(frozen=True)
class Window:
    """Every token sees itself and the `size - 1` tokens before it, within its document.

    Args:
      size: Number of tokens that a token sees, itself included.

    Example:
      >>> from luthier import layers
      >>> tokens = layers.Tokens.single(batch_size=1, length=3)
      >>> print(layers.Window(2)(tokens, tokens).astype(int))
      [[[1 0 0]
        [1 1 0]
        [0 1 1]]]

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
    """

    RANGES: ClassVar[dict[str, str]] = {"size": "1 <= x"}
    size: int

    def __call__(self, query: Tokens, key: Tokens) -> jax.Array:
        """Return bool [B, L, S], true where the key is visible and nearer than `size`.

        Args:
          query: Positions and segments of the queries [B, L].
          key: Positions and segments of the keys [B, S].

        Returns:
          bool [B, L, S].
        """
        distance_BLS = query.positions_BL[:, :, None] - key.positions_BL[:, None, :]
        return Causal()(query, key) & (distance_BLS < self.size)

    def share(self, num_queries: int, num_keys: int) -> Fraction:
        """Return the share of pairs in the band: `w/S - w^2 / 2S^2`, for a size of w and S keys.

        Args:
          num_queries: Queries, the last of the keys.
          num_keys: Keys.

        Returns:
          A number from 0 to 1.
        """
        # A size that is swept is a tracer, and unknown while tracing: counted as if unlimited.
        size = self.size if isinstance(self.size, int) else num_keys
        return _band(num_queries, num_keys, size)


def pair_share(mask: AttentionMask, num_queries: int, num_keys: int) -> Fraction:
    """Return the share of pairs that a mask leaves visible in a row of one document.

    The diagonal counts half, by the usual convention: half of the pairs of a causal mask count.

    Args:
      mask: A mask; one without `share` counts all pairs.
      num_queries: L.
      num_keys: S.
    """
    share: Any = getattr(mask, "share", None)
    return Fraction(1) if share is None else share(num_queries, num_keys)


def _band(num_queries: int, num_keys: int, size: int) -> Fraction:
    """Return the share of pairs not later than a query and nearer than `size`."""
    # Exact, as a fraction: the share travels in the name of a scope (`declared.visible`) and is
    # multiplied with integer FLOPs. Queries are the last ones of the keys, as in decoding, so their
    # area is that of all keys less that of the keys before them.
    before = max(num_keys - num_queries, 0)

    def area(num: int) -> int:
        """Return twice the pairs of the first queries."""
        return num * num if num <= size else 2 * num * size - size * size

    return Fraction(area(num_keys) - area(before), 2 * num_queries * num_keys)
