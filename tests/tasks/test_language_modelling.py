from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import Chunked, Fused, Whole
from luthier.metrics import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
    Ratio,
)
from luthier.tasks import Additive, LanguageModelling

B, L, D, V = 3, 7, 8, 13


class Bigrams:
    """The smallest model with the two methods that the task calls."""

    def __init__(self, table, unembedding):
        self.table, self.unembedding = table, unembedding

    def hidden(self, inputs_BL, *, positions_BL, segments_BL, dropout=None):
        hidden_BLD = self.table[inputs_BL] + 0.1 * positions_BL[..., None] + segments_BL[..., None]
        if dropout is not None:
            hidden_BLD = hidden_BLD * (dropout.uniform((D,)) < 0.5)
        return hidden_BLD

    def logits(self, hidden_BLD):
        return hidden_BLD @ self.unembedding


def parameters(seed=0):
    keys = jax.random.split(jax.random.key(seed))
    return jax.random.normal(keys[0], (V, D)), jax.random.normal(keys[1], (D, V))


def batch(seed=0, rows=B):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, V, (rows, L + 1), np.int32)
    weights = (random.random((rows, L)) < random.random((rows, 1))).astype(np.float32)
    weights[0, 0] = 1
    return {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": weights,
        "segments": (weights > 0).astype(np.int32),
        "positions": np.broadcast_to(np.arange(L, dtype=np.int32), (rows, L)),
        "documents": np.broadcast_to(np.arange(rows, dtype=np.int32)[:, None], (rows, L)),
        "target_bytes": (random.integers(0, 4, (rows, L)) * (weights > 0)).astype(np.int32),
    }


def nats(values):
    logits = Bigrams(*parameters()).hidden(
        values["inputs"], positions_BL=values["positions"], segments_BL=values["segments"]
    )
    logits = np.asarray(logits @ parameters()[1], np.float64)
    log_z = np.log(np.exp(logits).sum(-1))
    return log_z - np.take_along_axis(logits, values["targets"][..., None], -1)[..., 0], log_z


@pytest.mark.full
def test_evaluates_against_numpy():
    values = batch()
    ratios = LanguageModelling(z_loss=0.1).evaluate(Bigrams(*parameters()), values)
    assert tuple(ratios) == LanguageModelling.metrics
    (nats_BL, log_z), weights = nats(values), values["weights"]
    total, tokens, size = (nats_BL * weights).sum(), weights.sum(), values["target_bytes"].sum()
    expected = {
        LOSS: total / tokens + 0.1 * (log_z**2 * weights).sum() / tokens,
        NATS_PER_TOKEN: total / tokens,
        NATS_PER_BYTE: total / size,
        BITS_PER_BYTE: total / size / math.log(2),
        PERPLEXITY: math.exp(total / tokens),
    }
    for metric, value in expected.items():
        assert metric.value(ratios[metric]) == pytest.approx(value, rel=1e-5)
    assert 0 <= ACCURACY.value(ratios[ACCURACY]) <= 1
    assert all(ratio.numerator.dtype == jnp.float32 for ratio in ratios.values())


def test_the_loss_is_a_sum_with_its_weight_and_reports_plain_nats():
    values = batch()
    plain = LanguageModelling().loss(Bigrams(*parameters()), values, None)
    regular = LanguageModelling(z_loss=0.1, label_smoothing=0.1)
    sums = regular.loss(Bigrams(*parameters()), values, None)
    assert tuple(sums.metrics) == LanguageModelling.loss_metrics
    assert float(plain.loss.denominator) == values["weights"].sum()
    assert plain.loss.host().value() == pytest.approx(
        plain.metrics[NATS_PER_TOKEN].host().value(), rel=1e-6
    )
    assert sums.loss.host().value() > plain.loss.host().value()
    for metric in LanguageModelling.loss_metrics:
        assert sums.metrics[metric].host() == plain.metrics[metric].host()


