"""Which part of each row every place of a ring holds, and how often keys are passed on.

Shapes: L tokens of a row at each place, P pieces that a place attends to and from one by one.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from luthier.layers.attention.masks import Mask, Window

Axes = tuple[str, ...]


class Order(Protocol):
    """Shares out the tokens of rows among the places of a ring; used inside of `shard_map`."""

    @property
    def num_pieces(self) -> int:
        """P; places hold a multiple of this many tokens of each row."""

    def num_rounds(self, mask: Mask, length: int, places: int) -> int:
        """Return how many places' keys, its own included, a place has to see."""

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return this place's tokens, where `x` [B, L, ...] holds the tokens as they follow."""

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return the tokens as they follow: what `spread` was given."""


@dataclasses.dataclass(frozen=True)
class Contiguous:
    """Each place holds tokens that follow one another.

    The work is even where every token sees as many others: with no mask but the documents, and
    with windows, which need the keys of the nearest places only. With a causal mask the last
    place has most of it.
    """

    @property
    def num_pieces(self) -> int:
        """One."""
        return 1

    def num_rounds(self, mask: Mask, length: int, places: int) -> int:
        """Return how many places' keys a place has to see: with a window, only the nearest.

        Args:
          mask: Which keys a query may look at.
          length: L.
          places: Places of the ring.
        """
        if not isinstance(mask, Window) or not isinstance(mask.size, int):
            return places
        return min(places, 1 + -(-(mask.size - 1) // length))

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return `x`."""
        return x

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Return `x`."""
        return x


@dataclasses.dataclass(frozen=True)
class Zigzag:
    """Each place holds one piece from the front of a row and one from its end.

    Of 2N pieces, place i holds i and 2N - 1 - i: with a causal mask, every place does the same
    work in every round, half of that without a mask. Tokens are exchanged on the way in and out.

    Source: Zhu 2024, "ring-flash-attention", zigzag scheme; Brandon et al. 2023, arXiv 2311.09431
      (the imbalance, and another remedy).
    """

    @property
    def num_pieces(self) -> int:
        """Two."""
        return 2

    def num_rounds(self, mask: Mask, length: int, places: int) -> int:
        """Return the number of places: nearest pieces come from both sides."""
        return places

    def spread(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Exchange pieces.

        Args:
          x: Tokens 2 i L / 2 ... of the row, [B, L, ...].
          axes: The mesh axes of the ring.
          places: N.

        Returns:
          Pieces i and 2N - 1 - i, one after the other, [B, L, ...].
        """
        even, odd = jnp.split(x, 2, axis=1)
        even = jax.lax.ppermute(even, axes, [(c // 2, _place(c, places)) for c in _evens(places)])
        odd = jax.lax.ppermute(odd, axes, [(c // 2, _place(c, places)) for c in _odds(places)])
        return _by_parity(even, odd, axes)

    def gather(self, x: jax.Array, axes: Axes, places: int) -> jax.Array:
        """Exchange pieces back; see `spread`."""
        first, last = jnp.split(x, 2, axis=1)
        # A place holds one even piece and one odd one; the even one is first at even places.
        even, odd = jnp.split(_by_parity(first, last, axes), 2, axis=1)
        even = jax.lax.ppermute(even, axes, [(_place(c, places), c // 2) for c in _evens(places)])
        odd = jax.lax.ppermute(odd, axes, [(_place(c, places), c // 2) for c in _odds(places)])
        return jnp.concatenate([even, odd], axis=1)


def _place(piece: int, places: int) -> int:
    return min(piece, 2 * places - 1 - piece)


def _evens(places: int) -> range:
    return range(0, 2 * places, 2)


def _odds(places: int) -> range:
    return range(1, 2 * places, 2)


def _by_parity(one: jax.Array, other: jax.Array, axes: Axes) -> jax.Array:
    """Put two pieces one after the other, at odd places the other way round."""
    is_even = jax.lax.axis_index(axes) % 2 == 0
    first, last = jnp.where(is_even, one, other), jnp.where(is_even, other, one)
    return jnp.concatenate([first, last], axis=1)
