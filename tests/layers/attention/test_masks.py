from fractions import Fraction

import jax.numpy as jnp

from luthier.layers import Causal, SameDocument, Tokens, Window
from luthier.layers.attention import pair_share

TOKENS = Tokens(jnp.array([[0, 1, 0, 1, 2, 0]]), jnp.array([[1, 1, 2, 2, 2, 0]]))


def rows(mask):
    return ["".join("x" if seen else "." for seen in row) for row in mask[0]]


def test_same_document():
    expected = ["xx....", "xx....", "..xxx.", "..xxx.", "..xxx.", "......"]
    assert rows(SameDocument()(TOKENS, TOKENS)) == expected


def test_causal():
    expected = ["x.....", "xx....", "..x...", "..xx..", "..xxx.", "......"]
    assert rows(Causal()(TOKENS, TOKENS)) == expected


def test_window():
    expected = ["x.....", "xx....", "..x...", "..xx..", "...xx.", "......"]
    assert rows(Window(2)(TOKENS, TOKENS)) == expected
    assert (Window(6)(TOKENS, TOKENS) == Causal()(TOKENS, TOKENS)).all()
    assert rows(Window(1)(TOKENS, TOKENS))[4] == "....x."


def test_queries_and_keys_may_differ_in_number():
    last = Tokens(jnp.array([[2]]), jnp.array([[2]]))
    assert rows(Causal()(last, TOKENS)) == ["..xxx."]
    assert rows(Window(2)(last, TOKENS)) == ["...xx."]


def test_shares_of_pairs():
    assert pair_share(SameDocument(), 8, 8) == 1
    assert pair_share(Causal(), 8, 8) == Fraction(1, 2)
    assert pair_share(Window(2), 8, 8) == Fraction(8 * 2 - 2, 64)
    assert pair_share(Window(8), 8, 8) == pair_share(Window(9), 8, 8) == Fraction(1, 2)
    assert pair_share(Window(jnp.asarray(2)), 8, 8) == Fraction(1, 2)  # nobody knows yet
    # The last two of eight queries: the first has six keys before it, and half of itself.
    assert pair_share(Causal(), 2, 8) == Fraction(13 + 15, 2 * 16)
    assert pair_share(Window(2), 2, 8) == Fraction(2 * 2, 2 * 8)
    assert pair_share(lambda query, key: True, 8, 8) == 1
