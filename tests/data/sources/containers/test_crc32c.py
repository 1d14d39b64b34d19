import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data.sources.containers import crc32c, masked_crc32c


def bitwise(data):
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


# RFC 3720, appendix B.4.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected


@pytest.mark.parametrize("size", [511, 512, 513, 1000, 1024, 4097, 20_000])
def test_long_data(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert crc32c(data) == bitwise(data) == crc32c(memoryview(data))


@given(st.binary(min_size=500, max_size=700))
def test_around_the_change_of_method(data):
    assert crc32c(data) == bitwise(data)


def test_the_mask():
    crc = crc32c(b"abc")
    rotated = (crc >> 15) | (crc & 0x7FFF) << 17
    assert masked_crc32c(b"abc") == (rotated + 0xA282EAD8) % 2**32
