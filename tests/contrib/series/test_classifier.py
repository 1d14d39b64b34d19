import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.contrib.series import SeriesClassifier
from luthier.contrib.state_space import S5
from luthier.layers import (
    Attention,
    ClassToken,
    ConformerBlock,
    Convolution,
    Dropout,
    DropoutKeys,
    EinsumAttention,
    LayerNorm,
    Linear,
    Mlp,
    Normal,
    PreNormBlock,
    SameDocument,
    Scanned,
    Tokens,
    Unrolled,
)

B, L, C, D, K = 3, 24, 2, 8, 4
ATTENTION = functools.partial(Attention, 2, core=EinsumAttention(SameDocument()))
STATES = functools.partial(S5, 6)


def pre_norm(mixer, rate=0.0):
    dropout = functools.partial(Dropout, rate)
    return functools.partial(PreNormBlock, mixer, functools.partial(Mlp, 12), LayerNorm, dropout)


BLOCKS = {
    "attention": pre_norm(ATTENTION),
    "s5": pre_norm(STATES),
    "conformer": functools.partial(ConformerBlock, ATTENTION, functools.partial(Mlp, 12)),
}


def make(block, **settings):
    return SeriesClassifier(
        K,
        D,
        2,
        block,
        LayerNorm,
        embedding=functools.partial(Convolution, (5,), (4,)),
        num_channels=C,
        head=functools.partial(Linear, Normal(1.0)),
        rngs=nnx.Rngs(0),
        **settings,
    )


@pytest.fixture
def series():
    return jnp.float32(np.random.default_rng(0).standard_normal((B, L, C)))


@jax.jit
def logits(model, series, examples=None):
    keys = None
    if examples is not None:
        rows = jnp.asarray(examples)[:, None]
        keys = DropoutKeys.of_tokens(jax.random.key(0), rows, jnp.zeros_like(rows))
    return model(series, dropout=keys)


@pytest.mark.full
def test_against_the_formula(series):
    """The blocks are the model's, all else is NumPy."""
    model = make(BLOCKS["attention"], stack=Unrolled())
    kernel = np.asarray(model.embedding.kernel[...], np.float64)
    padded = np.pad(np.asarray(series, np.float64), ((0, 0), (2, 2), (0, 0)))
    windows = np.stack([padded[:, i : i + 5] for i in range(0, L, 4)], axis=1)
    x = jnp.float32(np.einsum("bnkc,kcd->bnd", windows, kernel))
    for block in model.blocks:
        x = block(x, Tokens.single(B, L // 4))
    x = np.asarray(x, np.float64)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + model.norm.epsilon)
    expected = x.mean(1) @ np.asarray(model.head.kernel[...], np.float64)
    np.testing.assert_allclose(logits(model, series), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("kind", BLOCKS)
def test_scanned_equals_unrolled(kind, series):
    scanned, unrolled = (make(BLOCKS[kind], stack=stack) for stack in (Scanned(), Unrolled()))
    np.testing.assert_allclose(
        logits(scanned, series), logits(unrolled, series), rtol=1e-5, atol=1e-6
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", BLOCKS)
def test_every_value_counts_for_its_own_series_only(kind, series):
    model = make(BLOCKS[kind])
    gradient = jax.grad(lambda x: jnp.square(logits(model, x)[1]).sum())(series)
    np.testing.assert_array_equal(gradient[jnp.array([0, 2])], 0)
    assert (gradient[1, :-1] != 0).all()  # The last window ends one before the end.


@pytest.mark.full
def test_a_class_token_stands_in_front(series):
    model = make(BLOCKS["attention"], pooling=ClassToken)
    assert model.hidden(series).shape == (B, 1 + L // 4, D)
    assert logits(model, series).shape == (B, K)


def test_longer_series_need_no_other_parameters(series):
    model = make(BLOCKS["s5"])
    assert logits(model, jnp.concatenate([series, series], 1)).shape == (B, K)


@pytest.mark.full
def test_dropout_belongs_to_the_example_and_the_place(series):
    model = make(pre_norm(ATTENTION, 0.5))
    first = logits(model, series, (1, 2, 3))
    np.testing.assert_array_equal(first[::-1], logits(model, series[::-1], (3, 2, 1)))
    assert not np.allclose(first[0], logits(model, series, (4, 2, 3))[0])
    assert not np.allclose(first, logits(model, series))
