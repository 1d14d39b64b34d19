import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.layers import Attention, Dropout, DropoutKeys, Mlp, PreNormBlock, RMSNorm, Tokens


@pytest.fixture
def make():
    def make(**settings):
        return PreNormBlock(
            attention=functools.partial(Attention, 2),
            mlp=functools.partial(Mlp, 16),
            norm=RMSNorm,
            **settings,
            dim=8,
            rngs=nnx.Rngs(0),
        )

    return make


def test_a_block_is_its_formula(make, draw, distance, apply):
    block, tokens = make(), Tokens.single(2, 5)
    x = draw(2, 5, 8)

    @jax.jit
    def plain(block, x):
        y = x + block.attention(block.attention_norm(x), tokens)
        return y + block.mlp(block.mlp_norm(y))

    assert distance(apply(block, x, tokens), plain(block, x)) < 1e-6


def test_dropout_acts_on_the_parts_and_not_on_the_residual(make, draw, apply):
    block, tokens = make(dropout=functools.partial(Dropout, 0.999999)), Tokens.single(2, 5)
    x = draw(2, 5, 8)
    keys = DropoutKeys.of_tokens(jax.random.key(0), tokens.segments_BL, tokens.positions_BL)
    assert (apply(block, x, tokens, keys) == x).all()
    assert (apply(block, x, tokens) != x).any()


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


def test_the_residual_keeps_its_type(make, draw, apply):
    block = make(dtype=jnp.bfloat16)
    assert (
        apply(block, draw(2, 5, 8).astype(jnp.bfloat16), Tokens.single(2, 5)).dtype == jnp.bfloat16
    )
    assert apply(block, draw(2, 5, 8), Tokens.single(2, 5)).dtype == jnp.float32


def test_decoding_is_the_forward_pass(make, draw, distance, apply):
    block, x, whole = make(), draw(2, 5, 8), Tokens.single(2, 5)
    decode = jax.jit(lambda block, *arguments: block.decode(*arguments))
    cache, outputs = block.init_cache(2, 5), []
    for i in range(5):
        tokens = jax.tree.map(lambda a, i=i: a[:, i : i + 1], whole)
        y, cache = decode(block, x[:, i : i + 1], tokens, cache, whole, i)
        outputs.append(y)
    assert distance(jnp.concatenate(outputs, 1), apply(block, x, whole)) < 1e-6
