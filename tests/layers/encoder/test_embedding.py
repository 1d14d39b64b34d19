import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Dropout,
    DropoutKeys,
    Embedding,
    FactorizedEmbedding,
    LayerNorm,
    LearnedPositions,
    Linear,
    Normal,
    Tokens,
    TypedEmbedding,
)

TOKENS = functools.partial(
    Embedding, Normal(1.0), position=functools.partial(LearnedPositions, 9, Normal(1.0))
)
TYPED = functools.partial(TypedEmbedding, LayerNorm, TOKENS, types=Normal(1.0))
INPUTS = jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32)
TYPES = jnp.asarray([[0, 0, 1, 1, 0]], jnp.int32)


def make(template, dim, **settings):
    return template(vocab_size=7, dim=dim, rngs=nnx.Rngs(0), **settings)


@jax.jit
def embed(model, types=None):
    return model(INPUTS, Tokens.single(1, 5), None, types)


def reference(model, types):
    """Sum the three vectors and normalize them, in float64."""
    table, positions, kinds = (
        np.asarray(parameter[...], np.float64)
        for parameter in (model.tokens.table, model.tokens.position.table, model.types)
    )
    x = table[np.asarray(INPUTS)] + positions[:5] + kinds[np.asarray(types)]
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


@pytest.mark.full
def test_the_sum_is_normalized(distance):
    model = make(TYPED, 6)
    assert distance(embed(model, TYPES), reference(model, TYPES)) < 1e-6


def test_without_types_all_are_of_the_first(distance):
    model = make(TYPED, 6)
    assert distance(embed(model), reference(model, jnp.zeros_like(INPUTS))) < 1e-6


@pytest.mark.full
def test_dropout_follows_the_norm():
    model = make(functools.partial(TYPED, dropout=functools.partial(Dropout, 0.5)), 6)
    keys = DropoutKeys.of_tokens(jax.random.key(1), jnp.ones_like(INPUTS), jnp.arange(5)[None])
    dropped = model(INPUTS, Tokens.single(1, 5), keys)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.size
    plain = embed(model)
    np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-6)


@pytest.mark.full
def test_factorized_embedding_is_a_small_one_and_a_map(distance):
    linear = functools.partial(Linear, bias=Normal(1.0))
    model = make(functools.partial(FactorizedEmbedding, 6, TYPED, linear), 10)
    assert model.lookup.table.shape == (7, 6)
    kernel, bias = (np.asarray(p[...]) for p in (model.projection.kernel, model.projection.bias))
    expected = reference(model.embedding, TYPES) @ kernel + bias
    assert distance(embed(model, TYPES), expected) < 1e-6


def test_logical_axes():
    model = make(functools.partial(FactorizedEmbedding, 6, TYPED), 10)
    axes = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(model))
    }
    assert axes == {
        "embedding.norm.bias": ("embed",),
        "embedding.norm.scale": ("embed",),
        "embedding.tokens.position.table": (None, "embed"),
        "embedding.tokens.table": ("vocab", "embed"),
        "embedding.types": (None, "embed"),
        "projection.kernel": (None, "embed"),
    }


@pytest.mark.full
def test_the_type_computed_in_is_that_of_the_result():
    model = make(TYPED, 6, dtype=jnp.bfloat16)
    assert embed(model, TYPES).dtype == jnp.bfloat16
