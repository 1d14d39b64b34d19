import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.contrib.state_space import S4D, InverseSpectrum
from luthier.layers import Tokens

DIM, STATES = 3, 4


def make(dtype=jnp.float32):
    return S4D(STATES, InverseSpectrum(), dim=DIM, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))


def explicit(layer, u):
    """Each channel by itself, as a convolution with the kernel of its system, in complex128."""
    flat = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    p = {".".join(path): np.asarray(v.get_value(), np.float64) for path, v in flat}
    diagonal = -np.exp(p["decay"]) + 1j * p["frequency"]
    step = np.exp(p["log_step"])[:, None]
    bar = np.exp(diagonal * step)
    weights = (p["weights_real"] + 1j * p["weights_imaginary"]) * (bar - 1) / diagonal
    length = u.shape[1]
    powers = bar[..., None] ** np.arange(length)
    kernel = 2 * (weights[..., None] * powers).sum(1).real
    y = p["skip"] * u
    for c in range(DIM):
        for row in range(u.shape[0]):
            y[row, :, c] += np.convolve(u[row, :, c], kernel[c])[:length]
    return y


@pytest.mark.full
def test_against_the_convolution_by_the_systems_kernel(double):
    layer = make(jnp.float64)
    u = np.random.default_rng(0).standard_normal((2, 40, DIM))
    found = layer.mix(jnp.asarray(u), Tokens.single(2, 40))[0]
    np.testing.assert_allclose(found, explicit(layer, u), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 7)])
def test_recurrent_steps_are_the_scan(draw, apply, chunks):
    layer, u = make(), draw(2, 12, DIM)
    expected = apply(layer, u, Tokens.single(2, 12))
    cache, start, parts = layer.init_cache(2, 12), 0, []
    step = jax.jit(lambda layer, u, tokens, cache: layer.decode(u, tokens, cache, None, None))
    for size in chunks:
        single = Tokens.single(2, size)
        tokens = Tokens(single.positions_BL + start, single.segments_BL)
        part, cache = step(layer, u[:, start : start + size], tokens, cache)
        parts.append(part)
        start += size
    np.testing.assert_allclose(jnp.concatenate(parts, 1), expected, rtol=1e-5, atol=1e-5)


def test_packed_texts_do_not_see_each_other(draw, apply, pack):
    layer, u = make(), draw(1, 12, DIM)
    packed = apply(layer, u, pack([[7, 5]], 12))
    alone = apply(layer, u[:, 7:], Tokens.single(1, 5))
    np.testing.assert_allclose(packed[:, 7:], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_channels_meet_in_the_output_alone(draw):
    layer, u = make(), draw(1, 6, DIM)
    reach = jax.jacrev(lambda u: layer.mix(u, Tokens.single(1, 6))[0][0, -1])(u)[:, 0]
    touched = jnp.abs(reach).sum(1) > 0
    np.testing.assert_array_equal(touched, np.eye(DIM, dtype=bool))


def test_shapes_and_axes():
    layer = make()
    assert layer.decay.shape == layer.weights_real.shape == (DIM, STATES)
    assert layer.frequency.get_metadata()["logical_axes"] == ("embed", "state")
    assert layer.output.kernel.shape == (DIM, 2, DIM)
