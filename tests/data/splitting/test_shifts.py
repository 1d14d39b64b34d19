import numpy as np

from luthier.data import ShiftLeft, ShiftRight

TOKENS = np.array([[3, 8, 1, 9, 1, 5, 4, 1, 0, 0], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0] * 10])
SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 3, 3, 0, 0], [1] * 10, [0] * 10])


def test_right_is_the_example_of_seqio():
    shift = ShiftRight(start=0)
    inputs = shift.inputs(TOKENS, SEGMENTS)
    assert inputs[0].tolist() == [0, 3, 8, 0, 9, 0, 5, 4, 0, 0]
    np.testing.assert_array_equal(shift.targets(TOKENS, SEGMENTS), TOKENS)
    np.testing.assert_array_equal(shift.of_targets(TOKENS), TOKENS)


def test_right_starts_every_segment_and_leaves_padding():
    inputs = ShiftRight(start=7).inputs(TOKENS, SEGMENTS)
    assert inputs.tolist() == [
        [7, 3, 8, 7, 9, 7, 5, 4, 0, 0],
        [7, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        [0] * 10,
    ]


def test_left_ends_every_row_that_is_no_padding():
    shift = ShiftLeft(end=99)
    np.testing.assert_array_equal(shift.inputs(TOKENS, SEGMENTS), TOKENS)
    assert shift.targets(TOKENS, SEGMENTS).tolist() == [
        [8, 1, 9, 1, 5, 4, 1, 0, 0, 99],
        [3, 4, 5, 6, 7, 8, 9, 10, 11, 99],
        [0] * 10,
    ]
    weights = shift.of_targets((SEGMENTS > 0).astype(np.float32))
    assert weights.dtype == np.float32
    assert weights.sum(axis=1).tolist() == [7, 9, 0]
