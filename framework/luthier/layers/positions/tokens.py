"""Which document each token of a row belongs to, and where it stands there.

Shapes: B rows, L length. Layers take positions from here and never from places in an array, so
that packed rows, caches and rows of one document are the same to them: what Raffel et al. 2019
(arXiv 1910.10683, section 3.5.2) call packing needs no further care.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """Which document of its row each token belongs to, and where it stands in it.

    Args:
      positions_BL: int32 [B, L], from 0 in every segment.
      segments_BL: int32 [B, L], 0 for padding, 1 and up for the documents of a row.

    Source: Raffel et al. 2019, arXiv 1910.10683, section 3.5.2 (several sequences in one row).
    """

    positions_BL: jax.Array
    segments_BL: jax.Array

    @classmethod
    def single(cls, batch_size: int, length: int) -> Tokens:
        """Describe rows that are one document each, without padding."""
        positions_L = jnp.arange(length, dtype=jnp.int32)
        shape = (batch_size, length)
        return cls(jnp.broadcast_to(positions_L, shape), jnp.ones(shape, jnp.int32))
