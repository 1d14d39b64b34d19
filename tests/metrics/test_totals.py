from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import (
    ACCURACY,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
    Ratio,
    StackedRatios,
    Totals,
)


def test_merges_batches_in_double():
    totals = Totals()
    totals.add({NATS_PER_TOKEN: Ratio(jnp.float32(2**24), jnp.float32(2**24))})
    for _ in range(10):
        totals.add({NATS_PER_TOKEN: Ratio(jnp.float32(1), jnp.float32(1))})
    assert totals.ratios()[NATS_PER_TOKEN] == Ratio(2.0**24 + 10, 2.0**24 + 10)


def test_order_does_not_matter_to_the_last_bit():
    values = np.random.default_rng(0).normal(size=500) * 10.0 ** np.arange(-10, 10).repeat(25)

    def total(order):
        totals = Totals(num_pending=0)
        for value in values[order]:
            totals.add({NATS_PER_TOKEN: Ratio(np.float32(value), 1.0)})
        return totals.values()

    assert total(np.arange(500)) == total(np.random.default_rng(1).permutation(500))


def test_values_are_transformed_after_merging():
    totals = Totals()
    totals.add({PERPLEXITY: Ratio(1.0, 1.0)})
    totals.add({PERPLEXITY: Ratio(0.0, 1.0)})
    assert totals.values()[PERPLEXITY] == pytest.approx(np.exp(0.5))


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_a_metric_of_several_sums_is_that_of_the_whole_set(batch_size):
    rng = np.random.default_rng(0)
    labels, guesses = rng.choice(4, 100, p=[0.6, 0.25, 0.1, 0.05]), rng.integers(0, 4, 100)
    targets = rng.normal(3, 2, 100)
    predictions = targets + rng.normal(size=100)
    macro_f1 = Metric("macro_f1", better="higher", transform=np.mean)
    r2 = Metric("r2", better="higher", transform=lambda m: 1 - m[0] / (m[2] - m[1] ** 2))

    @jax.jit
    def sums(labels, guesses, targets, predictions):
        label, guess = jax.nn.one_hot(labels, 4), jax.nn.one_hot(guesses, 4)
        of_class = Ratio(2 * jnp.sum(label * guess, 0), jnp.sum(label + guess, 0))
        parts = jnp.stack([(predictions - targets) ** 2, targets, targets**2])
        moments = Ratio(jnp.sum(parts, 1), jnp.float32(targets.size))
        count = Ratio(jnp.sum(labels == guesses), targets.size)  # integers, beside the floats
        return StackedRatios.of({macro_f1: of_class, r2: moments, ACCURACY: count})

    totals = Totals()
    for start in range(0, 100, batch_size):
        rows = slice(start, start + batch_size)
        totals.add(sums(labels[rows], guesses[rows], targets[rows], predictions[rows]))
    values = totals.values()
    assert all(type(value) is float for value in values.values())
    f1 = [
        2 * np.sum((labels == k) & (guesses == k)) / (np.sum(labels == k) + np.sum(guesses == k))
        for k in range(4)
    ]
    assert values[macro_f1] == pytest.approx(np.mean(f1), rel=1e-7)
    residual = np.sum((predictions - targets) ** 2)
    expected = 1 - residual / np.sum((targets - targets.mean()) ** 2)
    assert values[r2] == pytest.approx(expected, rel=1e-5)
    assert values[ACCURACY] == np.mean(labels == guesses)


def test_a_quotient_of_nothing_in_an_array_is_nan():
    ratio = Ratio(jnp.array([1.0, 0.0]), jnp.array([2.0, 0.0])).host()
    np.testing.assert_array_equal(ratio.value(), [0.5, np.nan])


def test_keeps_the_last_batches_on_the_device():
    totals = Totals(num_pending=2)
    for _ in range(5):
        totals.add({NATS_PER_TOKEN: Ratio(jnp.float32(1), jnp.float32(1))})
    assert len(totals._pending) == 2
    assert totals.ratios()[NATS_PER_TOKEN].denominator == 5


def test_nothing_added_is_no_metrics():
    assert Totals().values() == {}
