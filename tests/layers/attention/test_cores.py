import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.layers import EinsumAttention, FusedAttention, SameDocument, Tokens
from luthier.layers.attention.cores import softmax

CORES = [EinsumAttention, FusedAttention]


def attend(core, *arguments):
    return jax.jit(core)(*arguments)


def reference(query, key, value, visible):
    """Attention in float64, head by head."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros(query.shape)
    group = query.shape[2] // key.shape[2]
    for b, h in np.ndindex(query.shape[0], query.shape[2]):
        scores = query[b, :, h] @ key[b, :, h // group].T / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max()) * visible[b]
        total = weights.sum(-1, keepdims=True)
        out[b, :, h] = weights / np.where(total > 0, total, 1) @ value[b, :, h // group]
    return out


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_against_a_plain_loop(core, num_kv_heads, draw, pack, distance):
    tokens = pack([[3, 4], [6]], 8)
    query, key, value = (
        draw(2, 8, 4, 16),
        draw(2, 8, num_kv_heads, 16),
        draw(2, 8, num_kv_heads, 16),
    )
    context = attend(core(), query, key, value, tokens, tokens)
    visible = np.asarray(core().mask(tokens, tokens))
    assert distance(context, reference(query, key, value, visible)) < 1e-6


@pytest.mark.parametrize("core", CORES)
def test_the_mask_is_a_part_of_the_core(core, draw, pack, distance):
    tokens = pack([[3, 4]], 8)
    query, key, value = draw(1, 8, 2, 8), draw(1, 8, 2, 8), draw(1, 8, 2, 8)
    context = attend(core(SameDocument()), query, key, value, tokens, tokens)
    visible = np.asarray(SameDocument()(tokens, tokens))
    assert distance(context, reference(query, key, value, visible)) < 1e-6


@pytest.mark.parametrize("core", CORES)
def test_blind_queries_give_zero_and_finite_gradients(core, draw, pack):
    tokens = pack([[], [2]], 4)
    arguments = draw(2, 4, 2, 8), draw(2, 4, 2, 8), draw(2, 4, 2, 8)
    context = attend(core(), *arguments, tokens, tokens)
    assert not context[0].any()
    assert not context[1, 2:].any()
    loss = lambda *arguments: core()(*arguments, tokens, tokens).sum()
    for gradient in jax.jit(jax.grad(loss, (0, 1, 2)))(*arguments):
        assert jnp.isfinite(gradient).all()
        assert not gradient[0].any()
        assert not gradient[1, 2:].any()


@pytest.mark.parametrize("core", CORES)
def test_large_scores_are_safe(core, draw):
    tokens = Tokens.single(1, 4)
    query, key, value = 1e4 * draw(1, 4, 1, 8), 1e4 * draw(1, 4, 1, 8), draw(1, 4, 1, 8)
    assert jnp.isfinite(attend(core(), query, key, value, tokens, tokens)).all()


@pytest.mark.parametrize("core", CORES)
def test_the_softmax_of_bfloat16_is_float32(core, draw, distance):
    tokens = Tokens.single(1, 64)
    arguments = [draw(1, 64, 2, 8).astype(jnp.bfloat16) for _ in range(3)]
    context = attend(core(), *arguments, tokens, tokens)
    assert context.dtype == jnp.bfloat16
    visible = np.tril(np.ones((1, 64, 64)))
    expected = reference(*(x.astype(jnp.float32) for x in arguments), visible)
    assert distance(context.astype(jnp.float32), expected) < 0.01


def test_softmax_and_its_derivatives(draw, distance):
    x, weights = draw(3, 7), draw(3, 7)
    ours, theirs = (lambda x, f=f: (f(x) * weights).sum() for f in (softmax, jax.nn.softmax))
    assert distance(softmax(x), jax.nn.softmax(x)) < 1e-6
    assert distance(jax.jit(jax.grad(ours))(x), jax.jit(jax.grad(theirs))(x)) < 1e-6
    assert distance(jax.jit(jax.hessian(ours))(x), jax.jit(jax.hessian(theirs))(x)) < 1e-5
    np.testing.assert_allclose(
        jax.jvp(softmax, (x,), (weights,))[1],
        jax.jvp(jax.nn.softmax, (x,), (weights,))[1],
        rtol=1e-5,
        atol=1e-6,
    )


def test_softmax_keeps_only_its_result(draw):
    _, backward = jax.vjp(softmax, draw(3, 7))
    kept = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (3, 7)]
    assert len(kept) == 1
