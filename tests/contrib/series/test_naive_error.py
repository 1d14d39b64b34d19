import jax.numpy as jnp
import numpy as np

from luthier.contrib.series import naive_error


def test_against_numpy():
    series = np.random.default_rng(0).standard_normal((2, 10, 3))
    for season in (1, 4):
        expected = np.abs(series[:, season:] - series[:, :-season]).mean(1)
        np.testing.assert_allclose(naive_error(jnp.float32(series), season), expected, rtol=1e-5)


def test_a_series_of_one_season_has_none():
    assert naive_error(jnp.ones((2, 4, 1)), 4).tolist() == [[0], [0]]


def test_a_periodic_series_has_none_at_its_period():
    series = jnp.tile(jnp.arange(3.0), 4)[None, :, None]
    assert naive_error(series, 3).item() == 0
    assert naive_error(series, 1).item() > 0
