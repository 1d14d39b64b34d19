"""Chunked computation along a sequence. Shapes: B batch rows, L length, C chunk, N chunks.

A loss over a large vocabulary needs memory for the logits of every token that it computes at once.
Chunks cut the sequence, never the batch: each device cuts its own rows, so the axis that is scanned
is never sharded over the batch axes of the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp


class Chunking(Protocol):
    """Applies a function that acts on every position by itself."""

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`, whose results are arrays [B, L, ...].

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """


@dataclasses.dataclass(frozen=True)
class Whole:
    """Computes the whole sequence at once: fastest while the logits fit."""

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`.

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """
        return function(*arrays_BL)


@dataclasses.dataclass(frozen=True)
class Chunked:
    """Computes `length` positions at a time, and again in the backward pass.

    Memory falls from L to `length` positions; the function's forward FLOPs are paid twice. A
    sequence that is not a multiple of `length` ends with a shorter chunk.

    Args:
      length: Positions in a chunk.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import losses
      >>> print(losses.Chunked(2).map(lambda x_BL: 2 * x_BL, jnp.arange(4.0)[None]))
      [[0. 2. 4. 6.]]
    """

    RANGES: ClassVar[dict[str, str]] = {"length": "1 <= x"}

    length: int

    def map(self, function: Callable[..., Any], *arrays_BL: jax.Array) -> Any:
        """Return `function(*arrays_BL)`, computed chunk by chunk along the second axis.

        Args:
          function: Called with the arrays or chunks of them; tokens do not depend on each other
            in it.
          *arrays_BL: Arrays [B, L, ...].

        Returns:
          Its results, arrays [B, L, ...].
        """
        length = arrays_BL[0].shape[1]
        num_chunks, rest = divmod(length, self.length)
        if num_chunks + (rest > 0) <= 1:
            return function(*arrays_BL)
        # Chunks are the leading dimension of a scan with an empty carry. `checkpoint` is what saves
        # memory: without it the scan would stack the residuals of all chunks, logits among them,
        # for the backward pass. `prevent_cse=False`: within a scan XLA cannot merge the
        # recomputation with the forward pass, and needs no barriers.
        #
        # Parameters that the function closes over (the unembedding) are constants of the scan, and
        # their gradient is the scan's sum over chunks, in their type, widened in `program.step`.
        end = length - rest
        body = jax.checkpoint(function, prevent_cse=False)
        _, results = jax.lax.scan(
            lambda carry, chunks: (carry, body(*chunks)),
            None,
            [_split(array[:, :end], num_chunks) for array in arrays_BL],
        )
        results = jax.tree.map(_join, results)
        if not rest:
            return results
        # Not padded to a whole chunk: the function need not have a neutral input. Outside of the
        # scan XLA could merge the recomputation with the forward pass, so the barriers stay.
        tail = jax.checkpoint(function)(*(array[:, end:] for array in arrays_BL))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), results, tail)


def _split(array_BL: jax.Array, num_chunks: int) -> jax.Array:
    """[B, N*C, ...] -> [N, B, C, ...]."""
    rows, _, *rest = array_BL.shape
    return jnp.moveaxis(array_BL.reshape(rows, num_chunks, -1, *rest), 1, 0)


def _join(array_NBC: jax.Array) -> jax.Array:
    """[N, B, C, ...] -> [B, N*C, ...]."""
    num_chunks, rows, length, *rest = array_NBC.shape
    return jnp.moveaxis(array_NBC, 0, 1).reshape(rows, num_chunks * length, *rest)
