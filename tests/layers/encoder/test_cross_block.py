import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.layers import (
    Attention,
    CrossAttention,
    Dropout,
    DropoutKeys,
    Encoded,
    Linear,
    Mlp,
    Normal,
    PreNormCrossBlock,
    RMSNorm,
    Tokens,
)

DIM = 8


@pytest.fixture(scope="module")
def block():
    linear = functools.partial(Linear, bias=Normal(0.3))
    parts = {"projection": linear, "output": linear}
    return PreNormCrossBlock(
        functools.partial(Attention, 2, **parts),
        functools.partial(CrossAttention, 2, **parts),
        functools.partial(Mlp, 12),
        RMSNorm,
        functools.partial(Dropout, 0.5),
        dim=DIM,
        rngs=nnx.Rngs(0),
    )


@jax.jit
def run(block, x, tokens, source, keys=None):
    return block(x, tokens, source, keys)


@pytest.mark.full
def test_the_three_parts_in_turn(block, draw, distance):
    x, tokens = draw(2, 5, DIM), Tokens.single(2, 5)
    source = Encoded(draw(2, 3, DIM), Tokens.single(2, 3))
    expected = x + block.attention(block.attention_norm(x), tokens)
    memory = block.cross_attention.remember(source.states_BSD)
    normed = block.cross_norm(expected)
    expected = expected + block.cross_attention(normed, tokens, memory, source.tokens)
    expected = expected + block.mlp(block.mlp_norm(expected))
    assert distance(run(block, x, tokens, source), expected) < 1e-6


@pytest.mark.full
def test_decoding_token_by_token_is_the_same(block, draw, distance):
    x, tokens = draw(2, 5, DIM), Tokens.single(2, 5)
    source = Encoded(draw(2, 3, DIM), Tokens.single(2, 3))
    cache, found = block.init_cache(2, 5, source), []
    for i in range(5):
        one = jax.tree.map(lambda t, i=i: t[:, i : i + 1], tokens)
        places = Tokens(tokens.positions_BL, (tokens.positions_BL <= i).astype(jnp.int32))
        y, cache = block.decode(x[:, i : i + 1], one, source.tokens, cache, places, jnp.int32(i))
        found.append(y)
    assert distance(jnp.concatenate(found, 1), run(block, x, tokens, source)) < 1e-6


@pytest.mark.full
def test_every_part_has_its_own_dropout(block, draw, distance):
    x, tokens = draw(1, 2, DIM), Tokens.single(1, 2)
    source = Encoded(draw(1, 3, DIM), Tokens.single(1, 3))
    keys = DropoutKeys.of_tokens(jax.random.key(0), tokens.segments_BL, tokens.positions_BL)
    memory = block.cross_attention.remember(source.states_BSD)
    parts = [
        lambda x: block.attention(block.attention_norm(x), tokens),
        lambda x: block.cross_attention(block.cross_norm(x), tokens, memory, source.tokens),
        lambda x: block.mlp(block.mlp_norm(x)),
    ]
    expected = x
    for site, part in enumerate(parts):
        kept = keys.fold(site).uniform((DIM,)) < 0.5
        expected = expected + jnp.where(kept, 2 * part(expected), 0)
    assert distance(run(block, x, tokens, source, keys), expected) < 1e-6
    assert distance(run(block, x, tokens, source), expected) > 0.01
