import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    AllToAllAttention,
    BlockwiseAttention,
    CudnnAttention,
    EinsumAttention,
    FusedAttention,
    RelativeBias,
    SameDocument,
    SplashAttention,
    Tokens,
    Window,
    abstract_forms,
)


@pytest.mark.parametrize(
    ("core", "sizes"),
    [
        (EinsumAttention(), {"sequence": 4}),
        (FusedAttention(Window(7)), {"sequence": 4}),
        (BlockwiseAttention(cap=0.7, block_size=8), {"sequence": 4, "data": 2}),
        (EinsumAttention(Window(5), cap=0.7), {"sequence": 2, "tensor": 2, "fsdp": 2, "data": 1}),
        pytest.param(
            EinsumAttention(SameDocument()), {"sequence": 8, "data": 1}, marks=pytest.mark.slow
        ),
    ],
)
def test_packed_rows_are_attended_to_as_by_the_core_alone(
    everything, on_mesh, assert_near, core, sizes
):
    bias = RelativeBias(8, rngs=nnx.Rngs(0))
    expected = everything(core, bias)
    with on_mesh(**sizes):
        found = everything(AllToAllAttention(core), bias)
    assert_near(found, expected)


@pytest.mark.full
def test_dropout_belongs_to_tokens(everything, on_mesh, assert_near, keys):
    core = EinsumAttention(dropout=0.3)
    expected = everything(core, dropout=keys)
    with on_mesh(sequence=4):
        found = everything(AllToAllAttention(core), dropout=keys)
    assert_near(found, expected)


@pytest.mark.parametrize("sizes", [{"sequence": 4}, {"sequence": 2, "tensor": 2}])
@pytest.mark.parametrize("inner", [EinsumAttention(), BlockwiseAttention(block_size=8)], ids=repr)
def test_rows_are_exchanged_for_heads_and_never_gathered(heads, tokens, on_mesh, sizes, inner):
    with on_mesh(**sizes):
        core = AllToAllAttention(inner)
        text = jax.jit(lambda *a: core(*a, tokens, tokens)).lower(*heads).compile().as_text()
    found = re.findall(r"= .*? (all-gather|all-to-all|collective-permute|all-reduce)\(", text)
    assert set(found) == {"all-to-all"}
    assert len(found) == 4


@pytest.mark.parametrize("sizes", [{"sequence": 4}, {"sequence": 2, "tensor": 2}])
@pytest.mark.parametrize(
    "inner", [BlockwiseAttention(block_size=8), SplashAttention(), CudnnAttention()], ids=repr
)
def test_nor_are_those_of_gradients_in_a_stack(draw, on_mesh, sizes, inner):
    """Gradients of blocks, and of the abstract form of a kernel, keep the split of the heads."""
    tokens, heads = Tokens.single(2, 256), [draw(2, 256, 8, 8) for _ in range(3)]
    if isinstance(inner, CudnnAttention):
        heads = [x.astype(jnp.bfloat16) for x in heads]
    core = AllToAllAttention(inner)

    def loss(query, key, value):
        layer = lambda x, _: (jnp.sin(core(x, key, value, tokens, tokens)), None)
        return (jax.lax.scan(layer, query, None, 3)[0] ** 2).sum()

    with on_mesh(**sizes), abstract_forms():
        text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*heads).compile().as_text()
    collective = r"= .*? (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)\("
    assert set(re.findall(collective, text)) == {"all-to-all"}


def test_heads_that_the_devices_do_not_divide_are_refused(on_mesh, draw):
    tokens = Tokens.single(1, 16)
    seven = [draw(1, 16, 7, 8)] * 3
    with on_mesh(sequence=4), pytest.raises(BadInput) as caught:
        AllToAllAttention()(*seven, tokens, tokens)
    assert str(caught.value) == (
        "AllToAllAttention: 7 heads cannot be exchanged over sequence=4; "
        "make num_heads a multiple of 4, or use RingAttention"
    )
    four = [draw(1, 16, 4, 8)] * 3
    with on_mesh(sequence=4, tensor=2), pytest.raises(BadInput) as caught:
        AllToAllAttention()(*four, tokens, tokens)
    assert str(caught.value) == (
        "AllToAllAttention: 4 heads cannot be exchanged over tensor=2 x sequence=4 = 8 devices; "
        "make num_heads a multiple of 8, or use RingAttention"
    )


def test_new_tokens_of_a_decoder_are_not_exchanged(on_mesh, draw, distance):
    cached = Tokens.single(1, 32)
    new = Tokens(jnp.full((1, 1), 20), jnp.ones((1, 1), jnp.int32))
    query, key, value = draw(1, 1, 2, 8), draw(1, 32, 2, 8), draw(1, 32, 2, 8)
    expected = EinsumAttention()(query, key, value, new, cached)
    with on_mesh(sequence=4):
        found = jax.jit(AllToAllAttention())(query, key, value, new, cached)
    assert distance(found, expected) < 1e-6


def test_without_a_mesh_it_is_its_core(heads, tokens):
    core = EinsumAttention(Window(3))
    found = AllToAllAttention(core)(*heads, tokens, tokens)
    assert (found == core(*heads, tokens, tokens)).all()
