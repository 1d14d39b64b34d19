"""The wire format of protocol buffers, as far as reading known messages needs it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(message: int | bytes | memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield the fields of a message in their order.

    Args:
      message: The serialized message; a number, the value of a field of another type, is rejected.

    Yields:
      The field's number, its wire type, and its value: an int for a varint, else the bytes.

    Raises:
      ValueError: when the bytes are not a message.

    Source: Protocol Buffers documentation, "Encoding".
    """
    if isinstance(message, int):
        raise ValueError("not a protocol buffer: a number where a message is expected")
    # Written by hand instead of with the `protobuf` package, which needs generated classes for
    # every message. Views and not copies: a record may hold an image of megabytes.
    #
    # The bytes come from files, so every length is checked before it is used. Groups (wire types 3
    # and 4) are deprecated and do not occur in the messages that are read here.
    view, position = memoryview(message), 0
    while position < len(view):
        key, position = _varint(view, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, position = _varint(view, position)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            length, position = _varint(view, position)
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"not a protocol buffer: wire type {wire_type} at byte {position}")
        if position + length > len(view):
            raise ValueError(f"not a protocol buffer: cut off at byte {len(view)}")
        yield number, wire_type, view[position : position + length]
        position += length


def content(value: int | memoryview) -> memoryview:
    """Return the bytes of a field that must have bytes.

    Raises:
      ValueError: when it is a number.
    """
    if isinstance(value, int):
        raise ValueError("not a protocol buffer: a number where bytes are expected")
    return value


def packed_varints(data: memoryview) -> np.ndarray:
    """Return the signed 64-bit integers of a packed repeated field; int64 [n].

    Raises:
      ValueError: when the last one is cut off.
    """
    # All numbers at once: a byte below 128 ends a number, and each byte gives seven bits, the
    # lowest first.
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 128)
    if len(octets) and (not len(ends) or ends[-1] != len(octets) - 1):
        raise ValueError("not a protocol buffer: a number is cut off")
    starts = np.append(0, ends[:-1] + 1) if len(ends) else ends
    place = np.arange(len(octets)) - np.repeat(starts, ends - starts + 1)
    if place.size and place.max() > 9:
        raise ValueError("not a protocol buffer: a number of more than ten bytes")
    # Shifted to its place within its number, every byte is one summand of it: sums over runs are
    # the numbers. uint64 wraps modulo 2**64, and the cast reads the result in two's complement.
    parts = (octets & 127).astype(np.uint64) << (place * 7).astype(np.uint64)
    sums = np.add.reduceat(parts, starts) if len(starts) else np.zeros(0, np.uint64)
    return sums.astype(np.int64)


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    # At most ten bytes hold 64 bits; more would be damage, and Python's integers would
    # grow with it. Negative numbers arrive as their two's complement of 64 bits.
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(view):
            raise ValueError(f"not a protocol buffer: cut off at byte {position}")
        byte = view[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise ValueError(f"not a protocol buffer: a number of more than ten bytes at byte {position}")
