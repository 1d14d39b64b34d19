"""Bytes of arrays and of shards, and their formatting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp


class Placed(Protocol):
    """Anything that knows how many bytes of it each device holds."""

    @property
    def bytes_per_device(self) -> int:
        """Bytes of the shard on one device."""


def array_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Return the bytes of a whole array.

    Args:
      shape: Its global shape.
      dtype: Its type; also one of JAX's own, such as that of a random key.
    """
    itemsize = getattr(dtype, "itemsize", None)
    return math.prod(shape) * (itemsize if isinstance(itemsize, int) else jnp.dtype(dtype).itemsize)


def bytes_per_device(placements: Iterable[Placed]) -> int:
    """Return the bytes that placed arrays take on each device.

    Args:
      placements: Placements, such as the values of what `place` returns.
    """
    return sum(placement.bytes_per_device for placement in placements)
