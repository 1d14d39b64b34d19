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

    Returns:
      Bytes, of all devices together if nothing is replicated.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> parallel.array_bytes((128, 256), jnp.bfloat16)
      65536
    """
    itemsize = getattr(dtype, "itemsize", None)
    return math.prod(shape) * (itemsize if isinstance(itemsize, int) else jnp.dtype(dtype).itemsize)


def bytes_per_device(placements: Iterable[Placed]) -> int:
    """Return the bytes that placed arrays take on each device.

    Args:
      placements: Placements, such as the values of what `place` returns.

    Returns:
      Bytes on one device; all devices hold equally many.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import parallel
      >>> array = parallel.ArrayInfo((128, 256), jnp.float32, ("embed", "mlp"))
      >>> placements = parallel.place({"kernel": array}, {"embed": ("fsdp",)}, {"fsdp": 4})
      >>> parallel.bytes_per_device(placements.values())
      32768
    """
    return sum(placement.bytes_per_device for placement in placements)
