"""Sinks: against the form of gpt-oss, in double, in every core, on meshes and in a decoder."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    Alibi,
    AllToAllAttention,
    Attention,
    AutoAttention,
    BlockwiseAttention,
    Causal,
    Contiguous,
    CudnnAttention,
    DropoutKeys,
    EinsumAttention,
    FusedAttention,
    Normal,
    RingAttention,
    Rotary,
    SameDocument,
    SplashAttention,
    Tokens,
    Window,
    abstract_forms,
)
from luthier.layers.attention import softmax
from luthier.parallel import Mesh, Rules, activation_rules, make_mesh, stand_ins_for

LENGTH = 256
ROWS = [[100, 1, 120], [256], [], [3, 40]]  # a document of one token, and padding
MASKS = [Causal(), Window(70), SameDocument()]


def reference(core, tokens):
    """Return attention in float64 as Transformers computes it for gpt-oss.

    The sinks are one more column of the scores, which is dropped after the softmax.
    """
    visible = np.asarray(core.mask(tokens, tokens))[:, None]

    def attend(query, key, value, sinks):
        repeats = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, repeats, 2) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if core.scale is None else core.scale
        scores = scale * jnp.einsum("BLHK,BSHK->BHLS", query, key)
        cap = getattr(core, "cap", None)
        scores = scores if cap is None else cap * jnp.tanh(scores / cap)
        scores = jnp.where(visible, scores, -1e30)
        column = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
        weights = jax.nn.softmax(jnp.concatenate([scores, column], -1), -1)[..., :-1]
        return jnp.einsum("BHLS,BSHK->BLHK", weights, value)

    return attend


def with_gradients(attend, arrays, weights):
    def loss(*arrays):
        context = attend(*arrays)
        return (context * weights).sum(), context

    run = jax.value_and_grad(loss, tuple(range(len(arrays))), has_aux=True)
    (_, context), gradients = jax.jit(run)(*arrays)
    return [context, *gradients]


@pytest.fixture
def case(draw, pack):
    """Return arrays, tokens, and weights of a loss: 8 query heads, 4 key and value heads."""
    sinks = 3 * draw(8) + jnp.arange(8) - 4  # from nearly none of the weight to most of it
    heads = [draw(len(ROWS), LENGTH, heads, 16) for heads in (8, 4, 4)]
    return [*heads, sinks], pack(ROWS, LENGTH), draw(len(ROWS), LENGTH, 8, 16)


def in_double(core, case):
    arrays, tokens, weights = case
    with jax.enable_x64(True):
        double = [jnp.asarray(np.asarray(x), jnp.float64) for x in (*arrays, weights)]
        found = with_gradients(reference(core, tokens), double[:-1], double[-1])
        return [np.asarray(x) for x in found]


def by(core, case):
    arrays, tokens, weights = case

    def attend(query, key, value, sinks):
        return core(query, key, value, tokens, tokens, sinks_H=sinks)

    return with_gradients(attend, arrays, weights)


CORES = {
    "einsum": lambda mask, **terms: EinsumAttention(mask, **terms),
    "blocks": lambda mask, **terms: BlockwiseAttention(mask, **terms, block_size=48),
    "splash": lambda mask, **terms: SplashAttention(mask, **terms, block_size=128),
}


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_it_is_the_form_of_gpt_oss_in_double_to_five_digits(name, mask, case, distance):
    core = CORES[name](mask, scale=0.3, cap=2.0)
    for found, expected in zip(by(core, case), in_double(core, case), strict=True):
        assert distance(found, expected) < 1e-5


MESHES = {
    "ring": (RingAttention(block_size=24), {"sequence": 4, "data": 2}),
    "ring of windows": (
        RingAttention(Window(70), order=Contiguous()),
        {"sequence": 4, "tensor": 2},
    ),
    "all_to_all": (AllToAllAttention(), {"sequence": 2, "tensor": 2, "fsdp": 2}),
    "all_to_all blocks": (
        AllToAllAttention(BlockwiseAttention(block_size=48)),
        {"sequence": 4, "fsdp": 2},
    ),
    "all_to_all splash": (
        AllToAllAttention(SplashAttention(block_size=128)),
        {"sequence": 2, "tensor": 2, "data": 2},
    ),
    "blocks of rows and heads": (
        BlockwiseAttention(block_size=48),
        {"data": 2, "sequence": 2, "tensor": 2},
    ),
    "splash of rows and heads": (SplashAttention(block_size=128), {"fsdp": 4, "tensor": 2}),
}
OFTEN = ("ring", "all_to_all blocks", "splash of rows and heads")


NAMES = [(name, False) for name in MESHES] + [(n, True) for n in MESHES if "splash" in n]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "is_abstract"),
    [pytest.param(*n, marks=() if n[0] in OFTEN else pytest.mark.slow) for n in NAMES],
)
def test_on_a_mesh_it_is_the_same(name, is_abstract, case, distance):
    core, sizes = MESHES[name]
    expected = in_double(getattr(core, "core", core), case)
    mesh = make_mesh(Mesh(**{"data": 1, **sizes}).sizes(8), jax.devices())
    kernels = abstract_forms() if is_abstract else contextlib.nullcontext()
    with activation_rules(mesh, Rules()), kernels:
        found = by(core, case)
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


@pytest.mark.parametrize("name", ["einsum", "blocks", "splash"])
def test_in_bfloat16_the_gradient_of_sinks_is_float32(name, case, distance):
    (*heads, sinks), tokens, weights = case
    narrow = [x.astype(jnp.bfloat16) for x in heads]
    core = CORES[name](Causal())
    found = by(core, ([*narrow, sinks], tokens, weights))
    expected = in_double(core, ([x.astype(jnp.float32) for x in narrow] + [sinks], tokens, weights))
    assert [x.dtype for x in found] == [jnp.bfloat16] * 4 + [jnp.float32]
    for one, other in zip(found, expected, strict=True):
        assert distance(one.astype(jnp.float32), other) < 0.02


@pytest.mark.full
def test_with_dropout_and_a_bias_blocks_on_a_mesh_are_the_plain_core(case, distance):
    (*heads, sinks), tokens, weights = case
    keys = DropoutKeys.of_tokens(jax.random.key(3), tokens.segments_BL, tokens.positions_BL)

    def everything(core):
        def attend(query, key, value, sinks):
            return core(query, key, value, tokens, tokens, keys, Alibi(8), sinks_H=sinks)

        return with_gradients(attend, [*heads, sinks], weights)

    expected = everything(EinsumAttention(dropout=0.3))
    sizes = {"data": 2, "sequence": 2, "tensor": 2}
    with activation_rules(make_mesh(Mesh(**sizes).sizes(8), jax.devices()), Rules()):
        found = everything(BlockwiseAttention(dropout=0.3, block_size=48))
    for one, other in zip(found, expected, strict=True):
        assert distance(one, other) < 1e-5


def test_the_softmax_beside_sinks_keeps_only_its_result(draw):
    _, backward = jax.vjp(softmax, draw(3, 7), draw(3, 1))
    kept = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (3, 7)]
    assert len(kept) == 1


def test_a_very_low_sink_is_none_and_a_very_high_one_takes_everything(case):
    arrays, tokens, _ = case
    attend = jax.jit(lambda *x, **more: EinsumAttention()(*x, tokens, tokens, **more))
    without = attend(*arrays[:3])
    np.testing.assert_array_equal(attend(*arrays[:3], sinks_H=jnp.full(8, -1e4)), without)
    assert not attend(*arrays[:3], sinks_H=jnp.full(8, 1e4)).any()


def test_a_layer_with_sinks_decodes_as_it_trains(draw, distance):
    layer = Attention(
        num_heads=4,
        num_kv_heads=2,
        dim=16,
        rotary=Rotary(),
        sinks=Normal(2.0),
        rngs=nnx.Rngs(0),
    )
    assert layer.sinks[...].shape == (4,)
    x_BLD, tokens = draw(2, 6, 16), Tokens.single(2, 6)
    decode = nnx.jit(lambda layer, *arguments: layer.decode(*arguments))

    @nnx.jit
    def whole_and_gradient(layer):
        run = lambda layer: (layer(x_BLD, tokens) * x_BLD).sum()
        return layer(x_BLD, tokens), nnx.grad(run)(layer)

    whole, gradient = whole_and_gradient(layer)
    cache = layer.init_cache(2, 6)
    for place in range(6):
        one = Tokens(*(x[:, place : place + 1] for x in (tokens.positions_BL, tokens.segments_BL)))
        cached = Tokens(tokens.positions_BL, jnp.where(tokens.positions_BL <= place, 1, 0))
        found, cache = decode(layer, x_BLD[:, place : place + 1], one, cache, cached, place)
        assert distance(found, whole[:, place : place + 1]) < 1e-5
    assert jnp.abs(gradient.sinks[...]).min() > 0


@dataclasses.dataclass(frozen=True)
class OwnCore:
    def __call__(self, query, key, value, query_tokens, key_tokens, dropout=None, bias=None):
        return query


def test_a_core_that_takes_none_is_refused():
    assert Attention(num_heads=2, dim=8, core=OwnCore(), rngs=nnx.Rngs(0)).sinks is None
    with pytest.raises(BadInput) as raised:
        Attention(num_heads=2, dim=8, core=OwnCore(), sinks=Normal(1.0), rngs=nnx.Rngs(0))
    assert str(raised.value) == (
        "core: OwnCore takes no sinks; drop the sinks, or let its __call__ take the keyword sinks_H"
    )


def test_kernels_without_sinks_are_refused_and_not_chosen(case):
    (query, key, value, sinks), tokens, _ = case
    with pytest.raises(BadInput) as raised:
        FusedAttention()(query, key, value, tokens, tokens, sinks_H=sinks)
    assert str(raised.value) == (
        "FusedAttention has no sinks; use AutoAttention, or drop the sinks"
    )
    narrow = [x.astype(jnp.bfloat16) for x in (query, key, value)]
    with pytest.raises(BadInput) as raised:
        CudnnAttention()(*narrow, tokens, tokens, sinks_H=sinks)
    assert str(raised.value) == (
        "CudnnAttention has no sinks; drop the sinks, or use BlockwiseAttention"
    )
    core, shapes = AutoAttention(kernels=True), ((1, 2048, 8, 64), (1, 2048, 4, 64))
    mesh = make_mesh(Mesh().sizes(1), jax.devices()[:1])
    for platform, expected in {
        "gpu": ("BlockwiseAttention", ("many", "sinks")),
        "tpu": ("SplashAttention", ("kernel",)),
    }.items():
        with activation_rules(mesh, Rules()), stand_ins_for(platform):
            found = core.choose(*shapes, "bfloat16", has_sinks=True)
        assert (type(found.core).__name__, found.reasons) == expected
