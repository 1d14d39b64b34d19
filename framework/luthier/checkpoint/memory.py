"""Host memory: a restore takes no more than the state and a few arrays on their way.

Two things would double it. Orbax reads all arrays at once, if nobody bounds what is on its way. And
glibc keeps freed buffers for itself once it has seen a large one freed, in every thread that read:
what was read stays resident beside the arrays made of it. Many saves scatter what it keeps, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_AT_ONCE_BYTES = 1 << 17  # glibc's own, until it has seen larger ones freed
_USUAL_BYTES = 1 << 25  # the largest that glibc itself goes to
_SHARE = 16


@contextlib.contextmanager
def returned() -> Iterator[None]:
    """Have buffers that are freed inside given back to the system at once, where glibc is used."""
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _AT_ONCE_BYTES)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
        libc.malloc_trim(0)


def trim() -> None:
    """Give what glibc keeps of freed memory back to the system, in a few milliseconds."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def on_the_way(arrays: Iterable[jax.ShapeDtypeStruct]) -> int:
    """Return how many bytes Orbax may be reading at a time: a sixteenth, and any one array.

    Args:
      arrays: Shape, dtype and sharding of what is read.
    """
    own, largest = 0, 0
    for array in arrays:
        sharding, size = array.sharding, array.dtype.itemsize
        devices = len(sharding.addressable_devices)
        own += math.prod(sharding.shard_shape(array.shape)) * size * devices
        largest = max(largest, math.prod(array.shape) * size)
    return max(own // _SHARE, largest) + 1
