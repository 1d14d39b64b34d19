import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import ExpertChoice, Mlp
from luthier.layers.experts import observing

E, D = 4, 6


def _layer(factor, **settings):
    expert = functools.partial(Mlp, hidden_dim=5)
    return ExpertChoice(E, expert, factor, **settings, dim=D, rngs=nnx.Rngs(params=0))


@jax.jit
def _sums(layer, x_BLD, tokens):
    with observing() as seen:
        layer(x_BLD, tokens)
    return seen[0]


def _expected(layer, x_BLD, counts_BL, capacity):
    graphdef, state = nnx.split(layer.experts)
    scores_BLE = np.asarray(jax.nn.softmax(layer.logits(x_BLD)), np.float64)
    y_BLD, taken_BLE = np.zeros(x_BLD.shape), np.zeros(scores_BLE.shape, bool)
    for b in range(x_BLD.shape[0]):
        places = np.flatnonzero(counts_BL[b])
        for e in range(E):
            expert = nnx.merge(graphdef, jax.tree.map(lambda x, e=e: x[e], state))
            for at in places[np.argsort(-scores_BLE[b, places, e], kind="stable")][:capacity]:
                y_BLD[b, at] += scores_BLE[b, at, e] * expert(x_BLD[b : b + 1, at : at + 1])[0, 0]
                taken_BLE[b, at, e] = True
    return y_BLD, taken_BLE


@pytest.mark.full
def test_every_expert_takes_the_tokens_that_it_scores_highest(draw, pack, apply):
    layer, x_BLD, tokens = _layer(1.0), draw(3, 8, D), pack([[8], [3, 2], [1]], 8)
    expected_BLD, taken_BLE = _expected(layer, x_BLD, np.asarray(tokens.segments_BL) != 0, 2)
    np.testing.assert_allclose(apply(layer, x_BLD, tokens), expected_BLD, atol=1e-6)
    sums = _sums(layer, x_BLD, tokens)
    np.testing.assert_array_equal(sums.choices_E, [2 + 2 + 1] * E)
    assert float(sums.tokens) == float(sums.wanted) == 14
    assert float(sums.dropped) == 14 - taken_BLE.any(-1).sum()


@pytest.mark.full
def test_where_every_expert_takes_all_it_is_the_mean_by_scores(draw, apply, distance):
    layer, x_BLD = _layer(float(E)), draw(2, 5, D)
    expected_BLD, _ = _expected(layer, x_BLD, np.ones((2, 5), bool), 5)
    assert distance(apply(layer, x_BLD), expected_BLD) < 1e-6


@pytest.mark.full
def test_the_derivative_is_finite_and_reaches_the_router(draw, pack):
    layer, x_BLD, tokens = _layer(1.0), draw(3, 8, D), pack([[8], [3, 2], []], 8)
    graphdef, state = nnx.split(layer)
    loss = jax.jit(jax.grad(lambda s: jnp.sum(nnx.merge(graphdef, s)(x_BLD, tokens) ** 2)))
    gradient = loss(state)
    leaves = jax.tree.leaves(gradient)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in leaves)


@pytest.mark.full
def test_it_computes_in_bfloat16_and_adds_a_shared_expert(draw, apply):
    shared = functools.partial(Mlp, hidden_dim=3)
    layer = _layer(1.0, shared=shared, dtype=jnp.bfloat16)
    x_BLD = draw(2, 8, D).astype(jnp.bfloat16)
    y_BLD = apply(layer, x_BLD)
    assert y_BLD.dtype == jnp.bfloat16
    alone = apply(_layer(1.0, dtype=jnp.bfloat16), x_BLD)
    np.testing.assert_allclose(
        np.float32(y_BLD), np.float32(alone + layer.shared(x_BLD)), atol=0.02
    )
