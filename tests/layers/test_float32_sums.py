"""Gradients of parameters that many tokens share, computed in bfloat16, against float64 sums.

Shapes: B rows, L length, D embed, V vocabulary.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    ClassToken,
    ConvolutionModule,
    DepthwiseConvolution,
    Embedding,
    LearnedPositions,
    Linear,
    Normal,
    PatchEmbedding,
    Tokens,
    TypedEmbedding,
)

B, L, D, V = 32, 512, 16, 400
BOUND = 2e-3  # a rounding of the result to bfloat16 is 2^-9 at most
FIRST = Tokens.single(B, L)


def zipf():
    """Return tokens as text has them: the most frequent is an eighth of all."""
    share = 1 / np.arange(1, V + 1)
    generator = np.random.default_rng(0)
    return generator.choice(V, (B, L), p=share / share.sum()).astype(np.int32)


def gradients(make, call, shape):
    """Return the gradients of a module's parameters, and the cotangent [*shape] they are sums of.

    A cotangent that is not around zero: sums of positive numbers are where small ones get lost.
    """
    kinds = {"dtype": jnp.bfloat16, "param_dtype": jnp.float32}
    module = make(**kinds, rngs=nnx.Rngs(0))
    noise = np.random.default_rng(1).uniform(0.5, 1.5, shape)
    cotangent = jnp.asarray(noise, jnp.bfloat16)

    @jax.jit
    def grad(module, cotangent):
        graph, state = nnx.split(module)
        _, pull = jax.vjp(lambda state: call(nnx.merge(graph, state)), state)
        return pull(cotangent)[0]

    return grad(module, cotangent), np.asarray(cotangent, np.float64)


def off(found, expected):
    """Return the largest error of a row, relative to the row; and check that it is float32."""
    assert found.dtype == jnp.float32
    found = np.asarray(found, np.float64)
    scale = np.linalg.norm(expected, axis=-1)
    seen = scale > 0
    return np.max(np.linalg.norm(found - expected, axis=-1)[seen] / scale[seen])


def unchanged():
    return lambda x: x


def by_index(cotangent, indices, number):
    expected = np.zeros((number, cotangent.shape[-1]))
    np.add.at(expected, indices.reshape(-1), cotangent.reshape(-1, cotangent.shape[-1]))
    return expected


def test_gradients_of_an_embedding_are_summed_in_float32():
    inputs, types = zipf(), zipf() % 2
    tokens = partial(Embedding, position=partial(LearnedPositions, L))
    make = partial(TypedEmbedding, tokens=tokens, norm=unchanged, vocab_size=V, dim=D)

    found, cotangent = gradients(make, lambda m: m(inputs, FIRST, types_BL=types), (B, L, D))
    assert off(found.tokens.table[...], by_index(cotangent, inputs, V)) < BOUND
    assert off(found.tokens.position.table[...], cotangent.sum(0)) < BOUND
    assert off(found.types[...], by_index(cotangent, types, 2)) < BOUND

    found, cotangent = gradients(make, lambda m: m(inputs, FIRST), (B, L, D))
    assert off(found.types[...][:1], cotangent.sum((0, 1))[None]) < BOUND


X_BLD = np.random.default_rng(2).standard_normal((B, L, D)).astype(np.float32)
IMAGES = np.random.default_rng(2).standard_normal((256, 32, 32, 3)).astype(np.float32)


def linear(**kinds):
    axes = {"input_axes": ("embed",), "output_axes": ("mlp",)}
    return Linear(inputs=(D,), outputs=(D,), bias=Normal(0.1), **axes, **kinds)


def depthwise(**kinds):
    return DepthwiseConvolution((3,), bias=Normal(0.1), dim=D, **kinds)


def patches(**kinds):
    return PatchEmbedding((32, 32), (4, 4), 3, bias=Normal(0.1), num_tokens=0, dim=D, **kinds)


def over_taps(**kinds):
    return ConvolutionModule(3, norm=unchanged, pointwise=unchanged, dim=D, **kinds)


@pytest.mark.parametrize(
    ("make", "call"),
    [
        pytest.param(linear, lambda m: m(X_BLD), id="linear"),
        pytest.param(depthwise, lambda m: m(X_BLD), id="convolution"),
        pytest.param(over_taps, lambda m: m._convolve(X_BLD, FIRST.segments_BL), id="conformer"),
    ],
)
def test_gradients_of_a_bias_are_summed_in_float32(make, call):
    found, cotangent = gradients(make, call, (B, L, D))
    assert off(found.bias[...][None], cotangent.sum((0, 1))[None]) < BOUND


def test_gradients_of_what_all_images_share_are_summed_in_float32():
    found, cotangent = gradients(patches, lambda m: m(IMAGES, lambda x: x), (256, 64, D))
    assert off(found.bias[...][None], cotangent.sum((0, 1))[None]) < BOUND
    assert off(found.positions[...], cotangent.sum(0)) < BOUND

    x_BLD = jnp.asarray(X_BLD, jnp.bfloat16)
    token = partial(ClassToken, dim=D)
    found, cotangent = gradients(token, lambda m: m.prepend(x_BLD), (B, 1 + L, D))
    assert off(found.token[...][None], cotangent[:, 0].sum(0)[None]) < BOUND
