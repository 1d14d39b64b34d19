import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import DPO, IPO, Chunked
from luthier.metrics import (
    CHOSEN_REWARD,
    LOSS,
    PREFERENCE_ACCURACY,
    REJECTED_REWARD,
    REWARD_MARGIN,
)
from luthier.tasks import PrecomputedReference, Preferences, response_log_probabilities

B, L, V, D = 5, 7, 9, 6
SIDES = ("chosen", "rejected")


class Bigrams:
    def __init__(self, table):
        self.table = table

    def hidden(self, inputs_BL, *, positions_BL, segments_BL, dropout=None):
        hidden = self.table[inputs_BL] + 0.1 * positions_BL[..., None]
        return hidden if dropout is None else hidden * (dropout.uniform((D,)) < 0.5)

    def logits(self, hidden):
        return hidden @ self.table.T


def table(seed):
    return jax.random.normal(jax.random.key(seed), (V, D))


def model():
    return types.SimpleNamespace(trained=Bigrams(table(0)), copy=Bigrams(table(1)))


def batch():
    generator = np.random.default_rng(0)
    values = {
        "examples": np.array([1, 2, 3, 4, 0], np.int32),
        "weights": np.array([1, 1, 0.5, 1, 0], np.float32),
    }
    for side in SIDES:
        tokens = generator.integers(0, V, (B, L + 1), np.int32)
        weights = (np.arange(L) >= 3).astype(np.float32) * values["weights"][:, None].clip(0, 1)
        values |= {
            f"{side}_inputs": tokens[:, :-1],
            f"{side}_targets": tokens[:, 1:],
            f"{side}_segments": np.ones((B, L), np.int32),
            f"{side}_positions": np.broadcast_to(np.arange(L, dtype=np.int32), (B, L)),
            f"{side}_weights": (weights > 0).astype(np.float32),
        }
    return values


def log_probabilities(model, values, side):
    hidden = model.hidden(
        values[f"{side}_inputs"], positions_BL=values[f"{side}_positions"], segments_BL=None
    )
    logits = np.asarray(model.logits(hidden), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = np.take_along_axis(log_p, values[f"{side}_targets"][..., None], -1)[..., 0]
    return (found * values[f"{side}_weights"]).sum(-1)


def test_evaluates_against_numpy():
    values, pair, w = batch(), model(), batch()["weights"]
    chosen, rejected = (
        log_probabilities(pair.trained, values, side) - log_probabilities(pair.copy, values, side)
        for side in SIDES
    )
    found = Preferences(DPO(0.3)).evaluate(pair, values)
    assert tuple(found) == Preferences.metrics
    mean = lambda x: (x * w).sum() / w.sum()
    expected = {
        LOSS: mean(np.logaddexp(0, -0.3 * (chosen - rejected))),
        PREFERENCE_ACCURACY: mean(chosen > rejected),
        REWARD_MARGIN: mean(0.3 * (chosen - rejected)),
        CHOSEN_REWARD: mean(0.3 * chosen),
        REJECTED_REWARD: mean(0.3 * rejected),
    }
    for metric, value in expected.items():
        assert metric.value(found[metric]) == pytest.approx(value, rel=1e-5), metric


def test_a_policy_equal_to_its_reference_starts_at_log_two():
    same = types.SimpleNamespace(trained=Bigrams(table(0)), copy=Bigrams(table(0)))
    sums = Preferences().loss(same, batch(), None)
    assert sums.loss.host().value() == pytest.approx(np.log(2), rel=1e-6)
    assert Preferences(IPO(0.5)).loss(same, batch(), None).loss.host().value() == 1


def test_precomputed_log_probabilities_are_those_of_the_reference():
    values, pair = batch(), model()
    held = Preferences().evaluate(pair, values)
    for side in SIDES:
        values[f"{side}_log_probabilities"] = response_log_probabilities(
            pair.copy, values, side, None, Preferences().chunking
        )
    task = Preferences(reference=PrecomputedReference())
    assert set(task.batch_axes) == set(values)
    found = task.evaluate(pair.trained, values)
    for metric, ratio in held.items():
        assert metric.value(found[metric]) == pytest.approx(metric.value(ratio), rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("key", [None, 0])
def test_parts_of_a_batch_add_up_to_its_gradient(key):
    key = None if key is None else jax.random.key(key)
    task = Preferences(chunking=Chunked(3))

    @jax.jit
    def gradient(table_, values):
        def loss(table_):
            pair = types.SimpleNamespace(trained=Bigrams(table_), copy=Bigrams(table(1)))
            return task.loss(pair, values, key).loss.numerator

        return jax.grad(loss)(table_)

    values = {name: x[:4] for name, x in batch().items()}
    whole = gradient(table(0), values)
    parts = [gradient(table(0), {n: x[i::2] for n, x in values.items()}) for i in range(2)]
    assert jnp.linalg.norm(sum(parts) - whole) <= 1e-6 * jnp.linalg.norm(whole)


def test_the_reference_has_no_gradient():
    def loss(table_):
        pair = types.SimpleNamespace(trained=Bigrams(table(0)), copy=Bigrams(table_))
        return Preferences().loss(pair, batch(), None).loss.numerator

    assert not jax.grad(loss)(table(1)).any()


def test_declares_its_batch():
    assert set(Preferences().batch_axes) == set(batch())
    assert Preferences().count_tokens(batch()) == 2 * 4 * 4
