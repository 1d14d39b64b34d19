import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Attention,
    HeadNorms,
    Normal,
    QueryScale,
    Rotary,
    RotatedFirstAttention,
    Tokens,
)

DIM, HEADS, LENGTH = 16, 2, 5
SCALED = functools.partial(QueryScale, theta=Normal(1.0))


@pytest.fixture
def x_BLD():
    return jnp.asarray(np.random.default_rng(0).standard_normal((2, LENGTH, DIM)), jnp.float32)


def made(kind, **settings):
    return kind(HEADS, dim=DIM, rngs=nnx.Rngs(0), **settings)


@pytest.mark.full
def test_the_scale_of_dimensions_follows_the_rotation(x_BLD):
    settings = {"rotary": Rotary(), "query_key": SCALED}
    first, late = made(Attention, **settings), made(RotatedFirstAttention, **settings)
    tokens = Tokens.single(2, LENGTH)
    query_BLHK, *_ = late._project(x_BLD, tokens)
    turned_BLHK = late.rotary(late.query(x_BLD), tokens.positions_BL)
    np.testing.assert_array_equal(query_BLHK, late.query_key(turned_BLHK, turned_BLHK)[0])
    assert not np.allclose(first(x_BLD, tokens), late(x_BLD, tokens), atol=1e-3)


@pytest.mark.parametrize("settings", [{"query_key": HeadNorms}, {"rotary": Rotary()}, {}])
def test_with_one_of_both_it_is_attention(x_BLD, settings):
    tokens = Tokens.single(2, LENGTH)
    found = [made(kind, **settings)(x_BLD, tokens) for kind in (Attention, RotatedFirstAttention)]
    np.testing.assert_array_equal(*found)


@pytest.mark.full
def test_with_a_cache_it_is_the_same_token_by_token(x_BLD):
    attention = made(RotatedFirstAttention, rotary=Rotary(), query_key=SCALED)
    expected = attention(x_BLD, Tokens.single(2, LENGTH))
    cache = attention.init_cache(2, LENGTH)
    places = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (2, LENGTH))
    for place in range(LENGTH):
        cached = Tokens(places, (places <= place).astype(jnp.int32))
        one = Tokens(jnp.full((2, 1), place, jnp.int32), jnp.ones((2, 1), jnp.int32))
        x_B1D = x_BLD[:, place : place + 1]
        found, cache = attention.decode(x_B1D, one, cache, cached, jnp.int32(place))
        np.testing.assert_allclose(found[:, 0], expected[:, place], rtol=1e-5, atol=1e-5)
