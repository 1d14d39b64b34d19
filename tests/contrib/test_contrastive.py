import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.contrastive import Contrastive, InfoNCE
from luthier.metrics import LOSS, RETRIEVAL_ACCURACY
from luthier.program.accumulation import additive_gradient, coupled_gradient
from luthier.tasks import BatchCoupled, CoupledTask

ROWS, DIM, HIDDEN, OUT = 24, 6, 10, 4


@pytest.fixture(autouse=True)
def _exact_products():
    with jax.default_matmul_precision("highest"):
        yield


def parameters(kind=jnp.float32):
    keys = jax.random.split(jax.random.key(0))
    return {
        "first": jax.random.normal(keys[0], (DIM, HIDDEN), kind),
        "second": jax.random.normal(keys[1], (HIDDEN, OUT), kind),
    }


def model_of(parameters):
    def model(inputs, *, dropout=None):
        hidden = jnp.tanh(inputs @ parameters["first"])
        if dropout is not None:
            hidden = hidden * (dropout.uniform((HIDDEN,))[:, 0] < 0.8)
        return hidden @ parameters["second"]

    return model


def batch(kind=np.float32):
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((ROWS, DIM)).astype(kind)
    weights = (generator.random(ROWS) < 0.8).astype(kind)
    return {
        "inputs": inputs,
        "others": (inputs + generator.standard_normal((ROWS, DIM))).astype(kind),
        "weights": weights,
        "examples": np.where(weights > 0, np.arange(1, ROWS + 1), 0).astype(np.int32),
    }


@functools.cache
def gradients(task, key_seed):
    """Return functions from (parameters, batch, accumulation) to sums and gradient."""
    key = None if key_seed is None else jax.random.key(key_seed)

    def numerator(parameters, part, *seen):
        sums = task.loss(model_of(parameters), part, key, *seen)
        return sums.loss.numerator, sums

    def statistics(parameters, part):
        return task.statistics(model_of(parameters), part, key)

    whole = jax.jit(lambda p, b: additive_gradient(numerator, p, b, 1))
    cut = jax.jit(
        lambda p, b, n: coupled_gradient(numerator, statistics, p, b, n), static_argnums=2
    )
    return whole, cut, numerator


def relative(found, expected):
    apart = jax.tree.map(lambda a, b: jnp.linalg.norm(a - b) / jnp.linalg.norm(b), found, expected)
    return max(map(float, jax.tree.leaves(apart)))


@pytest.mark.full
@pytest.mark.parametrize("key", [None, 0])
@pytest.mark.parametrize("accumulation", [2, 6, 24])
def test_cutting_the_batch_changes_neither_loss_nor_gradient(accumulation, key):
    with jax.enable_x64(True):
        whole, cut, _ = gradients(Contrastive(InfoNCE(0.2)), key)
        arguments = parameters(jnp.float64), batch(np.float64)
        sums, expected = whole(*arguments)
        found_sums, found = cut(*arguments, accumulation)
        assert relative(found, expected) < 1e-12
        assert found_sums.loss.host().value() == pytest.approx(sums.loss.host().value(), rel=1e-12)
        accuracy = sums.metrics[RETRIEVAL_ACCURACY].host()
        assert found_sums.metrics[RETRIEVAL_ACCURACY].host() == accuracy


@pytest.mark.parametrize("accumulation", [2, 8])
def test_in_float32_to_a_millionth(accumulation):
    whole, cut, _ = gradients(Contrastive(InfoNCE(0.5)), None)
    expected = whole(parameters(), batch())[1]
    assert relative(cut(parameters(), batch(), accumulation)[1], expected) <= 1e-6


def test_parts_alone_would_be_another_loss():
    whole, _, numerator = gradients(Contrastive(InfoNCE(0.2)), None)
    expected = whole(parameters(), batch())[1]
    assert relative(additive_gradient(numerator, parameters(), batch(), 4)[1], expected) > 0.1


def test_it_is_the_mean_over_counted_pairs_of_the_loss_among_them():
    values, model = batch(), model_of(parameters())
    ratios = Contrastive(InfoNCE(0.3)).evaluate(model, values)
    keep = values["weights"] > 0
    vectors = [np.asarray(model(values[v]), np.float64)[keep] for v in ("inputs", "others")]
    left, right = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in vectors)
    logits = left @ right.T / 0.3
    log_sum = np.log(np.exp(logits).sum(0)) + np.log(np.exp(logits).sum(1))
    expected = (0.5 * log_sum - np.diag(logits)).mean()
    assert LOSS.value(ratios[LOSS]) == pytest.approx(expected, rel=1e-5)


def test_the_same_view_twice_differs_by_dropout():
    task = Contrastive(views=("inputs", "inputs"))
    found = task.statistics(model_of(parameters()), batch(), jax.random.key(0))
    assert not np.allclose(found["left"], found["right"])
    found = task.statistics(model_of(parameters()), batch(), None)
    np.testing.assert_array_equal(found["left"], found["right"])
    assert set(task.batch_axes) == {"inputs", "weights", "examples"}


def test_it_is_coupled_and_may_be_cut():
    task = Contrastive()
    assert task.reduction == BatchCoupled("in-batch negatives")
    assert isinstance(task, CoupledTask)
    assert set(task.batch_axes) == set(batch())
    assert task.count_tokens(batch()) == batch()["weights"].sum()
