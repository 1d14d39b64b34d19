import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier.losses import AbsoluteError, Huber, Quantiles, SquaredError


def _values(seed=0, shape=(3, 7, 2)):
    generator = np.random.default_rng(seed)
    return generator.standard_normal(shape), generator.standard_normal(shape)


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (SquaredError(), optax.losses.squared_error),
        (AbsoluteError(), lambda y, t: jnp.abs(y - t)),
        (Huber(0.3), lambda y, t: optax.losses.huber_loss(y, t, delta=0.3)),
    ],
)
def test_against_optax(loss, reference):
    predictions, targets = _values()
    found = loss(jnp.float32(predictions), jnp.float32(targets))
    expected = reference(jnp.float32(predictions), jnp.float32(targets))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(loss.point(predictions), predictions)


def test_quantiles_against_numpy_in_float64():
    levels = (0.1, 0.5, 0.95)
    generator = np.random.default_rng(1)
    predictions, targets = generator.standard_normal((3, 5, 2, 3)), generator.random((3, 5, 2))
    error = targets[..., None] - predictions
    expected = np.where(error >= 0, np.array(levels) * error, (np.array(levels) - 1) * error)
    found = Quantiles(levels)(jnp.float32(predictions), jnp.float32(targets))
    np.testing.assert_allclose(found, expected.mean(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.8])
def test_the_best_constant_is_the_quantile(level):
    sample = jnp.float32(np.random.default_rng(2).standard_normal(999))
    candidates = jnp.linspace(-3, 3, 601)
    costs = jax.vmap(lambda c: Quantiles((level,))(jnp.full((999, 1), c), sample).sum())(candidates)
    best = float(candidates[jnp.argmin(costs)])
    assert best == pytest.approx(float(np.quantile(sample, level)), abs=0.02)


def test_the_point_is_the_level_nearest_to_the_median():
    predictions = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(Quantiles((0.1, 0.4, 0.9)).point(predictions), [1, 4])


def test_statistics_are_in_float32():
    half = jnp.ones(3, jnp.bfloat16)
    for loss in (SquaredError(), AbsoluteError(), Huber()):
        assert loss(half, half).dtype == jnp.float32


def test_delta_may_be_a_tracer():
    predictions, targets = map(jnp.float32, _values())
    found = jax.jit(lambda delta: Huber(delta)(predictions, targets))(0.3)
    np.testing.assert_allclose(found, Huber(0.3)(predictions, targets), rtol=1e-6)
