import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.contrastive import Contrastive, InfoNCE, unit
from luthier.metrics import LOSS, RETRIEVAL_ACCURACY
from luthier.program.accumulation import additive_gradient, coupled_gradient
from luthier.tasks import BatchCoupled, CoupledTask

ROWS, DIM, HIDDEN, OUT = 24, 6, 10, 4
PAIRS, SIZE = 7, 5


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


# The loss of some pairs among all.


def _vectors(seed=0):
    generator = np.random.default_rng(seed)
    left, right = generator.standard_normal((2, PAIRS, SIZE))
    right = 0.5 * left + right
    unit64 = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit64(left), unit64(right)


def _reference(left, right, temperature, keep):
    """Float64 NumPy: the softmax over all kept pairs, in both directions."""
    logits = left[keep] @ right[keep].T / temperature
    own = np.diag(logits)
    log_sum = lambda x, axis: np.log(np.exp(x).sum(axis))
    return 0.5 * (log_sum(logits, 1) + log_sum(logits, 0)) - own


@pytest.mark.full
def test_against_numpy_in_float64():
    left, right = _vectors()
    keep = np.array([1, 1, 0, 1, 1, 0, 1], bool)
    arrays = [jnp.float32(x) for x in (left, right)]
    losses = InfoNCE(0.2)(*arrays, *arrays, jnp.float32(keep))
    expected = _reference(left, right, 0.2, keep)
    np.testing.assert_allclose(losses.loss_B[keep], expected, rtol=2e-6, atol=1e-6)
    nearest = (left[keep] @ right[keep].T).argmax(1)
    np.testing.assert_array_equal(losses.correct_B[keep], nearest == np.arange(keep.sum()))


def test_some_pairs_among_all_are_the_rows_of_all():
    arrays = [jnp.float32(x) for x in _vectors(1)]
    weights = jnp.ones(PAIRS)
    whole = InfoNCE()(*arrays, *arrays, weights)
    some = InfoNCE()(*(x[2:5] for x in arrays), *arrays, weights)
    np.testing.assert_allclose(some.loss_B, whole.loss_B[2:5], rtol=1e-6)
    np.testing.assert_array_equal(some.correct_B, whole.correct_B[2:5])


def test_vectors_that_are_all_one_retrieve_nothing():
    same = jnp.ones((4, 3)) / jnp.sqrt(3)
    losses = InfoNCE()(same, same, same, same, jnp.ones(4))
    np.testing.assert_allclose(losses.loss_B, np.log(4), rtol=1e-6)
    assert not losses.correct_B.any()


@pytest.mark.full
def test_a_batch_of_padding_makes_no_nan():
    arrays = [jnp.float32(x) for x in _vectors(2)]

    def loss(left):
        return InfoNCE()(left, arrays[1], left, arrays[1], jnp.zeros(PAIRS)).loss_B.sum()

    value, gradient = jax.value_and_grad(loss)(arrays[0])
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


@pytest.mark.full
def test_vectors_come_to_unit_length_and_zero_has_a_gradient():
    vectors = jnp.float32([[3, 4], [0, 0]])
    np.testing.assert_allclose(unit(vectors), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert jnp.isfinite(jax.grad(lambda x: unit(x).sum())(vectors)).all()
    assert unit(vectors.astype(jnp.bfloat16)).dtype == jnp.float32
