import jax.numpy as jnp

from luthier.layers import Causal, SameDocument, Tokens

TOKENS = Tokens(jnp.array([[0, 1, 0, 1, 2, 0]]), jnp.array([[1, 1, 2, 2, 2, 0]]))


def rows(mask):
    return ["".join("x" if seen else "." for seen in row) for row in mask[0]]


def test_same_document():
    expected = ["xx....", "xx....", "..xxx.", "..xxx.", "..xxx.", "......"]
    assert rows(SameDocument()(TOKENS, TOKENS)) == expected


def test_causal():
    expected = ["x.....", "xx....", "..x...", "..xx..", "..xxx.", "......"]
    assert rows(Causal()(TOKENS, TOKENS)) == expected


def test_queries_and_keys_may_differ_in_number():
    last = Tokens(jnp.array([[2]]), jnp.array([[2]]))
    assert rows(Causal()(last, TOKENS)) == ["..xxx."]
