import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.data import Shuffled
from luthier.data.mixture import PERIOD, Mixed, component_seed, period_of
from luthier.errors import DataError

WEIGHTS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8).map(tuple)


def mixed(weights, sizes=None, limits=None, stages=None):
    sizes = sizes or [1000] * len(weights)
    orders = [Shuffled(size, component_seed(1, str(k))) for k, size in enumerate(sizes)]
    limits = limits or [None] * len(weights)
    return Mixed(1, orders, sizes, limits, stages or [(0, weights)])


@given(WEIGHTS)
@settings(max_examples=50, deadline=None)
def test_shares_over_ten_thousand_rows(weights):
    components, _ = mixed(weights).components(np.arange(10_000))
    shares = np.bincount(components, minlength=len(weights)) / 10_000
    np.testing.assert_allclose(shares, np.array(weights) / sum(weights), atol=0.0005)


@given(WEIGHTS, st.integers(0, 10**7))
@settings(max_examples=50, deadline=None)
def test_every_run_of_rows_is_close_to_the_shares(weights, start):
    components, _ = mixed(weights).components(start + np.arange(300))
    ideal = np.array(weights) / sum(weights)
    for length in (1, 2, 3, 10, 50, 300):
        counts = np.bincount(components[:length], minlength=len(weights))
        slack = 2 + ideal * (len(weights) - 1) + length / PERIOD
        assert np.all(np.abs(counts - length * ideal) <= slack)


def test_quotas_of_a_period_are_exact():
    period = period_of((3.0, 1.0, 0.0, 1e-9))
    assert period.quotas.tolist() == [PERIOD * 3 // 4 - 1, PERIOD // 4, 0, 1]
    assert np.bincount(period.components, minlength=4).tolist() == period.quotas.tolist()
    np.testing.assert_array_equal(period.counts(PERIOD), period.quotas)
    for length in (0, 1, 7, PERIOD + 5):
        assert period.counts(length).sum() == length
    for count in (1, 2, PERIOD // 4, PERIOD // 4 + 3):
        length = period.length_of(1, count)
        assert period.counts(length)[1] == count
        assert period.counts(length - 1)[1] == count - 1


@given(st.lists(st.tuples(st.integers(0, 500), WEIGHTS), max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_occurrences_count_up_through_stages_and_limits(later, data):
    size = 3
    draw = st.tuples(*[st.sampled_from([0.0, 0.2, 1.0])] * size).filter(any)
    starts = [0, *sorted({start for start, _ in later if start})]
    stages = [(start, data.draw(draw)) for start in starts]
    limits = [data.draw(st.none() | st.integers(1, 150)) for _ in range(size)]
    order = mixed((1.0,) * size, [50] * size, limits, stages)
    end = order._segments[1]
    positions = np.arange(min(end or 800, 800))
    components, occurrences = order.components(positions)
    for component in range(size):
        own = occurrences[components == component]
        np.testing.assert_array_equal(own, np.arange(len(own)))
        if limits[component] is not None:
            assert len(own) <= limits[component]
    for number, (start, weights) in enumerate(stages):
        expected = np.bincount(components[:start], minlength=size)
        np.testing.assert_array_equal(order.counts(min(start, len(positions))), expected)
        stop = stages[number + 1][0] if number + 1 < len(stages) else len(positions)
        assert all(weights[component] for component in components[start:stop])


def test_each_component_has_every_row_once_an_epoch():
    order = mixed((0.7, 0.3), [40, 30])
    rows, epochs = order(np.arange(2000))
    for first, size in ((0, 40), (40, 30)):
        own = rows[(rows >= first) & (rows < first + size)]
        for epoch in range(len(own) // size):
            part = own[epoch * size : (epoch + 1) * size]
            assert sorted(part) == list(range(first, first + size))
        here = epochs[(rows >= first) & (rows < first + size)]
        np.testing.assert_array_equal(here, np.arange(len(here)) // size)


def test_any_position_alone_is_as_in_the_whole():
    order = mixed((0.5, 0.3, 0.2), [70, 20, 9], [None, 60, None], [(0, (1, 1, 0)), (90, (1, 1, 1))])
    rows, epochs = order(np.arange(1000))
    for position in np.random.default_rng(0).integers(0, 1000, 60):
        row, epoch = order(np.array([position]))
        assert (row[0], epoch[0]) == (rows[position], epochs[position])


def test_a_component_that_is_used_up_leaves_its_share_to_the_others():
    order = mixed((0.5, 0.25, 0.25), [100] * 3, [50, None, None])
    components, _ = order.components(np.arange(1000))
    assert (components == 0).sum() == 50
    assert np.flatnonzero(components == 0).max() in range(97, 103)
    rest = components[200:]
    assert abs((rest == 1).sum() - (rest == 2).sum()) <= 2


def test_when_nothing_is_left():
    order = mixed((0.5, 0.5), [10, 10], [10, 20])
    order(np.arange(30))
    with pytest.raises(DataError, match="the mixture ends after 30 rows"):
        order(np.array([30]))


def test_different_orders_have_different_rules():
    rules = {
        mixed((0.5, 0.5)).rule,
        mixed((0.5, 0.4)).rule,
        mixed((0.5, 0.5), limits=[5, None]).rule,
        mixed((0.5, 0.5), stages=[(0, (0.5, 0.5)), (9, (1.0, 0.0))]).rule,
    }
    assert len(rules) == 4
    assert mixed((0.5, 0.5)).rule == mixed((0.5, 0.5)).rule
