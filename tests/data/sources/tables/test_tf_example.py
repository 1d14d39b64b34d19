import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import TFExample


def varint(value):
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, packed=True):
    if all(isinstance(v, bytes) for v in values):
        return message(1, b"".join(message(1, v) for v in values))
    if all(isinstance(v, int) for v in values):
        if packed:
            return message(3, message(1, b"".join(map(varint, values))))
        return message(3, b"".join(b"\x08" + varint(v) for v in values))
    if packed:
        return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
    return message(2, b"".join(b"\x0d" + struct.pack("<f", v) for v in values))


def example(packed=True, **features):
    entries = [
        message(1, message(1, name.encode()) + message(2, feature(values, packed)))
        for name, values in features.items()
    ]
    return message(1, b"".join(entries))


@pytest.mark.parametrize("packed", [True, False])
def test_features(packed):
    record = example(packed, i=[1, -1, 2**62], f=[0.5, -2.0], b=[b"one"], bb=[b"x", b""])
    found = TFExample()(record)
    np.testing.assert_array_equal(found["i"], np.array([1, -1, 2**62]))
    np.testing.assert_array_equal(found["f"], np.array([0.5, -2.0], np.float32))
    assert found["i"].dtype == np.int64
    assert found["f"].dtype == np.float32
    assert found["b"] == b"one"
    assert found["bb"] == [b"x", b""]


def test_the_serialization_of_tensorflow():
    # tf.train.Example(features={"a": int64_list [7], "b": bytes_list [b"hi"]}).SerializeToString()
    record = bytes.fromhex("0a190a0a0a016112051a030a01070a0b0a016212060a040a026869")
    assert TFExample()(record) == {"a": np.array([7]), "b": b"hi"}


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.booleans())
def test_every_integer_is_read_back(numbers, packed):
    found = TFExample()(
        message(
            1,
            message(
                1,
                message(1, b"i")
                + message(
                    2,
                    message(
                        3,
                        (
                            message(1, b"".join(map(varint, numbers)))
                            if packed
                            else b"".join(b"\x08" + varint(number) for number in numbers)
                        ),
                    ),
                ),
            ),
        )
    )["i"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.array(numbers, np.int64))


@pytest.mark.parametrize("record", [b"\x08\x01", b"\x0a\x02\x08\x01", b"plain text", b"\x0a\x7f"])
def test_other_bytes(record):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        TFExample()(record)
