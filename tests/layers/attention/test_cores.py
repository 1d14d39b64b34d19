import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.layers import (
    Alibi,
    Causal,
    DropoutKeys,
    EinsumAttention,
    FusedAttention,
    SameDocument,
    Tokens,
    Window,
    soft_cap,
)
from luthier.layers.attention import softmax

CORES = [EinsumAttention, FusedAttention]


def attend(core, *arguments):
    return jax.jit(core)(*arguments)


def reference(query, key, value, visible, scale=None, cap=None, bias=None):
    """Attention in float64, head by head."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    out = np.zeros(query.shape)
    group = query.shape[2] // key.shape[2]
    for b, h in np.ndindex(query.shape[0], query.shape[2]):
        scores = query[b, :, h] @ key[b, :, h // group].T
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        scores = scores if bias is None else scores + np.asarray(bias[b, h], np.float64)
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


TERMS = [
    (EinsumAttention(scale=0.7), {"scale": 0.7}),
    (EinsumAttention(cap=0.5), {"cap": 0.5}),
    (EinsumAttention(Window(3), scale=0.7, cap=0.5), {"scale": 0.7, "cap": 0.5}),
    (FusedAttention(scale=0.7), {"scale": 0.7}),
    (FusedAttention(Window(3)), {}),
]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("core", "terms"), TERMS, ids=repr)
def test_scale_cap_window_and_bias(core, terms, with_bias, draw, pack, distance):
    tokens = pack([[3, 4], [6]], 8)
    query, key, value = draw(2, 8, 4, 16), draw(2, 8, 2, 16), draw(2, 8, 2, 16)
    bias = Alibi(4) if with_bias else None
    added = Alibi(4)(tokens, tokens) if with_bias else None
    context = core(query, key, value, tokens, tokens, bias=bias)
    visible = np.asarray(core.mask(tokens, tokens))
    assert distance(context, reference(query, key, value, visible, bias=added, **terms)) < 1e-6


def test_a_soft_cap(draw, distance):
    x = np.asarray(draw(5, 7), np.float64)
    assert distance(soft_cap(jnp.asarray(x), 0.5), 0.5 * np.tanh(x / 0.5)) < 1e-6
    small = jnp.asarray(1e-3 * x)
    assert distance(soft_cap(small, 50.0), small) < 1e-6


def keys_of(documents, positions):
    return DropoutKeys.of_tokens(jax.random.key(3), documents, positions)


def ones_where_attended(core, tokens, documents, num_heads=3):
    """Return the weights times the number of visible keys: 0 or 1/keep where attended."""
    B, L = documents.shape
    query, key = jnp.zeros((B, L, num_heads, L)), jnp.zeros((B, L, 1, L))
    value = jnp.broadcast_to(jnp.eye(L)[None, :, None], (B, L, 1, L))
    weights = core(query, key, value, tokens, tokens, keys_of(documents, tokens.positions_BL))
    visible = core.mask(tokens, tokens)
    return np.asarray(weights * visible.sum(-1)[:, :, None, None])  # [B, L, H, S]


@pytest.mark.full
def test_dropout_keeps_the_mean():
    core = EinsumAttention(SameDocument(), dropout=0.25)
    tokens = Tokens.single(4, 40)
    weights = ones_where_attended(core, tokens, jnp.broadcast_to(jnp.arange(4)[:, None], (4, 40)))
    kept = weights > 0
    np.testing.assert_allclose(weights[kept], 1 / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 0.01
    assert not (kept[0] == kept[1]).all()
    assert not (kept[:, :, 0] == kept[:, :, 1]).all()
    assert not (kept[:, 0] == kept[:, 1]).all()


@pytest.mark.full
def test_dropped_weights_belong_to_tokens_and_not_to_places(pack):
    core = EinsumAttention(Causal(), dropout=0.5)
    packed = pack([[3, 5]], 9)
    documents = jnp.array([[7, 7, 7, 8, 8, 8, 8, 8, 0]])
    together = ones_where_attended(core, packed, documents)
    alone = ones_where_attended(core, Tokens.single(1, 5), jnp.full((1, 5), 8))
    np.testing.assert_allclose(together[:, 3:8, :, 3:8], alone, rtol=1e-6)


@pytest.mark.full
def test_dropout_without_keys_or_rate_is_none(draw):
    tokens = Tokens.single(1, 6)
    arguments = draw(1, 6, 2, 8), draw(1, 6, 2, 8), draw(1, 6, 2, 8), tokens, tokens
    keys = keys_of(jnp.ones((1, 6), jnp.int32), tokens.positions_BL)
    plain = EinsumAttention()(*arguments)
    assert (EinsumAttention(dropout=0.5)(*arguments) == plain).all()
    assert (EinsumAttention()(*arguments, keys) == plain).all()
    np.testing.assert_allclose(EinsumAttention(dropout=0.0)(*arguments, keys), plain, rtol=1e-6)
    assert (EinsumAttention(dropout=0.5)(*arguments, keys) != plain).any()


@pytest.mark.full
def test_numbers_may_be_traced(draw, distance):
    tokens = Tokens.single(1, 6)
    arguments = draw(1, 6, 2, 8), draw(1, 6, 2, 8), draw(1, 6, 2, 8), tokens, tokens
    keys = keys_of(jnp.ones((1, 6), jnp.int32), tokens.positions_BL)

    def attend(scale, cap, rate, size):
        core = EinsumAttention(Window(size), scale, cap, rate)
        return core(*arguments, keys)

    traced = jax.jit(attend)(0.7, 0.5, 0.25, 4)
    assert distance(traced, attend(0.7, 0.5, 0.25, 4)) < 1e-6
