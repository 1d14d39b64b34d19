import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, packed_varints


def varint(value):
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_numbers(numbers):
    data = b"".join(map(varint, numbers))
    np.testing.assert_array_equal(packed_varints(memoryview(data)), np.array(numbers, np.int64))


@given(st.lists(st.tuples(st.integers(1, 2**20), st.one_of(st.integers(0, 2**63), st.binary()))))
def test_fields(items):
    message = b""
    for number, value in items:
        if isinstance(value, int):
            message += varint(number << 3) + varint(value)
        else:
            message += varint(number << 3 | 2) + varint(len(value)) + value
    found = list(fields(message))
    assert [(number, bytes(v) if k == BYTES else v) for number, k, v in found] == items


def test_fixed_sizes():
    message = b"\x09" + bytes(8) + b"\x15" + b"abcd"
    assert [(n, k, bytes(v)) for n, k, v in fields(message)] == [
        (1, FIXED64, bytes(8)),
        (2, FIXED32, b"abcd"),
    ]


@pytest.mark.parametrize("message", [b"\x0a\x05ab", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b"])
def test_what_is_no_message(message):
    with pytest.raises(ValueError, match="not a protocol buffer"):
        list(fields(message))


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"])
def test_numbers_that_are_cut_off(data):
    with pytest.raises(ValueError, match="not a protocol buffer"):
        packed_varints(memoryview(data))


def test_varint_kind():
    assert list(fields(b"\x08\x96\x01")) == [(1, VARINT, 150)]
