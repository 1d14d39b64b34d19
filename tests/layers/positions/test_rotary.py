import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.layers import LinearScaling, Llama3Scaling, Rotary


def _unit(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 500), st.integers(0, 500), st.integers(0, 2000), st.sampled_from([1e2, 1e4, 5e5])
)
def test_scores_depend_on_the_shift_alone(query_position, key_position, shift, base):
    rotary = Rotary(base)
    query, key = _unit(0, 1, 1, 2, 16), _unit(1, 1, 1, 2, 16)

    def scores(offset):
        at = lambda position: jnp.array([[position + offset]], jnp.int32)
        turned = rotary(query, at(query_position)), rotary(key, at(key_position))
        return jnp.einsum("BLHK,BLHK->BLH", *turned)

    # float32 angles of some thousand radians are good to about 1e-4
    np.testing.assert_allclose(scores(0), scores(shift), atol=5e-3)


def test_rotation_is_that_of_complex_numbers():
    x = _unit(2, 2, 5, 3, 8)
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    z = np.asarray(x[..., :4], np.float64) + 1j * np.asarray(x[..., 4:], np.float64)
    angles = np.arange(5)[:, None, None] * 100.0 ** (-np.arange(4) / 4)
    expected = z * np.exp(1j * angles)
    turned = Rotary(100.0)(x, positions)
    np.testing.assert_allclose(turned[..., :4], expected.real, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(turned[..., 4:], expected.imag, rtol=1e-5, atol=1e-5)


def test_position_zero_is_not_turned():
    x = _unit(3, 1, 1, 2, 8).astype(jnp.bfloat16)
    turned = Rotary()(x, jnp.zeros((1, 1), jnp.int32))
    assert turned.dtype == x.dtype
    assert (turned == x).all()


def test_the_base_may_be_traced():
    x, positions = _unit(4, 1, 3, 1, 8), jnp.arange(3)[None]
    turned = jax.jit(lambda base: Rotary(base)(x, positions))(50.0)
    np.testing.assert_allclose(turned, Rotary(50.0)(x, positions), rtol=1e-5, atol=1e-6)


def complex_turns(x, frequencies):
    """Turn pairs half of the turned part apart, by complex multiplication in float64."""
    half, length = len(frequencies), x.shape[1]
    x = np.asarray(x, np.float64)
    z = x[..., :half] + 1j * x[..., half : 2 * half]
    z = z * np.exp(1j * np.arange(length)[:, None, None] * frequencies)
    return np.concatenate([z.real, z.imag, x[..., 2 * half :]], -1)


def turned(rotary, x):
    return rotary(x, jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]))


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_only_a_part_is_turned(fraction):
    x = _unit(5, 2, 5, 3, 16)
    half = int(8 * fraction)
    expected = complex_turns(x, 100.0 ** (-np.arange(half) / half))
    found = turned(Rotary(100.0, fraction=fraction), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[..., 2 * half :] == x[..., 2 * half :]).all()


def test_linear_scaling_puts_positions_closer_together():
    x = _unit(6, 1, 9, 2, 8)
    wide = turned(Rotary(100.0, LinearScaling(4.0)), x)
    near = turned(Rotary(100.0), x[:, :3])
    at_one = Rotary(100.0)(x[:, 4:5], jnp.array([[1]]))
    np.testing.assert_allclose(wide[:, 4:5], at_one, rtol=1e-5, atol=1e-6)
    assert (wide[:, :1] == near[:, :1]).all()


def test_llama_scaling_keeps_fast_turns_and_stretches_slow_ones():
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 64)
    frequencies = np.array([1.0, 4 * 2 * np.pi / 64, 0.2, 2 * np.pi / 64, 0.01], np.float32)
    found = np.asarray(scaling(jnp.asarray(frequencies)))
    assert found[0] == 1.0
    np.testing.assert_allclose(found[1], frequencies[1], rtol=1e-6)
    kept = (64 * 0.2 / (2 * np.pi) - 1) / 3
    np.testing.assert_allclose(found[2], 0.2 * (kept + (1 - kept) / 8), rtol=1e-6)
    np.testing.assert_allclose(found[3:], frequencies[3:] / 8, rtol=1e-6)
