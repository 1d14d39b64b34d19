from __future__ import annotations

import jax
import jax.numpy as jnp

from luthier.metrics import NATS_PER_TOKEN, Ratio
from luthier.tasks import Additive, BatchCoupled, LossSums


def sums(value, weight):
    ratio = Ratio(jnp.float32(value), jnp.float32(weight))
    return LossSums(ratio, {NATS_PER_TOKEN: ratio})


def test_sums_merge():
    merged = jax.jit(lambda a, b: a + b)(sums(1, 2), sums(3, 4))
    assert merged.loss.host() == Ratio(4.0, 6.0)
    assert merged.metrics[NATS_PER_TOKEN].host() == Ratio(4.0, 6.0)


def test_sums_are_carried_by_a_scan():
    def body(total, value):
        return total + sums(value, 1), None

    total, _ = jax.lax.scan(body, sums(0, 0), jnp.arange(4.0))
    assert total.loss.host() == Ratio(6.0, 4.0)


def test_a_coupled_loss_says_what_couples_it():
    assert Additive() == Additive()
    assert BatchCoupled("in-batch negatives").reason == "in-batch negatives"
