import struct
import zlib

import numpy as np
import pytest

from luthier.records import encode_png


def decode(data):
    """Read a PNG that has no filters, after its specification."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert at == len(data)
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest, chunks[b"IEND"]) == (8, [0, 0, 0], b"")
    channels = {0: 1, 2: 3, 6: 4}[color]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 1), (1, 9, 4), (5, 7)])
def test_pixels_read_back(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(decode(encode_png(pixels)).reshape(shape), pixels)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((2, 2, 3), np.float32),
        np.zeros((2, 2, 2), np.uint8),
        np.zeros((0, 2, 3), np.uint8),
        np.zeros(3, np.uint8),
    ],
)
def test_what_is_no_image_is_refused(pixels):
    with pytest.raises(ValueError, match="an image is uint8"):
        encode_png(pixels)
