"""Attention in blocks: against a reference in double, on meshes, and its memory and time."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    Alibi,
    BlockwiseAttention,
    Causal,
    DropoutKeys,
    EinsumAttention,
    RelativeBias,
    SameDocument,
    Tokens,
    Window,
    named_residuals,
)
from luthier.parallel import Mesh, Rules, activation_rules, current_layout, make_mesh

LENGTH = 50  # not a multiple of the blocks: 4 of them of 13 tokens, of which 2 are missing
ROWS = [[20, 1, 24], [50], [], [3, 40]]  # documents across blocks, of one token, and padding


def reference(mask, tokens, cap=None, scale=None):
    """Return attention in float64 as a function of arrays, by one softmax over all keys."""
    visible = np.asarray(mask(tokens, tokens))[:, None]

    def attend(query, key, value):
        repeats = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, repeats, 2) for x in (key, value))
        scores = jnp.einsum("BLHK,BSHK->BHLS", query, key)
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if cap is None else cap * jnp.tanh(scores / cap)
        weights = jnp.where(visible, jnp.exp(jnp.where(visible, scores, 0)), 0)
        total = weights.sum(-1, keepdims=True)
        return jnp.einsum("BHLS,BSHK->BLHK", weights / jnp.where(total > 0, total, 1), value)

    return attend


def with_gradients(attend, arrays, weights):
    """Return the result and the gradients of arrays, compiled as one program."""

    def loss(*arrays):
        context = attend(*arrays)
        return (context * weights).sum(), context

    run = jax.value_and_grad(loss, tuple(range(len(arrays))), has_aux=True)
    (_, context), gradients = jax.jit(run)(*arrays)
    return [context, *gradients]


def in_double(make, arrays, weights):
    with jax.enable_x64(True):
        double = [jnp.asarray(np.asarray(x), jnp.float64) for x in (*arrays, weights)]
        return [np.asarray(x) for x in with_gradients(make, double[:-1], double[-1])]


@pytest.fixture
def heads(draw):
    """Return queries, keys and values: 4 query heads, 2 key and value heads."""
    return [draw(len(ROWS), LENGTH, heads, 8) for heads in (4, 2, 2)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("mask", [Causal(), Window(9), SameDocument()], ids=repr)
@pytest.mark.parametrize("terms", [{}, {"cap": 0.8, "scale": 0.5}], ids=str)
def test_it_is_attention_in_double_to_five_digits(
    mask, terms, packed, heads, draw, pack, distance
):
    tokens = pack(ROWS, LENGTH) if packed else Tokens.single(len(ROWS), LENGTH)
    core, weights = BlockwiseAttention(mask, **terms, block_size=16), draw(*heads[0].shape)
    found = with_gradients(lambda *x: core(*x, tokens, tokens), heads, weights)
    expected = in_double(reference(mask, tokens, **terms), heads, weights)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_groups_of_heads(num_kv_heads, draw, pack, distance):
    arrays = [draw(len(ROWS), LENGTH, heads, 8) for heads in (4, num_kv_heads, num_kv_heads)]
    tokens, core = pack(ROWS, LENGTH), BlockwiseAttention(block_size=16)
    weights = draw(*arrays[0].shape)
    found = with_gradients(lambda *x: core(*x, tokens, tokens), arrays, weights)
    expected = in_double(reference(Causal(), tokens), arrays, weights)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5
