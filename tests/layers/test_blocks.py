import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.layers import (
    Alibi,
    Attention,
    BranchNormBlock,
    Dropout,
    DropoutKeys,
    EinsumAttention,
    Mlp,
    Normal,
    ParallelBlock,
    PostNormBlock,
    PreNormBlock,
    RMSNorm,
    SandwichBlock,
    Tokens,
)

NORM = functools.partial(RMSNorm, scale=Normal(1.0))


@pytest.fixture
def make():
    def make(kind=PreNormBlock, core=EinsumAttention(), **settings):
        return kind(
            attention=functools.partial(Attention, 2, core=core),
            mlp=functools.partial(Mlp, 16),
            norm=NORM,
            **settings,
            dim=8,
            rngs=nnx.Rngs(0),
        )

    return make


def pre(block, attend, x):
    y = x + attend(block.attention_norm(x))
    return y + block.mlp(block.mlp_norm(y))


def branch(block, attend, x):
    y = x + block.attention_norm(attend(x))
    return y + block.mlp_norm(block.mlp(y))


def sandwich(block, attend, x):
    y = x + block.attention_post_norm(attend(block.attention_norm(x)))
    return y + block.mlp_post_norm(block.mlp(block.mlp_norm(y)))


def post(block, attend, x):
    y = block.attention_norm(x + attend(x))
    return block.mlp_norm(y + block.mlp(y))


def parallel(block, attend, x):
    n = block.norm(x)
    return x + attend(n) + block.mlp(n)


FORMULAS = {
    PreNormBlock: pre,
    BranchNormBlock: branch,
    SandwichBlock: sandwich,
    PostNormBlock: post,
    ParallelBlock: parallel,
}
KINDS = list(FORMULAS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_its_formula(kind, make, draw, distance, apply):
    block, tokens = make(kind), Tokens.single(2, 5)
    x = draw(2, 5, 8)

    @jax.jit
    def plain(block, x):
        return FORMULAS[kind](block, lambda x: block.attention(x, tokens), x)

    assert distance(apply(block, x, tokens), plain(block, x)) < 1e-6
    norms = [name for name in vars(block) if "norm" in name]
    assert len({str(getattr(block, name).scale[...]) for name in norms}) == len(norms)


def test_norms_have_names():
    names = {
        PreNormBlock: {"attention_norm", "mlp_norm"},
        BranchNormBlock: {"attention_norm", "mlp_norm"},
        PostNormBlock: {"attention_norm", "mlp_norm"},
        ParallelBlock: {"norm"},
        SandwichBlock: {"attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"},
    }
    parts = {"attention": functools.partial(Attention, 2), "mlp": functools.partial(Mlp, 16)}
    for kind, expected in names.items():
        block = kind(**parts, norm=RMSNorm, dim=8, rngs=nnx.Rngs(0))
        found = {path[0] for path, _ in nnx.to_flat_state(nnx.state(block))}
        assert found == expected | set(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bias_reaches_the_attention(kind, make, draw, distance, apply):
    block, tokens, x = make(kind), Tokens.single(2, 5), draw(2, 5, 8)
    attend = lambda x: block.attention(x, tokens, bias=Alibi(2))
    expected = FORMULAS[kind](block, attend, x)
    assert distance(block(x, tokens, bias=Alibi(2)), expected) < 1e-6
    assert distance(apply(block, x, tokens), expected) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_keys_reach_the_dropout_of_attention(kind, make, draw):
    block, tokens = make(kind, EinsumAttention(dropout=0.5)), Tokens.single(2, 5)
    x = draw(2, 5, 8)
    keys = DropoutKeys.of_tokens(jax.random.key(0), tokens.segments_BL, tokens.positions_BL)
    assert (block(x, tokens, keys) != block(x, tokens)).any()


def test_dropout_acts_on_the_parts_and_not_on_the_residual(make, draw, apply):
    block, tokens = make(dropout=functools.partial(Dropout, 0.999999)), Tokens.single(2, 5)
    x = draw(2, 5, 8)
    keys = DropoutKeys.of_tokens(jax.random.key(0), tokens.segments_BL, tokens.positions_BL)
    assert (apply(block, x, tokens, keys) == x).all()
    assert (apply(block, x, tokens) != x).any()


@pytest.mark.full
def test_both_parts_have_masks_of_their_own(make, draw):
    seen = []

    class Recorder(nnx.Module):
        INHERITED = ()

        def __call__(self, x, keys):
            seen.append(keys.uniform((4,)))
            return x

    tokens = Tokens.single(1, 3)
    keys = DropoutKeys.of_tokens(jax.random.key(0), tokens.segments_BL, tokens.positions_BL)
    make(dropout=Recorder)(draw(1, 3, 8), tokens, keys)
    assert len(seen) == 2
    assert (seen[0] != seen[1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_residual_keeps_its_type(kind, make, draw, apply):
    block = make(kind, dtype=jnp.bfloat16)
    assert (
        apply(block, draw(2, 5, 8).astype(jnp.bfloat16), Tokens.single(2, 5)).dtype == jnp.bfloat16
    )
    assert apply(block, draw(2, 5, 8), Tokens.single(2, 5)).dtype == jnp.float32


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_is_the_forward_pass(kind, make, draw, distance, apply):
    block, x, whole = make(kind), draw(2, 5, 8), Tokens.single(2, 5)
    decode = jax.jit(lambda block, *arguments: block.decode(*arguments))
    cache, outputs = block.init_cache(2, 5), []
    for i in range(5):
        tokens = jax.tree.map(lambda a, i=i: a[:, i : i + 1], whole)
        y, cache = decode(block, x[:, i : i + 1], tokens, cache, whole, i)
        outputs.append(y)
    assert distance(jnp.concatenate(outputs, 1), apply(block, x, whole)) < 1e-6
