import jax
import jax.numpy as jnp
import pytest

from luthier.layers import Causal, Tokens
from luthier.layers.attention import blocks


@pytest.fixture
def sides(draw):
    """Return queries and keys of one row of 8 tokens, 2 groups of 2 heads."""
    tokens = Tokens.single(1, 8)
    queries = blocks.Queries(draw(1, 2, 2, 8, 4), tokens, None)
    return queries, blocks.Keys(draw(1, 2, 8, 4), draw(1, 2, 8, 4), tokens)


SETTINGS = blocks.ScoreSettings(jnp.float32(0.5), jnp.float32(0.9), None)


def look(queries, keys, cuts):
    """Return the values and log weights after the keys' pieces, in the order of the cuts."""
    seen = blocks.nothing_seen(queries.query_BGRLK, jnp.float32)
    for start, stop in cuts:
        piece = keys.piece(start, stop)
        block = blocks.ScoreBlock(queries, piece, Causal()(queries.tokens, piece.tokens))
        seen = blocks.see(seen, block, SETTINGS, None, None)
    return blocks.finish(seen)


def whole(query_BGRLK, key_BGSK, value_BGSK):
    scores = 0.5 * jnp.einsum("BGRLK,BGSK->BGRLS", query_BGRLK, key_BGSK)
    scores = jnp.where(jnp.tri(8) > 0, 0.9 * jnp.tanh(scores / 0.9), -jnp.inf)
    return jnp.einsum("BGRLS,BGSK->BGRLK", jax.nn.softmax(scores), value_BGSK), scores


@pytest.mark.parametrize("cuts", [[(0, 8)], [(0, 3), (3, 8)], [(5, 8), (0, 5)]])
def test_the_order_in_which_keys_are_seen_does_not_matter(sides, distance, cuts):
    queries, keys = sides
    context, log_weight = jax.jit(lambda *sides: look(*sides, cuts))(queries, keys)
    expected, scores = whole(queries.query_BGRLK, keys.key_BGSK, keys.value_BGSK)
    assert distance(context, expected) < 1e-6
    assert distance(log_weight, jax.nn.logsumexp(scores, -1)) < 1e-6


def test_the_cotangents_of_blocks_add_up(sides, distance, draw):
    change = draw(1, 2, 2, 8, 4)
    found = jax.jit(add_up)(*sides, change)
    queries, keys = sides
    arguments = queries.query_BGRLK, keys.key_BGSK, keys.value_BGSK
    expected = jax.jit(lambda *a: jax.vjp(lambda *a: whole(*a)[0], *a)[1](change))(*arguments)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-6


def add_up(queries, keys, change):
    """Return the cotangents of queries, keys and values, of two blocks of keys."""
    context, log_weight = look(queries, keys, [(0, 8)])
    flow = blocks.Flow(change, (change * context).sum(-1), log_weight)
    total, of_keys = jnp.zeros_like(change), []
    for cut in ((0, 3), (3, 8)):
        piece = keys.piece(*cut)
        block = blocks.ScoreBlock(queries, piece, Causal()(queries.tokens, piece.tokens))
        of_query, of_pair, of_bias = blocks.see_backward(flow, block, SETTINGS, None, None)
        assert of_bias is None
        total, of_keys = total + of_query, [*of_keys, of_pair]
    return total, *(jnp.concatenate(x, 2) for x in zip(*of_keys, strict=True))


def test_queries_that_see_nothing_are_zero(sides):
    queries, keys = sides
    seen = blocks.nothing_seen(queries.query_BGRLK, jnp.float32)
    nothing = blocks.ScoreBlock(queries, keys, jnp.zeros((1, 8, 8), bool))
    context, log_weight = blocks.finish(blocks.see(seen, nothing, SETTINGS, None, None))
    assert not context.any()
    assert not log_weight.any()


def test_pieces_join_to_the_whole(sides):
    queries, _ = sides
    seen = blocks.nothing_seen(queries.query_BGRLK, jnp.float32)
    joined = blocks.join([seen.piece(0, 3), seen.piece(3, 8)])
    assert all((a == b).all() for a, b in zip(joined, seen, strict=True))
