import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.checkpoint.foreign import TensorLayout

SIZES = {"heads": 3, "head_dim": 4, "embed": 5, "vocab": 6}

# A layout, and the same in numpy: from the foreign array to ours.
CASES = {
    "embed": lambda x: x,
    "vocab embed -> embed vocab": lambda x: x.T,
    "(heads head_dim) embed -> embed heads head_dim": lambda x: x.reshape(3, 4, 5).transpose(
        2, 0, 1
    ),
    "embed (heads head_dim) -> heads head_dim embed": lambda x: x.reshape(5, 3, 4).transpose(
        1, 2, 0
    ),
    "(heads head_dim) -> heads head_dim": lambda x: x.reshape(3, 4),
    "1 1 embed -> embed": lambda x: x[0, 0],
    "embed -> 1 embed": lambda x: x[None],
    "(embed heads head_dim) vocab -> vocab head_dim embed heads": lambda x: x.reshape(
        5, 3, 4, 6
    ).transpose(3, 2, 0, 1),
}


def _ours(text):
    right = text.rpartition("->")[2].split()
    return tuple(SIZES.get(name, 1) for name in right)


def _fetch(array, read):
    def fetch(index):
        read.append(index)
        return array[index]

    return fetch


@pytest.mark.parametrize("text", CASES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_part_is_that_of_the_rearranged_array(text, data):
    layout, shape = TensorLayout(text), _ours(text)
    foreign_shape = layout.foreign_shape(shape, {})
    foreign = np.arange(math.prod(foreign_shape), dtype=np.float32).reshape(foreign_shape)
    ours = CASES[text](foreign)
    assert ours.shape == shape
    index = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        index.append(slice(start, data.draw(st.integers(start, size))))
    found = layout.read(_fetch(foreign, []), shape, tuple(index), {})
    np.testing.assert_array_equal(found, ours[tuple(index)])


@pytest.mark.parametrize("text", CASES)
def test_writing_undoes_reading(text):
    layout, shape = TensorLayout(text), _ours(text)
    foreign_shape = layout.foreign_shape(shape, {})
    foreign = np.random.default_rng(0).normal(size=foreign_shape)
    np.testing.assert_array_equal(layout.write(CASES[text](foreign), {}), foreign)


def test_a_device_reads_the_rows_of_its_heads_alone():
    layout = TensorLayout("(heads head_dim) embed -> embed heads head_dim")
    read = []
    part = (slice(0, 5), slice(1, 2), slice(0, 4))
    layout.read(_fetch(np.zeros((12, 5)), read), (5, 3, 4), part, {})
    assert read == [(slice(4, 8), slice(0, 5))]


def test_padding_is_zero_and_is_not_written():
    layout = TensorLayout("vocab embed")
    foreign = np.ones((6, 5), np.float32)
    limits = {"vocab": 6}
    assert layout.foreign_shape((8, 5), limits) == (6, 5)
    whole = layout.read(_fetch(foreign, []), (8, 5), (slice(0, 8), slice(0, 5)), limits)
    np.testing.assert_array_equal(whole, np.pad(foreign, [(0, 2), (0, 0)]))
    read = []
    beyond = layout.read(_fetch(foreign, read), (8, 5), (slice(6, 8), slice(0, 5)), limits)
    assert not read
    assert not beyond.any()
    assert beyond.shape == (2, 5)
    np.testing.assert_array_equal(layout.write(whole, limits), foreign)


def test_a_limit_above_the_size_is_none():
    assert TensorLayout("vocab embed").foreign_shape((4, 5), {"vocab": 6}) == (4, 5)


@pytest.mark.parametrize("text", ["a b -> a", "a a -> a a", "a b -> (a b)"])
def test_what_cannot_be_undone_is_refused(text):
    with pytest.raises(ValueError, match="is not a rearrangement of dimensions"):
        TensorLayout(text)


def test_another_number_of_dimensions_is_refused():
    with pytest.raises(ValueError, match="does not describe"):
        TensorLayout("a b").foreign_shape((3,), {})
