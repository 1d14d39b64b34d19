import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Embedding,
    LayerNorm,
    Linear,
    MaskedHead,
    MeanOfTokens,
    Normal,
    Pooler,
    ScaledTiedUnembedding,
)

BIASED = functools.partial(Linear, bias=Normal(1.0))


def wide(parameter):
    return np.asarray(parameter[...], np.float64)


def make_embedding(dim, **settings):
    return Embedding(Normal(1.0), vocab_size=7, dim=dim, rngs=nnx.Rngs(1), **settings)


@pytest.mark.full
def test_masked_head_is_a_transform_a_norm_and_the_tied_table(draw, distance, apply):
    embedding = make_embedding(4, pad_to_multiple=8)
    head = MaskedHead(
        LayerNorm,
        jax.nn.relu,
        BIASED,
        Normal(1.0),
        vocab_size=7,
        embed_dim=4,
        dim=6,
        rngs=nnx.Rngs(0),
    )
    hidden = draw(2, 3, 6)
    x = np.maximum(np.asarray(hidden) @ wide(head.transform.kernel) + wide(head.transform.bias), 0)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = x @ wide(embedding.table)[:7].T + wide(head.bias)
    found = apply(head, hidden, embedding)
    assert found.shape == (2, 3, 7)
    assert distance(found, expected) < 1e-6


def test_masked_head_computes_in_its_type_and_scores_in_float32(draw, apply):
    embedding = make_embedding(4, dtype=jnp.bfloat16)
    sizes = {"vocab_size": 7, "embed_dim": 4, "dim": 6}
    head = MaskedHead(LayerNorm, **sizes, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert apply(head, draw(2, 3, 6).astype(jnp.bfloat16), embedding).dtype == jnp.float32


@pytest.mark.full
def test_pooler_looks_at_the_first_token(draw, pack, distance, apply):
    pooler = Pooler(BIASED, dim=6, rngs=nnx.Rngs(0))
    hidden = draw(2, 3, 6)
    expected = np.tanh(
        np.asarray(hidden[:, 0]) @ wide(pooler.transform.kernel) + wide(pooler.transform.bias)
    )
    assert distance(apply(pooler, hidden, pack([[3], [2]], 3)), expected) < 1e-6


def test_mean_of_tokens_leaves_padding_out(draw, pack, distance, apply):
    hidden = draw(3, 4, 6).at[1, 2:].set(jnp.nan)
    found = apply(MeanOfTokens(), hidden, pack([[4], [2], []], 4))
    assert distance(found[0], np.asarray(hidden[0]).mean(0)) < 1e-6
    assert distance(found[1], np.asarray(hidden[1, :2]).mean(0)) < 1e-6
    np.testing.assert_array_equal(found[2], 0)


@pytest.mark.full
def test_scaled_tied_unembedding(draw, distance, apply):
    embedding, hidden = make_embedding(4), draw(2, 3, 4)
    products = np.asarray(hidden) @ wide(embedding.table).T
    assert distance(apply(ScaledTiedUnembedding(), hidden, embedding), products / 2) < 1e-6
    assert distance(apply(ScaledTiedUnembedding(3.0), hidden, embedding), products * 3) < 1e-6
