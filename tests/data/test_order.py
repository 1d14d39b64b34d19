import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.data import Shuffled, host_positions, shuffled_rows

SEEDS = st.integers(-(2**70), 2**70)


def epoch(number, num_rows, seed):
    return shuffled_rows(np.arange(num_rows) + number * num_rows, num_rows, seed)


@given(st.integers(1, 700), SEEDS, st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(num_rows, seed, number):
    assert sorted(epoch(number, num_rows, seed)) == list(range(num_rows))


@given(SEEDS)
@settings(max_examples=20)
def test_epochs_and_seeds_differ(seed):
    seeds = {seed, seed + 1, seed + 2**64, -seed - 1}  # of -1 and 0, two are the same
    orders = [epoch(1, 500, seed), *(epoch(0, 500, other) for other in seeds)]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert np.mean(first == second) < 0.05


@given(st.data())
def test_a_place_does_not_depend_on_what_is_asked_with_it(data):
    num_rows, seed = data.draw(st.integers(1, 90)), data.draw(SEEDS)
    whole = shuffled_rows(np.arange(5 * num_rows), num_rows, seed)
    some = data.draw(st.lists(st.integers(0, 5 * num_rows - 1)))
    found = shuffled_rows(np.array(some, np.int64), num_rows, seed)
    np.testing.assert_array_equal(found, whole[some])


@pytest.mark.parametrize("num_rows", [10, 1000, 18979])
def test_orders_look_random(num_rows):
    orders = np.stack([epoch(n, num_rows, 7) for n in range(200)])
    middle = (num_rows - 1) / 2
    deviation = np.sqrt((num_rows**2 - 1) / 12)
    at_places = (orders[:, :10].mean(0) - middle) / (deviation / np.sqrt(200))
    assert np.abs(at_places).max() < 4.5
    steps = np.corrcoef(orders[:, :-1].ravel(), orders[:, 1:].ravel())[0, 1]
    assert abs(steps + 1 / (num_rows - 1)) < 0.05
    assert abs(np.corrcoef(orders[:-1].ravel(), orders[1:].ravel())[0, 1]) < 0.05


def test_small_permutations_are_equally_frequent():
    orders = shuffled_rows(np.arange(4 * 24_000), 4, 3).reshape(-1, 4)
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert np.abs(counts / 1000 - 1).max() < 0.2


def test_the_order_is_fixed_for_good():
    """A changed order would change every run that is resumed: never edit these numbers."""
    assert shuffled_rows(np.arange(12), 10, 0).tolist() == [1, 9, 2, 6, 0, 3, 7, 4, 5, 8, 1, 4]
    assert shuffled_rows(np.array([10**15]), 10**9 + 7, 5).tolist() == [602945667]


def slow_mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def slow_row(position, num_rows, seed):
    """The same row in whole numbers of Python, one at a time."""
    golden = 0x9E3779B97F4A7C15
    epoch, place = divmod(position, num_rows)
    key = slow_mix((slow_mix(seed % 2**64) + (seed >> 64) * golden) % 2**64)
    key = slow_mix((key + epoch * golden) % 2**64)
    b = math.isqrt(num_rows - 1) + 1
    sizes = (-(-num_rows // b), b)
    while True:
        halves = list(divmod(place, b))
        for round_ in range(6):
            side = round_ % 2
            mixed = slow_mix((key + round_ * golden) % 2**64 ^ halves[1 - side])
            halves[side] = (halves[side] + mixed) % sizes[side]
        place = halves[0] * b + halves[1]
        if place < num_rows:
            return place


@given(st.integers(0, 2**62), st.integers(1, 2**40), SEEDS)
def test_equal_to_a_slow_reference(position, num_rows, seed):
    (found,) = shuffled_rows(np.array([position]), num_rows, seed)
    assert found == slow_row(position, num_rows, seed)


@pytest.mark.full
@given(st.integers(0, 2**40), st.integers(1, 9))
def test_host_batches_are_the_global_batch(step, rows):
    whole = host_positions(step, rows * 8)
    np.testing.assert_array_equal(whole, np.arange(step * rows * 8, (step + 1) * rows * 8))
    for count in (1, 2, 4, 8):
        parts = [host_positions(step, rows * 8, index, count) for index in range(count)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_shuffled_order_returns_rows_and_epochs():
    order = Shuffled(7, seed=3)
    positions = np.arange(30)
    rows, epochs = order(positions)
    np.testing.assert_array_equal(rows, shuffled_rows(positions, 7, 3))
    np.testing.assert_array_equal(epochs, positions // 7)
    assert order.rule == ""
