"""Transfers of large objects of object stores, piece by piece.

A store answers a request when all of its bytes are there, so that a time limit on a request is a
least speed: 2 GB in 60 s is 34 MB/s, and a slower line never succeeds. In pieces the limit is one
on progress. Their size follows the line: small where it is slow, so that each arrives in time, and
large where it is fast, so that requests do not dominate. At most one piece is in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

STALL_SECONDS = 60.0
"""A request that took so long has stalled; none carries more than a piece."""

# Also the first size: the speed of the line is not known yet, and a piece that is too large would
# cost a whole time limit, where one that is too small costs a round trip.
LEAST_PIECE_BYTES = 1 << 16
LARGEST_PIECE_BYTES = 1 << 24


class PieceSize:
    """The size of the next piece, from how long the last one took.

    Args:
      stall_seconds: Time limit of a piece; it grows where it took a 60th of that, and shrinks
        where it took a 12th.
    """

    def __init__(self, stall_seconds: float = STALL_SECONDS):
        self.num_bytes = LEAST_PIECE_BYTES
        self._short, self._long = stall_seconds / 60, stall_seconds / 12
        self._start = 0.0

    def __enter__(self) -> int:
        self._start = time.monotonic()
        return self.num_bytes

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        took = time.monotonic() - self._start
        # Between the two limits the size stays, so that it does not alternate. A piece that failed
        # never makes the next one larger, however quickly it failed.
        if kind is None and took < self._short:
            self.num_bytes = min(2 * self.num_bytes, LARGEST_PIECE_BYTES)
        elif took > self._long:
            self.num_bytes = max(self.num_bytes // 2, LEAST_PIECE_BYTES)


class OutOfRange(Exception):
    """An object ends before the range that was asked for does."""


class ChangedObject(Exception):
    """An object was rewritten while it was read, or is gone."""


class GoneObject(ChangedObject):
    """An object is not there, or not any more."""


def read_pieces(
    read: Callable[[slice], Any], stall_seconds: float = STALL_SECONDS
) -> Iterator[bytes]:
    """Yield the content of an object that exists, piece by piece.

    Args:
      read: Returns TensorStore's `ReadResult` of a range of bytes.
      stall_seconds: Time limit of a piece.

    Raises:
      ChangedObject: The object was rewritten meanwhile; `GoneObject` where there is none.
      Whatever `read` raises, but for `OutOfRange`.
    """
    size, start, version = PieceSize(stall_seconds), 0, None
    is_last = False
    while not is_last:
        with size as num_bytes:
            # No store reports the length of an object: where a range is too long, the rest is
            # shorter than it, and is requested from one byte before, because "from the end on" is
            # an error.
            first = start
            try:
                found = read(slice(start, start + num_bytes))
            except OutOfRange:
                is_last, first = True, max(0, start - 1)
                found = read(slice(first, None))
        # Pieces of two versions must not be glued together. The generation that comes with each
        # answer is compared instead of asking beforehand, which would leave a window.
        if found.state == "missing":
            raise GoneObject
        if version not in (None, found.stamp.generation):
            raise ChangedObject
        version = found.stamp.generation
        yield found.value[start - first :]
        start = first + len(found.value)