@pytest.mark.full
@pytest.mark.parametrize("chunking", [Whole(), Chunked(3), Fused(3)])
@pytest.mark.parametrize("key", [None, 0])
def test_parts_of_a_batch_add_up_to_its_gradient(chunking, key):
    # Also with dropout: its masks belong to tokens, not to places in the batch.
    task = LanguageModelling(z_loss=1e-2, label_smoothing=0.1, chunking=chunking)
    key = None if key is None else jax.random.key(key)

    @jax.jit
    def gradient(parameters, values):
        def loss(parameters):
            sums = task.loss(Bigrams(*parameters), values, key)
            return sums.loss.numerator, sums

        return jax.grad(loss, has_aux=True)(parameters)

    values = batch(1, rows=4)
    whole, whole_sums = gradient(parameters(), values)
    parts = [
        gradient(parameters(), {name: value[rows] for name, value in values.items()})
        for rows in (slice(0, 2), slice(2, 4))
    ]
    summed = jax.tree.map(jnp.add, parts[0][0], parts[1][0])
    for a, b in zip(summed, whole, strict=True):
        assert jnp.linalg.norm(a - b) <= 1e-6 * jnp.linalg.norm(b)
    merged = parts[0][1] + parts[1][1]
    assert merged.loss.host().value() == pytest.approx(whole_sums.loss.host().value(), rel=1e-6)


def test_dropout_follows_the_key():
    values, task = batch(), LanguageModelling()

    def loss(key):
        return float(task.loss(Bigrams(*parameters()), values, key).loss.numerator)

    assert loss(jax.random.key(0)) == loss(jax.random.key(0))
    assert len({loss(None), loss(jax.random.key(0)), loss(jax.random.key(1))}) == 3


def test_padding_counts_nothing_even_where_it_is_not_finite():
    values = batch()
    model = Bigrams(*parameters())
    expected = LanguageModelling().evaluate(model, values)
    spoiled = dict(values, positions=np.where(values["weights"] > 0, values["positions"], 10**9))
    model.logits = lambda hidden: jnp.where(
        jnp.abs(hidden).max(-1, keepdims=True) > 1e6, jnp.nan, hidden @ model.unembedding
    )
    for metric, ratio in LanguageModelling().evaluate(model, spoiled).items():
        assert metric.value(ratio) == pytest.approx(metric.value(expected[metric]), rel=1e-6)


def test_counts_tokens_of_host_and_device_batches():
    values, task = batch(), LanguageModelling()
    values["weights"][0, 0] = 0.5
    assert task.count_tokens(values) == np.count_nonzero(values["weights"])
    assert int(jax.jit(task.count_tokens)(values)) == np.count_nonzero(values["weights"])


def test_declares_what_the_trainer_needs():
    task = LanguageModelling()
    assert task.reduction == Additive()
    assert set(task.batch_axes) == set(batch())
    assert set(task.batch_axes.values()) == {("batch", "length")}


def test_hyperparameters_may_be_tracers():
    values = batch()

    @jax.jit
    def loss(z_loss, label_smoothing):
        task = LanguageModelling(z_loss=z_loss, label_smoothing=label_smoothing)
        return task.loss(Bigrams(*parameters()), values, None).loss.numerator

    assert loss(0.0, 0.0) < loss(0.1, 0.0)
    assert loss._cache_size() == 1


def test_a_subclass_adds_metrics_of_its_own_to_those_of_training():
    weight_sum = Metric("weight_sum")

    class Counting(LanguageModelling):
        loss_metrics = (*LanguageModelling.loss_metrics, weight_sum)

        def loss(self, model, batch, key):
            sums = super().loss(model, batch, key)
            counted = Ratio(batch["weights"].sum(), jnp.float32(1))
            return dataclasses.replace(sums, metrics={**sums.metrics, weight_sum: counted})

    data = batch()
    sums = Counting().loss(Bigrams(*parameters()), data, None)
    assert set(sums.metrics) == set(Counting.loss_metrics)
    assert sums.metrics[weight_sum].numerator == data["weights"].sum()
