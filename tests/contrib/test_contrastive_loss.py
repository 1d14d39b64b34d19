import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.contrastive import InfoNCE, unit

ROWS, DIM = 7, 5


@pytest.fixture(autouse=True)
def _exact_products():
    with jax.default_matmul_precision("highest"):
        yield


def _vectors(seed=0):
    generator = np.random.default_rng(seed)
    left, right = generator.standard_normal((2, ROWS, DIM))
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
    weights = jnp.ones(ROWS)
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
        return InfoNCE()(left, arrays[1], left, arrays[1], jnp.zeros(ROWS)).loss_B.sum()

    value, gradient = jax.value_and_grad(loss)(arrays[0])
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


@pytest.mark.full
def test_vectors_come_to_unit_length_and_zero_has_a_gradient():
    vectors = jnp.float32([[3, 4], [0, 0]])
    np.testing.assert_allclose(unit(vectors), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert jnp.isfinite(jax.grad(lambda x: unit(x).sum())(vectors)).all()
    assert unit(vectors.astype(jnp.bfloat16)).dtype == jnp.float32
