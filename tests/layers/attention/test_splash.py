"""Splash attention, interpreted on a CPU: against a reference in double, on meshes, as lowered."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import BadInput, ValidationError
from luthier.layers import (
    Alibi,
    AllToAllAttention,
    Causal,
    EinsumAttention,
    FullRemat,
    SameDocument,
    SaveNamed,
    SplashAttention,
    Tokens,
    Window,
    abstract_forms,
)
from luthier.parallel import (
    Mesh,
    Rules,
    activation_rules,
    current_layout,
    make_mesh,
    stand_ins_for,
)
from luthier.tasks import count_flops

LENGTH = 256
ROWS = [[100, 1, 120], [256]]  # a document of one token, and padding


def reference(core, tokens):
    """Return attention in float64 as a function of arrays, by one softmax over all keys."""
    visible = np.asarray(core.mask(tokens, tokens))[:, None]

    def attend(query, key, value):
        repeats = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, repeats, 2) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if core.scale is None else core.scale
        scores = scale * jnp.einsum("BLHK,BSHK->BHLS", query, key)
        scores = scores if core.cap is None else core.cap * jnp.tanh(scores / core.cap)
        weights = jnp.where(visible, jnp.exp(jnp.where(visible, scores, 0)), 0)
        total = weights.sum(-1, keepdims=True)
        return jnp.einsum("BHLS,BSHK->BLHK", weights / jnp.where(total > 0, total, 1), value)

    return attend


def with_gradients(attend, arrays, weights):
    def loss(*arrays):
        context = attend(*arrays)
        return (context * weights).sum(), context

    run = jax.value_and_grad(loss, tuple(range(len(arrays))), has_aux=True)
    (_, context), gradients = jax.jit(run)(*arrays)
    return [context, *gradients]


@pytest.fixture
def heads(draw):
    """Return queries, keys and values: 4 query heads, 2 key and value heads."""
    return [draw(len(ROWS), LENGTH, heads, 16) for heads in (4, 2, 2)]


CORES = [
    SplashAttention(block_size=128),
    SplashAttention(Window(70), scale=0.5, cap=0.8, block_size=128),
    SplashAttention(SameDocument(), cap=0.8),
]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("core", CORES, ids=repr)
def test_it_is_attention_in_double_to_five_digits(core, packed, heads, draw, pack, distance):
    tokens = pack(ROWS, LENGTH) if packed else Tokens.single(len(ROWS), LENGTH)
    weights = draw(*heads[0].shape)
    found = with_gradients(lambda *x: core(*x, tokens, tokens), heads, weights)
    with jax.enable_x64(True):
        double = [jnp.asarray(np.asarray(x), jnp.float64) for x in (*heads, weights)]
        expected = with_gradients(reference(core, tokens), double[:-1], double[-1])
        expected = [np.asarray(x) for x in expected]
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


def on_mesh(**sizes):
    return activation_rules(make_mesh(Mesh(**sizes).sizes(8), jax.devices()), Rules())


@pytest.mark.parametrize(
    ("sizes", "exchanged"),
    [
        pytest.param({"data": 2, "tensor": 4}, False, id="fewer key heads than devices"),
        pytest.param({"data": 2, "sequence": 2, "tensor": 2}, True, id="all-to-all"),
    ],
)
def test_on_meshes(sizes, exchanged, heads, draw, pack, distance):
    tokens, weights = pack(ROWS, LENGTH), draw(*heads[0].shape)
    core = SplashAttention(block_size=128)
    around = AllToAllAttention(core) if exchanged else core
    expected = with_gradients(lambda *x: EinsumAttention()(*x, tokens, tokens), heads, weights)
    with on_mesh(**sizes):
        found = with_gradients(lambda *x: around(*x, tokens, tokens), heads, weights)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


@pytest.mark.full
def test_within_a_pipeline(heads, draw, pack, distance):
    tokens, weights, core = pack(ROWS, LENGTH), draw(*heads[0].shape), SplashAttention()
    expected = with_gradients(lambda *x: EinsumAttention()(*x, tokens, tokens), heads, weights)
    with on_mesh(stage=2, data=2, tensor=2):
        stage = lambda *x: core(*x, tokens, tokens)
        run = current_layout().shard_map(stage, ("stage",), (jax.P(),) * 3, jax.P())
        found = with_gradients(run, heads, weights)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


def test_new_tokens_of_a_decoder(heads, distance):
    tokens = Tokens.single(len(ROWS), LENGTH)
    new = jax.tree.map(lambda x: x[:, 250:], tokens)
    query, key, value = heads
    found = SplashAttention()(query[:, 250:], key, value, new, tokens)
    expected = EinsumAttention()(query, key, value, tokens, tokens)[:, 250:]
    assert distance(found, expected) < 1e-5


def calls(jaxpr):
    """Yield the calls of kernels whose results are used: the others are dropped by compilers."""
    for equation in jaxpr.eqns:
        if "_splash_attention" in str(equation.params.get("name")):
            if equation.outvars:
                yield equation
            continue
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from calls(inner)


def test_a_policy_of_remat_can_keep_the_result(heads):
    tokens, core = Tokens.single(len(ROWS), LENGTH), SplashAttention()

    def num_calls(policy):
        layer = policy.wrap(lambda *x: core(*x, tokens, tokens), scanned=False)
        gradients = jax.grad(lambda *x: layer(*x).sum(), (0, 1, 2))
        return len([*calls(jax.make_jaxpr(gradients)(*heads).jaxpr)])

    # Forward, backward; without the policy, forward once more.
    assert num_calls(SaveNamed(["attention_residuals"])) == 2
    assert num_calls(FullRemat()) == 3


@pytest.mark.parametrize("mask", [Causal(), Window(100)], ids=repr)
def test_a_tpu_gets_three_kernels(mask):
    tokens, core = Tokens.single(2, 1024), SplashAttention(mask, cap=30.0)
    arrays = [jax.ShapeDtypeStruct((2, 1024, heads, 128), jnp.bfloat16) for heads in (4, 2, 2)]
    loss = lambda *x: core(*x, tokens, tokens).astype(jnp.float32).sum()
    mesh = make_mesh(Mesh().sizes(1), jax.devices()[:1])
    with activation_rules(mesh, Rules()), stand_ins_for("tpu"):
        traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    kernels = re.findall(r'kernel_name = "splash_mha_(\w+?)_', text)
    assert sorted(kernels) == ["dkv", "dq", "fwd"]
    assert "1024x1024" not in text  # no scores of all pairs


def test_the_abstract_form_is_the_same_attention_with_the_products_of_the_kernels(
    heads, draw, pack, distance
):
    tokens, core, weights = pack(ROWS, LENGTH), SplashAttention(), draw(*heads[0].shape)
    run = lambda *x: core(*x, tokens, tokens)
    with abstract_forms():
        found = with_gradients(run, heads, weights)
        text = str(jax.make_jaxpr(run)(*heads))
        flops = count_flops(jax.make_jaxpr(jax.grad(lambda *x: run(*x).sum(), (0, 1, 2)))(*heads))
    assert "256,256" not in text
    product = 2 * len(ROWS) * 4 * LENGTH * LENGTH * 16
    assert flops.batched == 9 * product
    assert flops.hidden == 9 * product // 2
    expected = with_gradients(lambda *x: EinsumAttention()(*x, tokens, tokens), heads, weights)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


def test_unsupported_inputs_are_refused(draw):
    tokens, arrays = Tokens.single(1, 100), [draw(1, 100, 2, 8)] * 3
    with pytest.raises(BadInput) as caught:
        SplashAttention()(*arrays, tokens, tokens)
    assert str(caught.value) == (
        "SplashAttention has no rows of 100 tokens; make rows a multiple of 128 tokens, or use "
        "BlockwiseAttention"
    )
    with pytest.raises(BadInput) as caught:
        SplashAttention()(*arrays, tokens, tokens, bias=Alibi(num_heads=2))
    assert str(caught.value) == (
        "SplashAttention adds no bias to scores; drop the bias, or use BlockwiseAttention"
    )
    tokens, arrays = Tokens.single(1, 128), [draw(1, 128, 2, 8)] * 3
    with on_mesh(sequence=8), pytest.raises(BadInput) as caught:
        SplashAttention()(*arrays, tokens, tokens)
    assert str(caught.value) == (
        "SplashAttention attends to whole rows only; use fiddler:all_to_all, or use "
        "BlockwiseAttention"
    )
    with pytest.raises(BadInput) as caught:
        SplashAttention(object())
    assert str(caught.value) == (
        "SplashAttention has no mask object; it has Causal, Window and SameDocument; or use "
        "BlockwiseAttention"
    )


def test_an_experiment_on_a_cpu_is_refused_at_its_node():
    core = "model.block.attention.core"
    override = f"{core}:=luthier.layers.SplashAttention()"
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [override])
    with pytest.raises(ValidationError) as caught:
        programs.make(graph, jax.devices()[:1])
    assert str(caught.value) == (
        f"{core}: cpu has no Splash attention [set by argument 1: {override}]; use "
        "BlockwiseAttention"
    )
