import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.metrics import ACCURACY, LOSS, NATS_PER_EXAMPLE, TOP_5_ACCURACY, Metric, Ratio
from luthier.tasks import Additive, Classification, Observer

ROWS, DIM, CLASSES = 8, 4, 9


class Linear:
    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, inputs, *, dropout=None):
        if dropout is not None:
            inputs = inputs * (dropout.uniform((DIM,))[:, 0] < 0.5)
        return inputs @ self.kernel


class Watching(Linear):
    def observe(self, inputs, weights_B, *, dropout=None):
        return self(inputs, dropout=dropout) + 1, {"mean": (inputs * weights_B[:, None]).mean(0)}


def kernel():
    return jax.random.normal(jax.random.key(0), (DIM, CLASSES))


def batch(seed=0):
    generator = np.random.default_rng(seed)
    weights = np.array([1, 0, 1, 1, 0, 1, 0.5, 1], np.float32)
    return {
        "inputs": generator.standard_normal((ROWS, DIM)).astype(np.float32),
        "labels": generator.integers(0, CLASSES, ROWS, np.int32),
        "weights": weights,
        "examples": np.where(weights > 0, np.arange(1, ROWS + 1), 0).astype(np.int32),
    }


def test_evaluates_against_numpy():
    values, weights = batch(), batch()["weights"]
    ratios = Classification(label_smoothing=0.1).evaluate(Linear(kernel()), values)
    assert tuple(ratios) == Classification.metrics
    logits = values["inputs"].astype(np.float64) @ np.asarray(kernel(), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -log_p[np.arange(ROWS), values["labels"]]
    mean = lambda x: (x * weights).sum() / weights.sum()
    ranks = (-logits).argsort(-1).argsort(-1)[np.arange(ROWS), values["labels"]]
    expected = {
        LOSS: mean(0.9 * nats - 0.1 * log_p.mean(-1)),
        NATS_PER_EXAMPLE: mean(nats),
        ACCURACY: mean(ranks < 1),
        TOP_5_ACCURACY: mean(ranks < 5),
    }
    for metric, value in expected.items():
        assert metric.value(ratios[metric]) == pytest.approx(value, rel=1e-5), metric


@pytest.mark.parametrize("key", [None, 0])
def test_parts_of_a_batch_add_up_to_its_gradient(key):
    task = Classification(label_smoothing=0.1)
    key = None if key is None else jax.random.key(key)

    @jax.jit
    def gradient(kernel, values):
        return jax.grad(lambda k: task.loss(Linear(k), values, key).loss.numerator)(kernel)

    values = batch()
    whole = gradient(kernel(), values)
    parts = [gradient(kernel(), {n: x[i::2] for n, x in values.items()}) for i in range(2)]
    assert jnp.linalg.norm(sum(parts) - whole) <= 1e-6 * jnp.linalg.norm(whole)


def test_padding_counts_nothing_even_where_it_is_not_finite():
    values = batch()
    expected = Classification().evaluate(Linear(kernel()), values)
    spoiled = np.where(values["weights"][:, None] > 0, values["inputs"], np.nan)
    found = Classification().evaluate(Linear(kernel()), {**values, "inputs": spoiled})
    for metric, ratio in expected.items():
        assert metric.value(found[metric]) == pytest.approx(metric.value(ratio), rel=1e-6)
    assert Classification().count_tokens(values) == 6


def test_a_model_with_statistics_is_observed_in_training_only():
    values, model = batch(), Watching(kernel())
    assert isinstance(model, Observer)
    sums = Classification().loss(model, values, None)
    assert set(sums.updates) == {"mean"}
    assert Classification().loss(Linear(kernel()), values, None).updates == {}
    plain = Classification().evaluate(Linear(kernel()), values)
    assert Classification().evaluate(model, values)[LOSS].host() == plain[LOSS].host()


def test_a_model_that_takes_no_dropout_is_called_without():
    class Plain(Linear):
        def __call__(self, inputs):
            return super().__call__(inputs)

    values, key = batch(), jax.random.key(0)
    found = Classification().loss(Plain(kernel()), values, key)
    assert found.loss.host() == Classification().loss(Linear(kernel()), values, None).loss.host()
    found = Classification().evaluate(Plain(kernel()), values)
    assert found[LOSS].host() == Classification().evaluate(Linear(kernel()), values)[LOSS].host()


def test_a_subclass_changes_the_loss_and_adds_a_metric_in_training_and_evaluation():
    largest = Metric("largest_logit")

    class Bounded(Classification):
        loss_metrics = (*Classification.loss_metrics, largest)

        def ratios(self, logits_BK, batch):
            found, weights_B = super().ratios(logits_BK, batch), batch["weights"]
            extra = Ratio(jnp.sum(logits_BK.max(-1) * weights_B), jnp.sum(weights_B))
            loss = found[LOSS].numerator + 2 * extra.numerator
            return {**found, LOSS: Ratio(loss, found[LOSS].denominator), largest: extra}

    values, model = batch(), Linear(kernel())
    sums, plain = (task().loss(model, values, None) for task in (Bounded, Classification))
    assert list(sums.metrics) == [*Classification.loss_metrics, largest]
    expected = plain.loss.host().value() + 2 * sums.metrics[largest].host().value()
    assert sums.loss.host().value() == pytest.approx(expected, rel=1e-6)
    evaluated = Bounded().evaluate(model, values)
    assert evaluated[LOSS].host() == sums.loss.host()
    assert evaluated[largest].host() == sums.metrics[largest].host()


@pytest.mark.full
def test_declares_what_the_trainer_needs():
    task = Classification(input_axes=("length", None))
    assert task.reduction == Additive()
    assert task.batch_axes["inputs"] == ("batch", "length", None)
    assert set(task.batch_axes) == set(batch())
    sums = task.loss(Linear(kernel()), batch(), None)
    assert tuple(sums.metrics) == task.loss_metrics
