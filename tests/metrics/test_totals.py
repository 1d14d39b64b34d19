from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import NATS_PER_TOKEN, PERPLEXITY, Ratio, Totals


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


def test_keeps_the_last_batches_on_the_device():
    totals = Totals(num_pending=2)
    for _ in range(5):
        totals.add({NATS_PER_TOKEN: Ratio(jnp.float32(1), jnp.float32(1))})
    assert len(totals._pending) == 2
    assert totals.ratios()[NATS_PER_TOKEN].denominator == 5


def test_nothing_added_is_no_metrics():
    assert Totals().values() == {}
