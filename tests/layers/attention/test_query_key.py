import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Attention,
    HeadNorms,
    LayerNorm,
    Normal,
    ProjectionNorms,
    QueryScale,
    RMSNorm,
    Rotary,
    Tokens,
)

NORM = functools.partial(RMSNorm, scale=Normal(1.0))
KINDS = [HeadNorms, ProjectionNorms, QueryScale]


def make(query_key, **settings):
    settings = {"num_kv_heads": 2, "head_dim": 8, "rotary": Rotary()} | settings
    return Attention(4, query_key=query_key, **settings, dim=16, rngs=nnx.Rngs(0))


def rms(x, axes):
    x = np.asarray(x, np.float64)
    return x / np.sqrt(np.square(x).mean(axes, keepdims=True) + 1e-6)


@pytest.mark.full
def test_norms_of_heads(draw, distance):
    parts = make(functools.partial(HeadNorms, NORM)).query_key
    query, key = draw(2, 3, 4, 8), draw(2, 3, 2, 8)
    found = parts(query, key)
    assert distance(found[0], rms(query, -1) * np.asarray(parts.query_norm.scale[...])) < 1e-6
    assert distance(found[1], rms(key, -1) * np.asarray(parts.key_norm.scale[...])) < 1e-6
    assert parts.key_norm.scale.shape == (8,)
    assert parts.key_norm.scale.get_metadata()["logical_axes"] == ("head_dim",)


@pytest.mark.full
def test_norms_of_projections(draw, distance):
    parts = make(functools.partial(ProjectionNorms, NORM)).query_key
    query, key = draw(2, 3, 4, 8), draw(2, 3, 2, 8)
    found = parts(query, key)
    scales = [np.asarray(norm.scale[...]) for norm in (parts.query_norm, parts.key_norm)]
    assert distance(found[0], rms(query, (-1, -2)) * scales[0].reshape(4, 8)) < 1e-6
    assert distance(found[1], rms(key, (-1, -2)) * scales[1].reshape(2, 8)) < 1e-6
    axes = [n.scale.get_metadata()["logical_axes"] for n in (parts.query_norm, parts.key_norm)]
    assert axes == [("heads",), ("kv_heads",)]


def test_a_scale_for_each_dimension(draw, distance):
    query, key = draw(2, 3, 4, 8), draw(2, 3, 2, 8)
    plain = make(QueryScale).query_key(query, key)
    assert distance(plain[0], query) < 1e-6
    drawn = make(functools.partial(QueryScale, Normal(1.0))).query_key
    scaled, same = drawn(query, key)
    assert same is key
    theta = np.asarray(drawn.theta[...], np.float64)
    assert distance(scaled, np.asarray(query) * 1.442695041 * np.log1p(np.exp(theta))) < 1e-6


@pytest.mark.full
def test_other_norms_fit_too(draw):
    parts = make(functools.partial(HeadNorms, LayerNorm)).query_key
    assert abs(parts(draw(1, 2, 4, 8), draw(1, 2, 2, 8))[0].mean(-1)).max() < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_comes_before_the_rotation(kind, draw, distance, apply):
    """Keys in the cache are done with: decoding is the forward pass."""
    attention, whole, x = make(kind), Tokens.single(2, 4), draw(2, 4, 16)
    cache, outputs = attention.init_cache(2, 4), []
    for i in range(4):
        tokens = Tokens(whole.positions_BL[:, i : i + 1], whole.segments_BL[:, i : i + 1])
        y, cache = attention.decode(x[:, i : i + 1], tokens, cache, whole, i)
        outputs.append(y)
    assert distance(jnp.concatenate(outputs, 1), apply(attention, x, whole)) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_it_changes_no_other_parameter(kind):
    plain = dict(nnx.to_flat_state(nnx.state(make(None))))
    found = dict(nnx.to_flat_state(nnx.state(make(kind))))
    assert set(plain) < set(found)
    for path, value in plain.items():
        assert (found[path][...] == value[...]).all(), path
    assert all(path[0] == "query_key" for path in set(found) - set(plain))


@pytest.mark.parametrize("kind", KINDS)
def test_computes_in_its_dtype(kind, draw):
    parts = make(kind, dtype=jnp.bfloat16).query_key
    query, key = draw(1, 2, 4, 8).astype(jnp.bfloat16), draw(1, 2, 2, 8).astype(jnp.bfloat16)
    assert {x.dtype for x in parts(query, key)} == {jnp.dtype(jnp.bfloat16)}
