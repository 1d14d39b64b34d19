import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Alibi,
    Attention,
    Mlp,
    Normal,
    OwnBias,
    PreNormBlock,
    RelativeBias,
    RMSNorm,
    Tokens,
)

DIM, HEADS, LENGTH = 16, 4, 7

RELATIVE = functools.partial(RelativeBias, HEADS, table=Normal(1.0))
ATTENTION = functools.partial(Attention, HEADS)


@pytest.fixture
def attention():
    return OwnBias(ATTENTION, RELATIVE, dim=DIM, rngs=nnx.Rngs(0))


@pytest.fixture
def x_BLD():
    return jnp.asarray(np.random.default_rng(0).standard_normal((2, LENGTH, DIM)), jnp.float32)


@pytest.mark.full
def test_the_bias_is_added_to_the_scores_of_the_attention(attention, x_BLD):
    tokens = Tokens.single(2, LENGTH)
    found = attention(x_BLD, tokens)
    expected = attention.attention(x_BLD, tokens, None, attention.bias)
    np.testing.assert_array_equal(found, expected)
    assert not np.allclose(found, attention.attention(x_BLD, tokens), atol=1e-3)


@pytest.mark.full
def test_a_bias_of_all_layers_is_added_as_well(attention, x_BLD):
    tokens, shared = Tokens.single(2, LENGTH), Alibi(HEADS)

    def both(query, key):
        return attention.bias(query, key) + shared(query, key)

    found = attention(x_BLD, tokens, bias=shared)
    expected = attention.attention(x_BLD, tokens, None, both)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.full
def test_with_a_cache_it_is_the_same_token_by_token(x_BLD):
    sizes = {"dim": DIM, "rngs": nnx.Rngs(0)}
    attention = functools.partial(OwnBias, ATTENTION, RELATIVE)
    block = PreNormBlock(attention, functools.partial(Mlp, 32), RMSNorm, **sizes)
    tokens = Tokens.single(2, LENGTH)
    whole = jax.jit(lambda block, x: block(x, tokens))(block, x_BLD)
    decode = jax.jit(lambda block, *given: block.decode(*given))
    cache, places = block.init_cache(2, LENGTH), jnp.arange(LENGTH)[None].repeat(2, 0)
    for i in range(LENGTH):
        cached = Tokens(places, (places <= i).astype(jnp.int32))
        new = Tokens(places[:, i : i + 1], jnp.ones((2, 1), jnp.int32))
        part, cache = decode(block, x_BLD[:, i : i + 1], new, cache, cached, jnp.int32(i))
        np.testing.assert_allclose(part[:, 0], whole[:, i], rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_layers_have_numbers_of_their_own(x_BLD):
    kinds = jax.vmap(
        lambda key: nnx.to_pure_dict(
            nnx.state(OwnBias(ATTENTION, RELATIVE, dim=DIM, rngs=nnx.Rngs(key)))
        )
    )(jax.random.split(jax.random.key(0), 2))
    first, second = kinds["bias"]["table"]
    assert (first != second).any()
