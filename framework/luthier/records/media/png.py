"""A writer of PNG files that needs nothing but zlib."""

from __future__ import annotations

import struct
import zlib
from typing import Any

_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # channels to PNG's grey, RGB and RGBA


def encode_png(pixels: Any) -> bytes:
    """Return an image as the bytes of a PNG file.

    Args:
      pixels: uint8 [height, width, channels] with 1, 3 or 4 channels (grey, RGB, RGBA), or
        [height, width].

    Raises:
      ValueError: It is no such array.
    """
    import numpy as np  # not at the top: to import the room is to be cheap

    array = np.asarray(pixels)
    if array.ndim == 2:
        array = array[..., None]
    fits = array.ndim == 3 and array.size and array.shape[-1] in _COLOR_TYPES
    if array.dtype != np.uint8 or not fits:
        what = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"an image is uint8 [height, width, 1, 3 or 4 channels], not {what}")
    height, width, channels = array.shape
    rows = array.reshape(height, width * channels)
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(unfiltered.tobytes(), 6)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
