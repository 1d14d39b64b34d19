from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from luthier.metrics import NATS_PER_TOKEN, Ratio
from luthier.tasks import Additive, BatchCoupled, CoupledTask, LanguageModelling, LossSums


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


def _updated(weight, **updates):
    ratio = Ratio(jnp.float32(0), jnp.float32(weight))
    return LossSums(ratio, {}, {name: jnp.asarray(value) for name, value in updates.items()})


def test_updates_merge_as_the_mean_weighted_by_the_losses_weights():
    rng = np.random.default_rng(0)
    weights, values = rng.random(4), rng.random(4)
    total = sum(map(_updated_one, weights[1:], values[1:]), _updated_one(weights[0], values[0]))
    expected = (weights * values).sum() / weights.sum()
    np.testing.assert_allclose(total.updates["mean"], expected, rtol=1e-6)


def _updated_one(weight, value):
    return _updated(weight, mean=np.float32(value))


def test_what_does_not_depend_on_the_rows_merges_without_a_rounding():
    teacher = np.float32(0.1)
    total = _updated(0, teacher=np.float32(0))
    for weight in (0.3, 0, 17, 1e-3):
        total = total + _updated(weight, teacher=teacher)
    assert total.updates["teacher"] == teacher


def test_a_part_without_weight_does_not_spoil_an_update():
    total = _updated(1, mean=np.float32(2)) + _updated(0, mean=np.float32(np.nan))
    assert total.updates["mean"] == 2


def test_integers_are_those_of_the_last_part():
    total = _updated(3, count=np.int32(2**30 + 1)) + _updated(1, count=np.int32(2**30 + 3))
    assert total.updates["count"] == 2**30 + 3
    assert total.updates["count"].dtype == jnp.int32


def test_a_coupled_task_is_known_by_its_statistics():
    class Coupled:
        def statistics(self, model, batch, key):
            return None

        def loss(self, model, batch, key, statistics=None):
            return None

    assert isinstance(Coupled(), CoupledTask)
    assert not isinstance(LanguageModelling(), CoupledTask)
