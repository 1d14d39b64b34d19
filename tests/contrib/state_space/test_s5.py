import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.contrib.state_space import S5, HippoNormal
from luthier.layers import Mlp, PreNormBlock, RMSNorm, Scanned, Tokens
from luthier.models import Decoder, generate

DIM, STATES = 6, 4


def make(dtype=jnp.float32):
    return S5(STATES, dim=DIM, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))


def numbers(layer):
    """The layer's parameters, in float64, by name."""
    state = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    return {".".join(path): np.asarray(v.get_value(), np.float64) for path, v in state}


def explicit(layer, u):
    """Equations 4 to 6 of the paper with both conjugates written out, in complex128."""
    p = numbers(layer)
    half = -np.exp(p["decay"]) + 1j * p["frequency"]
    diagonal = np.concatenate([half, half.conj()])
    into = (p["input_real"] + 1j * p["input_imaginary"]).T
    into = np.concatenate([into, into.conj()])
    out = (p["output_real"] + 1j * p["output_imaginary"]).T
    out = np.concatenate([out, out.conj()], axis=1)
    step = np.tile(np.exp(p["log_step"]), 2)
    bar = np.exp(diagonal * step)
    bar_into = ((bar - 1) / diagonal)[:, None] * into
    state, results = np.zeros((u.shape[0], 2 * STATES), complex), []
    for t in range(u.shape[1]):
        state = bar * state + u[:, t] @ bar_into.T
        y = state @ out.T
        assert np.abs(y.imag).max() < 1e-12
        results.append(y.real + p["skip"] * u[:, t])
    return np.stack(results, 1)


@pytest.mark.full
def test_against_the_explicit_recurrence(double):
    layer = make(jnp.float64)
    u = np.random.default_rng(0).standard_normal((2, 40, DIM))
    found = layer.mix(jnp.asarray(u), Tokens.single(2, 40))[0]
    np.testing.assert_allclose(found, explicit(layer, u), rtol=1e-10, atol=1e-12)


@pytest.mark.full
def test_in_float32_too(draw):
    layer, u = make(), draw(2, 40, DIM)
    found = layer.mix(u, Tokens.single(2, 40))[0]
    np.testing.assert_allclose(found, explicit(layer, np.asarray(u)), rtol=1e-4, atol=1e-5)


def test_the_gate(draw, apply):
    layer, u = make(), draw(1, 9, DIM)
    p = numbers(layer)
    z = np.asarray(jax.nn.gelu(jnp.float32(explicit(layer, np.asarray(u)))), np.float64)
    expected = z / (1 + np.exp(-(z @ p["gate.kernel"] + p["gate.bias"])))
    np.testing.assert_allclose(apply(layer, u, Tokens.single(1, 9)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 7), (4, 1, 1, 6)])
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
    for start, size in ((0, 7), (7, 5)):
        alone = apply(layer, u[:, start : start + size], Tokens.single(1, size))
        np.testing.assert_allclose(packed[:, start : start + size], alone, rtol=1e-5, atol=1e-6)


def test_it_stands_where_attention_stands():
    """A decoder of S5 layers, scanned; its cached steps give what the whole row gives."""
    attention = functools.partial(S5, STATES, spectrum=HippoNormal(2))
    block = functools.partial(PreNormBlock, attention, functools.partial(Mlp, 12), RMSNorm)
    model = Decoder(11, DIM, 2, block, RMSNorm, stack=Scanned(), rngs=nnx.Rngs(0))
    assert model.blocks.attention.frequency.shape == (2, STATES)
    axes = model.blocks.attention.input_real.get_metadata()["logical_axes"]
    assert axes == ("layers", "embed", "state")
    prompt = [[1, 2, 3]]
    continued = generate(model, prompt, max_new_tokens=5, temperature=0.0)
    row = prompt[0]
    for _ in range(5):
        row = [*row, int(model(jnp.asarray([row]))[0, -1].argmax())]
    assert continued == [row[3:]]


@pytest.mark.full
def test_gradients_are_finite(draw):
    layer, u = make(), draw(1, 30, DIM)
    gradients = nnx.grad(lambda layer: (layer(u, Tokens.single(1, 30)) ** 2).sum())(layer)
    leaves = jax.tree.leaves(gradients)
    assert len(leaves) == 10
    assert all(jnp.isfinite(g).all() and jnp.abs(g).max() > 0 for g in leaves)
