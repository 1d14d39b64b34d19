"""Attention in blocks: against a reference in double, on meshes, and its memory and time."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.layers import (
    BlockwiseAttention,
    Causal,
    DropoutKeys,
    EinsumAttention,
    FullRemat,
    RelativeBias,
    SameDocument,
    SaveNamed,
    SaveWithin,
    Tokens,
    Window,
    named_residuals,
)
from luthier.parallel import Mesh, Rules, activation_rules, current_layout, make_mesh
from luthier.planner import flops_by_dtype, plan_here, targets
from luthier.tasks import count_flops

LENGTH = 50  # not a multiple of the blocks: 4 of them of 13 tokens, of which 2 are missing
ROWS = [[20, 1, 24], [48], [], [3, 40]]  # documents across blocks, of one token, and padding


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
def test_it_is_attention_in_double_to_five_digits(mask, terms, packed, heads, draw, pack, distance):
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


def test_in_bfloat16_products_are_of_bfloat16_and_sums_of_float32(heads, draw, pack, distance):
    tokens, core = pack(ROWS, LENGTH), BlockwiseAttention(cap=0.8, block_size=16)
    weights = draw(*heads[0].shape).astype(jnp.bfloat16)
    narrow = [x.astype(jnp.bfloat16) for x in heads]
    run = lambda *x: core(*x, tokens, tokens)
    found = with_gradients(run, narrow, weights)
    expected = in_double(reference(Causal(), tokens, cap=0.8), narrow, weights)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        assert distance(one.astype(jnp.float32), other) < 0.01
    loss = lambda *x: (run(*x) * weights).sum()
    types = flops_by_dtype(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*narrow))
    assert set(types) == {"bfloat16"}


def test_packed_trials(heads, draw, pack, assert_close):
    tokens, weights = pack(ROWS, LENGTH), draw(*heads[0].shape)

    def trial(core, scale):
        loss = lambda *x: (core(*x, tokens, tokens) * weights).sum()
        return jax.grad(loss, (0, 1, 2))(*(scale * x for x in heads))

    def trials(kind, **settings):  # of a window whose size is swept, too
        run = lambda scale, size: trial(kind(Window(size), **settings), scale)
        return jax.jit(jax.vmap(run))(jnp.asarray([0.5, 1.0]), jnp.asarray([5, 30]))

    found = trials(BlockwiseAttention, block_size=16)
    for one, other in zip(found, trials(EinsumAttention), strict=True):
        assert_close(one, other)


def compare(core, plain, heads, tokens, weights, assert_close, bias=None, dropout=None):
    """Compare two cores, forward and backward, the parameters of a bias included."""
    results = []
    for each in (core, plain):

        def loss(query, key, value, bias, each=each):
            context = each(query, key, value, tokens, tokens, dropout, bias)
            return (context * weights).sum(), context

        run = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True, allow_int=True)
        (_, context), gradients = jax.jit(run)(*heads, bias)
        results.append([context, *jax.tree.leaves(gradients)])
    for one, other in zip(*results, strict=True):
        assert_close(one, other)


@pytest.fixture
def assert_close(distance):
    def check(one, other):
        assert one.dtype == other.dtype
        assert distance(one, other) < 1e-5

    return check


def test_a_learned_bias_and_dropout_of_weights(heads, draw, pack, assert_close):
    tokens = pack(ROWS, LENGTH)
    keys = DropoutKeys.of_tokens(jax.random.key(3), tokens.segments_BL, tokens.positions_BL)
    settings = {"cap": 0.7, "dropout": 0.3}
    core, plain = BlockwiseAttention(**settings, block_size=16), EinsumAttention(**settings)
    bias, weights = RelativeBias(4, rngs=nnx.Rngs(0)), draw(*heads[0].shape)
    compare(core, plain, heads, tokens, weights, assert_close, bias, keys)


def test_one_block_is_the_plain_core(heads, pack):
    tokens = pack(ROWS, LENGTH)
    core = BlockwiseAttention(block_size=LENGTH)
    found = jax.make_jaxpr(lambda *x: core(*x, tokens, tokens))(*heads)
    assert str(found) == str(
        jax.make_jaxpr(lambda *x: EinsumAttention()(*x, tokens, tokens))(*heads)
    )


def test_blocks_without_a_visible_key_are_not_computed(draw):
    # NaN in keys that no query of a block may see would spread if they were looked at.
    tokens = Tokens.single(1, 64)
    query, key, value = draw(1, 64, 2, 8), draw(1, 64, 2, 8), draw(1, 64, 2, 8)
    value = value.at[:, 48:].set(jnp.nan)
    context = jax.jit(BlockwiseAttention(block_size=16))(query, key, value, tokens, tokens)
    assert jnp.isfinite(context[:, :48]).all()
    assert jnp.isnan(context[:, 48:]).all()


def test_new_tokens_of_a_decoder_and_numbers_that_are_traced(heads, draw, distance):
    tokens = Tokens.single(len(ROWS), LENGTH)
    new = jax.tree.map(lambda x: x[:, 40:], tokens)
    query, key, value = heads

    def attend(size, scale, cap):
        core = BlockwiseAttention(Window(size), scale, cap, block_size=16)
        return core(query[:, 40:], key, value, new, tokens)

    expected = EinsumAttention(Window(30), 0.3, 0.9)(query, key, value, tokens, tokens)[:, 40:]
    assert distance(jax.jit(attend)(30, 0.3, 0.9), expected) < 1e-5


def test_a_bias_that_is_made_for_whole_rows_is_refused(heads):
    tokens = Tokens.single(len(ROWS), LENGTH)
    with pytest.raises(BadInput) as caught:
        BlockwiseAttention(block_size=16)(*heads, tokens, tokens, bias=lambda query, key: 0)
    assert str(caught.value) == (
        "BlockwiseAttention cannot use function, made for whole rows; "
        "use EinsumAttention, or a bias that is made of positions, such as Alibi"
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"sequence": 4, "data": 2},
        pytest.param({"sequence": 2, "tensor": 2, "fsdp": 2, "data": 1}, marks=pytest.mark.full),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [None, RelativeBias(4, rngs=nnx.Rngs(0))], ids=["", "bias"])
def test_on_meshes(sizes, bias, draw, pack, assert_close):
    tokens = pack(ROWS, 48)
    heads = [draw(len(ROWS), 48, heads, 8) for heads in (4, 2, 2)]
    weights = draw(*heads[0].shape)
    with on_mesh(**sizes):
        core = BlockwiseAttention(cap=0.7, block_size=8)
        compare(core, EinsumAttention(cap=0.7), heads, tokens, weights, assert_close, bias)


def on_mesh(**sizes):
    return activation_rules(make_mesh(Mesh(**sizes).sizes(8), jax.devices()), Rules())


def count(operation, function, *arguments):
    """Return how often an operation occurs in a compiled program."""
    return jax.jit(function).lower(*arguments).compile().as_text().count(f" {operation}(")


def test_a_policy_of_remat_can_keep_the_result(heads, pack):
    tokens, core = pack(ROWS, LENGTH), BlockwiseAttention(block_size=16)

    def gradients(policy):
        layer = policy.wrap(lambda *x: core(jnp.sin(x[0]), *x[1:], tokens, tokens), scanned=False)
        return jax.grad(lambda *x: (layer(*x) ** 2).sum(), (0, 1, 2))

    # Two products forward and five backward; without the policy, the two forward ones once more.
    named = SaveNamed(["attention_residuals"])
    found = [
        count("dot", gradients(policy), *heads)
        for policy in (named, SaveWithin(2**20), FullRemat())
    ]
    assert found == [7, 7, 9]


def test_the_worth_of_keeping_the_result_is_its_products():
    core, tokens = BlockwiseAttention(block_size=16), Tokens.single(2, 32)
    arrays = [jax.ShapeDtypeStruct((2, 32, heads, 8), jnp.float32) for heads in (4, 2, 2)]
    for sizes in ({}, {"data": 2, "fsdp": 4}):
        with on_mesh(**sizes) if sizes else contextlib.nullcontext():
            jaxpr = jax.make_jaxpr(lambda *x: core(*x, tokens, tokens))(*arrays)
        (residual,) = named_residuals(jaxpr.jaxpr)
        statistics = 2 * 32 * 4 * 4
        assert residual.num_bytes == statistics * 8 + statistics
        assert residual.flops == 2 * (2 * 2 * 2 * 4 * 32 * 32 * 8)  # led to by each of the two


def test_flops_are_those_of_visible_pairs():
    core, tokens = BlockwiseAttention(block_size=16), Tokens.single(2, 32)
    arrays = [jax.ShapeDtypeStruct((2, 32, heads, 8), jnp.float32) for heads in (4, 2, 2)]
    loss = lambda *x: core(*x, tokens, tokens).sum()
    product = 2 * 2 * 4 * 32 * 32 * 8
    of_context = 2 * 2 * 32 * 4 * 8  # the product of the result with its cotangent, going backward
    for function, products, rest in ((loss, 2, 0), (jax.grad(loss, (0, 1, 2)), 7, of_context)):
        found = count_flops(jax.make_jaxpr(function)(*arrays))
        assert found.batched == products * product + rest
        assert found.hidden == products * product // 2


def test_memory_is_linear_in_the_length():
    def temporaries(core, length):
        tokens = Tokens.single(1, length)
        loss = lambda *x: core(*x, tokens, tokens).sum()
        arrays = [jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)] * 3
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    core = BlockwiseAttention()
    at_4k, at_8k = temporaries(core, 4096), temporaries(core, 8192)
    assert at_8k < 2.1 * at_4k
    assert 50 * at_8k < temporaries(EinsumAttention(), 8192)


def test_no_device_gathers_or_agrees_with_others_but_on_the_length(heads, pack):
    tokens, core = pack(ROWS, LENGTH), BlockwiseAttention(block_size=16)
    run = jax.grad(lambda *x: (core(*x, tokens, tokens) ** 2).sum(), (0, 1, 2))
    with on_mesh(data=2, fsdp=2, tensor=2):
        mesh, spec = current_layout().mesh, jax.P(("data", "fsdp"), None, "tensor")
        arrays = [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in heads]
        text = jax.jit(run).lower(*arrays).compile().as_text()
    collective = r"= .*? (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)\("
    assert not re.findall(collective, text)


def test_within_a_pipeline(draw, distance):
    tokens = Tokens.single(4, 32)
    heads = [draw(4, 32, heads, 8) for heads in (4, 2, 2)]

    def gradients(core, stages):
        def stage(*arrays):
            return core(*arrays, tokens, tokens)

        run = stage
        if stages:
            run = current_layout().shard_map(stage, ("stage",), (jax.P(),) * 3, jax.P())
        return jax.jit(jax.grad(lambda *x: (run(*x) ** 2).sum(), (0, 1, 2)))(*heads)

    expected = gradients(EinsumAttention(), stages=False)
    with on_mesh(stage=2, data=2, sequence=2):
        found = gradients(BlockwiseAttention(block_size=8), stages=True)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


@pytest.mark.full
def test_memory_of_a_scanned_stack_grows_with_the_length():
    """The masks of all tiles are not made before the loop over the layers, for all of them."""
    graph, found = graphs.resolve("configs.lm.quickstart"), []
    core = "model.block.attention.core:=luthier.layers.BlockwiseAttention(block_size=128)"
    words = [core, "model.dim=32", "evaluations={}"]
    for length in (1024, 2048):
        changed = graphs.apply(graph, [*words, f"data.length={length}"])
        report = plan_here(changed, targets.read("cpu:1"), level="compile")
        found.append(report.memory.bytes_per_device["temporaries"])
    assert found[1] < 2.2 * found[0]
