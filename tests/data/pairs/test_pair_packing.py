import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import OnePair, PackPairs

PAIRS = st.lists(st.tuples(st.integers(1, 10), st.integers(1, 7)), min_size=1, max_size=60)


@given(PAIRS, st.integers(1, 5))
def test_every_row_has_room_and_none_is_left_out(pairs, open_rows):
    inputs, targets = np.array(pairs).T
    rows = PackPairs(open_rows).rows(inputs, targets, (10, 7))
    assert sorted(set(rows.tolist())) == list(range(rows.max() + 1))
    assert np.bincount(rows, inputs).max() <= 10
    assert np.bincount(rows, targets).max() <= 7


@given(PAIRS)
def test_with_all_rows_open_it_is_first_fit(pairs):
    left, expected = [], []
    for a, b in pairs:
        fitting = [row for row, (x, y) in enumerate(left) if x >= a and y >= b]
        row = fitting[0] if fitting else len(left)
        if not fitting:
            left.append([10, 7])
        left[row][0] -= a
        left[row][1] -= b
        expected.append(row)
    inputs, targets = np.array(pairs).T
    assert PackPairs().rows(inputs, targets, (10, 7)).tolist() == expected


def test_one_pair_a_row():
    assert OnePair().rows(np.ones(4), np.ones(4), (9, 9)).tolist() == [0, 1, 2, 3]
