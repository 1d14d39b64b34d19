"""The product of a linear map, as a part of its own that can be swapped.

Shapes: T tokens, N rows sorted by expert, E experts, I inputs, O outputs.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax


class Product(Protocol):
    """Multiplies inputs by kernels; hashable, and without arrays of its own."""

    def __call__(self, x_TI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
        """Return the product [T, O] in the type of its factors.

        Args:
          x_TI: [T, I]; where the mesh shares out the length of rows, T is more than one dimension.
          kernel_IO: [I, O], of the same type.
        """

    def grouped(self, x_NI: jax.Array, kernel_EIO: jax.Array, sizes_E: jax.Array) -> jax.Array:
        """Return the products [N, O] of rows with the kernels of their experts.

        Args:
          x_NI: [N, I], sorted by expert.
          kernel_EIO: [E, I, O], of the same type.
          sizes_E: Rows of each expert, int32 [E]; rows after those of the last give anything.
        """


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """The product as it is, in the type of its factors."""

    def __call__(self, x_TI: jax.Array, kernel_IO: jax.Array) -> jax.Array:
        """Return the product [T, O] of [T, I] and [I, O]; T may be more dimensions than one."""
        return x_TI @ kernel_IO

    def grouped(self, x_NI: jax.Array, kernel_EIO: jax.Array, sizes_E: jax.Array) -> jax.Array:
        """Return the products [N, O] of rows [N, I] with the kernels [E, I, O] of their experts.

        Args:
          x_NI: [N, I], sorted by expert.
          kernel_EIO: [E, I, O].
          sizes_E: Rows of each expert, int32 [E].

        Source: Gale et al. 2022, arXiv:2211.15841, section 4.
        """
        return jax.lax.ragged_dot(x_NI, kernel_EIO, sizes_E)
