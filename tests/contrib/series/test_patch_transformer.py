import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.contrib.series import PatchTransformer
from luthier.errors import BadInput
from luthier.layers import (
    Attention,
    Dropout,
    DropoutKeys,
    EinsumAttention,
    LayerNorm,
    Mlp,
    PostNormBlock,
    SameDocument,
    Unrolled,
)

L, H, C = 20, 6, 3


def make(rate=None, **settings):
    block = functools.partial(
        PostNormBlock,
        functools.partial(Attention, 2, core=EinsumAttention(SameDocument())),
        functools.partial(Mlp, 12),
        LayerNorm,
        dropout=None if rate is None else functools.partial(Dropout, rate),
    )
    return PatchTransformer(
        L, H, 8, 2, block, patch_length=5, stride=4, rngs=nnx.Rngs(0), **settings
    )


@pytest.fixture(scope="module")
def apply():
    return jax.jit(lambda model, x, dropout=None: model(x, dropout=dropout))


@pytest.fixture
def series():
    return jnp.float32(np.random.default_rng(0).standard_normal((2, L, C)))


def explicit(model, x_L):
    """One channel, as the paper says it: the blocks are the model's, all else is NumPy."""
    x = np.asarray(x_L, np.float64)
    mean, deviation = x.mean(), np.sqrt(x.var() + 1e-5)
    x = (x - mean) / deviation
    x = np.concatenate([x, np.repeat(x[-1], 4)])
    patches = np.stack([x[i : i + 5] for i in range(0, len(x) - 4, 4)])
    assert len(patches) == model.num_patches == 5
    tokens = patches @ np.asarray(model.embedding.kernel[...]) + np.asarray(model.positions[...])
    y = jnp.float32(tokens)[None]
    from luthier.layers import Tokens

    for block in model.blocks:
        y = block(y, Tokens.single(1, 5))
    flat = np.asarray(y, np.float64).reshape(-1)
    out = flat @ np.asarray(model.head.kernel[...]).reshape(len(flat), -1)
    return out * deviation + mean


@pytest.mark.full
def test_each_channel_against_the_formula(apply, series):
    model = make(stack=Unrolled())
    found = apply(model, series)
    assert found.shape == (2, H, C)
    for b, c in np.ndindex(2, C):
        expected = explicit(model, series[b, :, c])
        np.testing.assert_allclose(found[b, :, c], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_channels_are_independent(apply, series):
    model = make()
    changed = series.at[:, :, 1].set(7.0)
    found, other = apply(model, series), apply(model, changed)
    np.testing.assert_allclose(found[..., ::2], other[..., ::2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other[..., 1], 7.0, atol=0.05)


def test_level_and_scale_of_a_series_are_those_of_its_forecast(apply, series):
    model = make()
    np.testing.assert_allclose(
        apply(model, 100 * series + 7), 100 * apply(model, series) + 7, rtol=1e-3, atol=1e-2
    )


def test_quantiles_have_a_dimension_of_their_own(apply, series):
    assert apply(make(num_quantiles=4), series).shape == (2, H, C, 4)


@pytest.mark.full
def test_dropout_belongs_to_the_example(apply, series):
    model = make(0.3)
    ids = jnp.int32([[4], [9]])
    keys = DropoutKeys.of_tokens(jax.random.key(0), ids, jnp.zeros_like(ids))
    swapped = DropoutKeys.of_tokens(jax.random.key(0), ids[::-1], jnp.zeros_like(ids))
    found = apply(model, series, keys)
    assert not np.allclose(found, apply(model, series))
    np.testing.assert_allclose(
        apply(model, series[::-1], swapped)[::-1], found, rtol=1e-5, atol=1e-6
    )


def test_series_of_another_length_are_bad_input(series):
    with pytest.raises(BadInput, match="20 steps, not 19"):
        make()(series[:, 1:])
    with pytest.raises(BadInput, match="patches of 5 steps"):
        PatchTransformer(4, H, 8, 1, PostNormBlock, patch_length=5, rngs=nnx.Rngs(0))
