import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    Alibi,
    Causal,
    Contiguous,
    EinsumAttention,
    RelativeBias,
    RingAttention,
    SameDocument,
    Tokens,
    Window,
    Zigzag,
)
from luthier.parallel import (
    Mesh,
    Rules,
    activation_rules,
    constrain,
    current_layout,
    make_mesh,
)

MASKS = [
    (Causal(), Zigzag()),
    (Causal(), Contiguous()),
    (Window(5), Contiguous()),
    pytest.param(Window(9), Contiguous(), marks=pytest.mark.slow),
    pytest.param(Window(9), Zigzag(), marks=pytest.mark.slow),
    (SameDocument(), Contiguous()),
]


@pytest.mark.parametrize(("mask", "order"), MASKS)
def test_packed_rows_are_attended_to_as_by_the_plain_core(
    everything, on_mesh, assert_near, mask, order
):
    expected = everything(EinsumAttention(mask))
    with on_mesh(sequence=4):
        found = everything(RingAttention(mask, order=order, block_size=3))
    assert_near(found, expected)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"sequence": 8, "data": 1}, marks=pytest.mark.slow),
        {"sequence": 2, "tensor": 2, "fsdp": 2, "data": 1},
        pytest.param({"sequence": 2, "data": 1, "stage": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_scale_cap_and_a_learned_bias_on_other_meshes(everything, on_mesh, assert_near, sizes):
    bias = RelativeBias(8, rngs=nnx.Rngs(0))
    settings = {"scale": 0.5, "cap": 0.7}
    expected = everything(EinsumAttention(**settings), bias)
    with on_mesh(**sizes):
        found = everything(RingAttention(**settings), bias)
    assert_near(found, expected)
    assert jnp.abs(found[-1]).sum() > 1


@pytest.mark.full
def test_dropout_belongs_to_tokens(everything, on_mesh, assert_near, keys):
    expected = everything(EinsumAttention(dropout=0.3), dropout=keys)
    with on_mesh(sequence=4):
        found = everything(RingAttention(dropout=0.3), dropout=keys)
    assert_near(found, expected)


@pytest.mark.slow
def test_in_double_it_is_the_plain_core_to_thirteen_digits(everything, on_mesh, assert_near, heads):
    jax.config.update("jax_enable_x64", True)
    try:
        arguments = tuple(x.astype(jnp.float64) for x in heads)
        expected = everything(EinsumAttention(cap=0.7), Alibi(8), arguments=arguments)
        with on_mesh(sequence=4):
            found = everything(RingAttention(cap=0.7), Alibi(8), arguments=arguments)
        assert found[0].dtype == jnp.float64
        assert_near(found, expected, 1e-13)
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.full
def test_bfloat16_keeps_its_type_and_sums_in_float32(everything, on_mesh, assert_near, heads):
    arguments = tuple(x.astype(jnp.bfloat16) for x in heads)
    expected = everything(EinsumAttention(), arguments=tuple(map(jnp.float32, arguments)))
    with on_mesh(sequence=4):
        found = everything(RingAttention(), arguments=arguments)
    assert {x.dtype for x in found} == {jnp.dtype(jnp.bfloat16)}
    assert_near([x.astype(jnp.float32) for x in found], expected, 0.01)


def collectives(core, heads, tokens, on_mesh):
    """Return the names of collectives of the compiled forward pass."""
    with on_mesh(sequence=4):
        lowered = jax.jit(lambda *a: core(*a, tokens, tokens)).lower(*heads)
        text = lowered.compile().as_text()
    return re.findall(r"= .*? (all-gather|all-to-all|collective-permute|all-reduce)\(", text)


def test_keys_go_round_and_are_never_gathered(heads, tokens, on_mesh):
    assert set(collectives(RingAttention(), heads, tokens, on_mesh)) == {"collective-permute"}


def test_rows_that_are_split_decide_alone_which_blocks_they_skip(heads, tokens, on_mesh):
    """No block of a loop is an all-reduce of the condition by which it is skipped."""
    axes = ("batch", "length", "heads", None)

    def loss(arrays):
        query, key, value = (constrain(x, axes) for x in arrays)
        context = RingAttention(block_size=8)(query, key, value, tokens, tokens)
        return constrain(context, axes).sum()

    with on_mesh(sequence=2, fsdp=2, data=1, tensor=2):
        text = jax.jit(jax.grad(loss)).lower(heads).compile().as_text()
    assert "all-reduce" not in text
    assert "conditional(" in text


def test_blocks_without_a_visible_key_are_not_computed(on_mesh, draw):
    # NaN in keys that no query of another place may see would spread if they were looked at.
    tokens = Tokens(jnp.arange(32)[None], jnp.ones((1, 32), jnp.int32))
    query, key, value = draw(1, 32, 2, 8), draw(1, 32, 2, 8), draw(1, 32, 2, 8)
    value = value.at[:, 24:].set(jnp.nan)
    with on_mesh(sequence=4):
        ring = jax.jit(RingAttention(order=Contiguous()))
        context = ring(query, key, value, tokens, tokens)
    assert jnp.isfinite(context[:, :24]).all()
    assert jnp.isnan(context[:, 24:]).all()


def test_new_tokens_of_a_decoder_see_the_whole_cache(on_mesh, draw, distance):
    cached = Tokens.single(1, 32)
    new = Tokens(jnp.full((1, 1), 20), jnp.ones((1, 1), jnp.int32))
    query, key, value = draw(1, 1, 2, 8), draw(1, 32, 2, 8), draw(1, 32, 2, 8)
    expected = EinsumAttention()(query, key, value, new, cached)
    with on_mesh(sequence=4):
        found = jax.jit(RingAttention())(query, key, value, new, cached)
    assert distance(found, expected) < 1e-6


def test_without_a_mesh_it_is_the_plain_core(heads, tokens, distance):
    assert (
        distance(RingAttention()(*heads, tokens, tokens), EinsumAttention()(*heads, tokens, tokens))
        == 0
    )


def test_rows_that_cannot_be_cut_are_refused(on_mesh, draw):
    tokens = Tokens.single(1, 12)
    arguments = draw(1, 12, 2, 8), draw(1, 12, 2, 8), draw(1, 12, 2, 8)
    with on_mesh(sequence=4), pytest.raises(BadInput) as caught:
        RingAttention()(*arguments, tokens, tokens)
    assert str(caught.value) == (
        "Zigzag: rows of 12 tokens cannot be cut into 8 equal pieces, 2 for each place on "
        "sequence; use rows of a multiple of 8 tokens, or order=Contiguous()"
    )


def test_a_bias_that_is_made_for_whole_rows_is_refused(on_mesh, heads, tokens):
    class Whole:
        def __call__(self, query, key):
            return jnp.zeros((2, 8, 32, 32))

    with on_mesh(sequence=4), pytest.raises(BadInput) as caught:
        RingAttention()(*heads, tokens, tokens, bias=Whole())
    assert str(caught.value) == (
        "RingAttention cannot use Whole, made for whole rows; "
        "use AllToAllAttention, or a bias that is made of positions, such as Alibi"
    )


def test_a_ring_within_a_pipeline_is_refused(on_mesh, heads, tokens):
    def stage(x):
        return RingAttention()(*heads, tokens, tokens)

    with on_mesh(stage=2, sequence=2):
        mapped = current_layout().shard_map(stage, ("stage",), jax.P(), jax.P())
        with pytest.raises(BadInput) as caught:
            jax.eval_shape(mapped, jnp.zeros(()))
    assert str(caught.value) == (
        "RingAttention cannot run inside of a pipeline; use all_to_all or sequence with pipelines"
    )


def test_rows_may_be_split_over_an_axis_that_splits_the_length_too(heads, tokens, distance):
    rules, mesh = Rules(), make_mesh(Mesh(fsdp=2).sizes(8), jax.devices())
    rules.activations["length"] = ("fsdp",)
    with activation_rules(mesh, rules):
        found = jax.jit(lambda *arrays: RingAttention()(*arrays, tokens, tokens))(*heads)
    assert distance(found, EinsumAttention()(*heads, tokens, tokens)) < 1e-6


def test_a_place_never_has_the_scores_of_all_its_pairs(draw, pack, on_mesh):
    tokens = pack([[100, 412], [512]], 512)
    arrays = draw(2, 512, 2, 8), draw(2, 512, 2, 8), draw(2, 512, 2, 8)

    def text(size):
        core = RingAttention(block_size=size)
        loss = lambda *x: core(*x, tokens, tokens).sum()
        with on_mesh(sequence=4):
            return str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*arrays))

    assert "64,64]" in text(64)  # of the two pieces that each place has
    assert "64,64]" not in text(16)
