import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.state_space import HippoNormal, InverseSpectrum, LinearSpectrum, LogUniform


@pytest.mark.parametrize("spectrum", [LinearSpectrum(), InverseSpectrum(), HippoNormal()])
def test_states_decay_and_turn_one_way(spectrum):
    values = spectrum(8)
    assert values.shape == (8,)
    np.testing.assert_allclose(values.real, -0.5)
    assert (values.imag >= 0).all()
    assert len(set(values.imag.round(6))) == 8


def test_linear_is_its_formula():
    np.testing.assert_allclose(LinearSpectrum()(4).imag, [0, np.pi, 2 * np.pi, 3 * np.pi])


def test_inverse_is_its_formula():
    total = 6
    expected = [total / np.pi * (total / (2 * n + 1) - 1) for n in range(3)]
    np.testing.assert_allclose(InverseSpectrum()(3).imag, expected)


def test_hippo_is_the_spectrum_of_legs_with_its_rank_one_term():
    """LegS plus half of p p^T is normal (Gu et al. 2021, theorem 1): its eigenvalues are ours."""
    size = 12
    n = np.arange(size)
    legs = -np.sqrt(np.outer(2 * n + 1, 2 * n + 1))
    legs = np.where(n[:, None] > n, legs, 0) - np.diag(n + 1)
    normal = legs + 0.5 * np.outer(np.sqrt(2 * n + 1), np.sqrt(2 * n + 1))
    values = np.linalg.eigvals(normal)
    values = np.sort_complex(values[values.imag > 0])
    found = np.sort_complex(HippoNormal()(size // 2))
    np.testing.assert_allclose(sorted(found.imag), sorted(values.imag), rtol=1e-9)
    np.testing.assert_allclose(found.real, -0.5)


def test_blocks_repeat():
    np.testing.assert_array_equal(HippoNormal(2)(8), np.tile(HippoNormal()(4), 2))


def test_steps_lie_between_the_bounds_evenly_in_their_logs():
    logs = LogUniform(0.01, 1.0)(jax.random.key(0), (10_000,), jnp.float32)
    assert logs.min() >= np.log(0.01)
    assert logs.max() <= 0
    assert float(logs.mean()) == pytest.approx(np.log(0.1), abs=0.05)
