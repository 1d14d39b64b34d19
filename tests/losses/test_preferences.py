import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.losses import DPO, IPO, PreferenceHinge

MARGINS = np.array([-40.0, -3.0, -0.1, 0.0, 0.2, 5.0, 40.0])


def _log_sigmoid(x):
    return -np.logaddexp(0, -x)


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_dpo_against_numpy_in_float64(beta):
    found = DPO(beta)(jnp.float32(MARGINS))
    np.testing.assert_allclose(found, -_log_sigmoid(beta * MARGINS), rtol=2e-6, atol=1e-7)


def test_conservative_dpo_mixes_both_labels():
    found = DPO(0.5, label_smoothing=0.2)(jnp.float32(MARGINS))
    x = 0.5 * MARGINS
    expected = -0.8 * _log_sigmoid(x) - 0.2 * _log_sigmoid(-x)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def test_ipo_against_numpy_in_float64():
    found = IPO(0.25)(jnp.float32(MARGINS))
    np.testing.assert_allclose(found, (MARGINS - 2.0) ** 2, rtol=2e-6)
    assert IPO(0.25)(jnp.float32(2.0)) == 0


def test_the_hinge_ends_where_pairs_are_apart():
    found = PreferenceHinge(0.5)(jnp.float32(MARGINS))
    np.testing.assert_allclose(found, np.maximum(0, 1 - 0.5 * MARGINS), rtol=1e-6)


@pytest.mark.parametrize("loss", [DPO(0.3), IPO(0.3), PreferenceHinge(0.3)])
def test_a_wider_margin_is_better_while_it_is_small(loss):
    slope = jax.vmap(jax.grad(loss))(jnp.float32([-3, 0, 1]))
    assert (slope < 0).all()
    np.testing.assert_allclose(loss.rewards(jnp.float32([2.0])), [0.6], rtol=1e-6)


@pytest.mark.parametrize("make", [DPO, IPO, PreferenceHinge])
def test_beta_may_be_a_tracer(make):
    margins = jnp.float32(MARGINS)
    found = jax.jit(lambda beta: make(beta)(margins))(0.3)
    np.testing.assert_allclose(found, make(0.3)(margins), rtol=1e-6, atol=1e-7)
