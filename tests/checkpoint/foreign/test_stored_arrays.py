import pathlib

import numpy as np
import pytest

from luthier.checkpoint.foreign import (
    StoredArray,
    StoredArrays,
    in_memory,
    layer_of,
    multiple,
    reordered,
    with_first,
)

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PART = (slice(1, 2), slice(0, 2), slice(1, 4))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_layer_is_a_part_of_a_stack(axis):
    layer = layer_of(in_memory(VALUES), axis, 1)
    expected = VALUES.take(1, axis)
    assert (layer.shape, layer.dtype) == (expected.shape, "float32")
    np.testing.assert_array_equal(layer.read((slice(0, 1), slice(1, 3))), expected[:1, 1:3])


def test_only_the_block_that_is_asked_for_is_read():
    asked = []

    def read(index):
        asked.append(index)
        return VALUES[index]

    layer_of(StoredArray(VALUES.shape, "float32", read), 1, 2).read((slice(0, 1), slice(1, 3)))
    assert asked == [(slice(0, 1), slice(2, 3), slice(1, 3))]


def test_a_multiple_is_computed_in_float32():
    half = in_memory(VALUES.astype(np.float16))
    found = multiple(half, 3).read(PART)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, 3 * VALUES[PART])


def test_the_last_dimension_is_put_in_order():
    order = np.array([2, 0, 3, 1])
    found = reordered(in_memory(VALUES), order).read(PART)
    np.testing.assert_array_equal(found, VALUES[..., order][PART])


def test_two_arrays_are_one():
    both = with_first(in_memory(-VALUES[:1]), in_memory(VALUES[:1]))
    assert both.shape == (1, 6, 4)
    expected = np.concatenate([-VALUES[:1], VALUES[:1]], axis=1)
    index = (slice(0, 1), slice(2, 5), slice(1, 4))
    np.testing.assert_array_equal(both.read(index), expected[index])


def test_arrays_are_described_without_being_read():
    arrays = StoredArrays(pathlib.Path("here"), {"a/b": in_memory(VALUES)})
    described = arrays.described["a/b"]
    assert (described.shape, described.dtype, described.file) == ((2, 3, 4), "float32", arrays.path)
    np.testing.assert_array_equal(arrays.read("a/b", PART), VALUES[PART])
