import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import BatchNorm

ROWS, DIM = 6, 4
WEIGHTS = np.array([1, 0, 1, 1, 0, 1], np.float32)


def _module(**settings):
    return BatchNorm(dim=DIM, rngs=nnx.Rngs(0), **settings)


@jax.jit
def _train(module, x, weights):
    y = module(x, weights)
    return y, module.mean[...], module.variance[...]


@pytest.mark.full
def test_statistics_are_of_the_counted_rows(draw):
    x = draw(ROWS, 3, 2, DIM) * 3 + 1
    y, mean, variance = _train(_module(momentum=0.8, epsilon=1e-3), x, WEIGHTS)
    counted = np.asarray(x, np.float64)[WEIGHTS > 0].reshape(-1, DIM)
    expected = (np.asarray(x) - counted.mean(0)) / np.sqrt(counted.var(0) + 1e-3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, 0.2 * counted.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.8 + 0.2 * counted.var(0, ddof=1), rtol=1e-5)


def test_evaluation_uses_the_running_statistics(draw, apply):
    module, x = _module(), draw(ROWS, DIM)
    module.mean.set_value(jnp.arange(4.0))
    module.variance.set_value(jnp.arange(1.0, 5.0))
    expected = (np.asarray(x) - np.arange(4)) / np.sqrt(np.arange(1, 5) + 1e-5)
    np.testing.assert_allclose(apply(module, x), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_padding_moves_nothing(draw):
    y, mean, variance = _train(_module(), draw(ROWS, DIM), np.zeros(ROWS, np.float32))
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(mean, np.zeros(DIM))
    np.testing.assert_array_equal(variance, np.ones(DIM))


@pytest.mark.full
def test_the_gradient_passes_through_the_statistics(draw):
    x = draw(ROWS, DIM)

    def loss(x):
        return (_module()(x, jnp.ones(ROWS)) ** 3 * jnp.arange(4.0)).sum()

    def reference(x):
        normed = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
        return (normed**3 * jnp.arange(4.0)).sum()

    np.testing.assert_allclose(jax.grad(loss)(x), jax.grad(reference)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_statistics_are_synchronized_over_the_mesh(draw):
    x, module = draw(8, 5, DIM), _module()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    expected = _train(module, x, jnp.ones(8))
    found = _train(module, jax.device_put(x, rows), jax.device_put(jnp.ones(8), rows))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_statistics_are_in_float32(draw):
    module = _module(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    y, mean, _ = _train(module, draw(ROWS, DIM).astype(jnp.bfloat16), jnp.ones(ROWS))
    assert y.dtype == jnp.bfloat16
    assert mean.dtype == jnp.float32


@pytest.mark.parametrize("name", ["mean", "variance"])
def test_statistics_are_variables_and_no_parameters(name):
    variable = getattr(_module(), name)
    assert not isinstance(variable, nnx.Param)
    assert variable.get_metadata()["logical_axes"] == ("embed",)
