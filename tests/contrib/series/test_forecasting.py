import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.series import Forecasting
from luthier.losses import AbsoluteError, Quantiles
from luthier.metrics import (
    LOSS,
    MEAN_ABSOLUTE_ERROR,
    MEAN_ABSOLUTE_SCALED_ERROR,
    MEAN_SQUARED_ERROR,
)

B, L, H, C = 4, 12, 3, 2


def batch():
    generator = np.random.default_rng(0)
    weights = (generator.random((B, H, C)) < 0.8).astype(np.float32)
    weights[-1] = 0
    return {
        "inputs": generator.standard_normal((B, L, C)).astype(np.float32),
        "targets": generator.standard_normal((B, H, C)).astype(np.float32),
        "weights": weights,
        "examples": np.array([1, 2, 3, 0], np.int32),
    }


def mean_model(inputs, *, dropout=None):
    return jnp.broadcast_to(inputs.mean(1, keepdims=True), (inputs.shape[0], H, C))


def test_evaluates_against_numpy():
    values, w = batch(), batch()["weights"]
    found = Forecasting(season=4).evaluate(mean_model, values)
    assert tuple(found) == Forecasting.metrics
    x = values["inputs"].astype(np.float64)
    error = x.mean(1, keepdims=True) - values["targets"]
    naive = np.abs(x[:, 4:] - x[:, :-4]).mean(1, keepdims=True)
    expected = {
        LOSS: (error**2 * w).sum() / w.sum(),
        MEAN_SQUARED_ERROR: (error**2 * w).sum() / w.sum(),
        MEAN_ABSOLUTE_ERROR: (np.abs(error) * w).sum() / w.sum(),
        MEAN_ABSOLUTE_SCALED_ERROR: (np.abs(error) / naive * w).sum() / w.sum(),
    }
    for metric, value in expected.items():
        assert metric.value(found[metric]) == pytest.approx(value, rel=1e-5), metric


def test_the_scaled_error_leaves_out_constant_series():
    values = batch()
    values["inputs"][0, :, 1] = 5.0
    found = Forecasting().evaluate(mean_model, values)[MEAN_ABSOLUTE_SCALED_ERROR].host()
    assert found.denominator == values["weights"].sum() - values["weights"][0, :, 1].sum()
    assert np.isfinite(found.numerator)


def test_the_objective_is_a_node():
    values = batch()
    found = Forecasting(AbsoluteError()).evaluate(mean_model, values)
    assert found[LOSS].host() == found[MEAN_ABSOLUTE_ERROR].host()

    def spread(inputs, *, dropout=None):
        return mean_model(inputs)[..., None] + jnp.array([-1.0, 0.0, 1.0])

    quantiles = Forecasting(Quantiles((0.1, 0.5, 0.9))).evaluate(spread, values)
    assert quantiles[MEAN_ABSOLUTE_ERROR].host() == found[MEAN_ABSOLUTE_ERROR].host()
    assert quantiles[LOSS].host() != found[LOSS].host()


@pytest.mark.full
def test_parts_of_a_batch_add_up_to_its_gradient():
    values = batch()

    def gradient(scale, values):
        def loss(scale):
            model = lambda inputs, dropout=None: scale * mean_model(inputs)
            return Forecasting().loss(model, values, None).loss.numerator

        return jax.grad(loss)(scale)

    whole = gradient(jnp.float32(1.3), values)
    parts = [gradient(jnp.float32(1.3), {n: x[i::2] for n, x in values.items()}) for i in (0, 1)]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-6)


def test_dropout_keys_are_of_the_rows():
    shapes = []

    def model(inputs, dropout=None):
        shapes.append(dropout.token_keys_BL.shape)
        return mean_model(inputs)

    Forecasting().loss(model, batch(), jax.random.key(0))
    assert shapes == [(B, 1)]


@pytest.mark.full
def test_declares_its_batch():
    assert set(Forecasting.batch_axes) == set(batch())
    assert Forecasting().count_tokens(batch()) == batch()["weights"].sum()
