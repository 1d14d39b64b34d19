"""Decoders whose layers take turns, and decoders with a bias."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import (
    Alibi,
    Attention,
    Dropout,
    DropoutKeys,
    EinsumAttention,
    Embedding,
    FullRemat,
    Mlp,
    Normal,
    PastBuckets,
    PreNormBlock,
    RelativeBias,
    RMSNorm,
    Rotary,
    SandwichBlock,
    SaveNamed,
    Scanned,
    Unrolled,
    Window,
)
from luthier.models import Decoder
from tests.compiling import QUICK

VOCAB, NUM_LAYERS = 23, 5
STACKS = [
    Unrolled(),
    Unrolled(FullRemat()),
    Scanned(FullRemat()),
    Scanned(SaveNamed(("query", "mlp_up")), unroll=2),
]
BIASES = {
    "alibi": functools.partial(Alibi, 2),
    "learned": functools.partial(RelativeBias, 2, PastBuckets(8, 20), Normal(1.0)),
}


@functools.cache
def make(stack=Scanned(), bias=None, dtype=jnp.float32):
    """Make a decoder of two kinds of layers that differ in everything, caches included."""
    dropout = functools.partial(Dropout, 0.3)
    near = functools.partial(
        Attention, 2, 1, rotary=Rotary(), core=EinsumAttention(Window(3), cap=2.0, dropout=0.3)
    )
    far = functools.partial(Attention, 2, core=EinsumAttention(dropout=0.3))
    mlp = functools.partial(Mlp, 16)
    blocks = [
        functools.partial(SandwichBlock, near, mlp, RMSNorm),
        functools.partial(PreNormBlock, far, mlp, RMSNorm, dropout),
    ]
    make_it = lambda: Decoder(
        VOCAB,
        8,
        NUM_LAYERS,
        blocks,
        RMSNorm,
        functools.partial(Embedding, Normal(1.0)),
        stack=stack,
        bias=BIASES.get(bias),
        dtype=dtype,
        param_dtype=dtype,
        rngs=nnx.Rngs(0),
    )
    graphdef, _ = nnx.split(nnx.eval_shape(make_it))
    return nnx.merge(graphdef, jax.jit(lambda: nnx.state(make_it()))())


def by_layer(state):
    """Return {(layer, name): array} for every kind of stack."""
    found = {}
    for path, value in nnx.to_flat_state(state):
        if path[:2] == ("blocks", "cycle"):
            for turn, one in enumerate(value[...]):
                found[("blocks", 2 * turn + path[2], *path[3:])] = one
        elif path[:2] == ("blocks", "rest"):
            found[("blocks", 4 + path[2], *path[3:])] = value[...]
        else:
            found[path] = value[...]
    return found


# Two programs are compiled for each row, and each runs once: little is made of them.
@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def gradient(graphdef, state, inputs, key):
    keys = DropoutKeys.of_tokens(key, jnp.ones_like(inputs), jnp.arange(inputs.shape[1])[None])

    def loss(state):
        logits = nnx.merge(graphdef, state)(inputs, dropout=keys)
        return (jax.nn.logsumexp(logits, -1) - logits[..., 3]).sum()

    return jax.value_and_grad(loss)(state)


@pytest.mark.parametrize("bias", [pytest.param(None, marks=pytest.mark.slow), "learned"])
@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_stacks_remat_and_dropout_agree(stack, bias, ids, distance):
    with jax.enable_x64(True):
        inputs, key = ids(1, 12), jax.random.key(3)
        plain = gradient(*nnx.split(make(Scanned(), bias, jnp.float64)), inputs, key)
        other = gradient(*nnx.split(make(stack, bias, jnp.float64)), inputs, key)
        assert distance(other[0], plain[0]) < 1e-13
        expected, found = by_layer(plain[1]), by_layer(other[1])
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert value.dtype == jnp.float64
            assert distance(found[name], value) < 1e-13, name
            assert bool(jnp.any(value != 0)), name


@pytest.mark.full
def test_scanned_and_unrolled_parameters_are_bit_identical():
    scanned, unrolled = (by_layer(nnx.state(make(stack))) for stack in (Scanned(), Unrolled()))
    assert scanned.keys() == unrolled.keys()
    assert {path[1] for path in scanned if path[0] == "blocks"} == set(range(NUM_LAYERS))
    for name, value in scanned.items():
        assert np.asarray(value).tobytes() == np.asarray(unrolled[name]).tobytes(), name


@pytest.mark.full
@pytest.mark.parametrize("bias", [None, *BIASES])
@pytest.mark.parametrize("stack", [Scanned(), Unrolled()], ids=repr)
def test_decoding_is_the_forward_pass(stack, bias, ids, distance):
    model, inputs = make(stack, bias), ids(2, 9)
    logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
    decode = jax.jit(lambda model, tokens, cache: model.decode(tokens, cache))
    cache, start = model.init_cache(2, 12), 0
    for size in (4, 1, 1, 1, 1, 1):
        after, cache = decode(model, inputs[:, start : start + size], cache)
        start += size
        assert distance(after, logits[:, start - 1]) < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_changes_the_result(bias, ids):
    inputs = ids(1, 9)
    plain, biased = make()(inputs), make(bias=bias)(inputs)
    assert (plain[:, 0] == biased[:, 0]).all()
    assert (plain[:, 1:] != biased[:, 1:]).any()


@pytest.mark.full
@pytest.mark.parametrize("bias", [None, *BIASES])
def test_packed_documents_are_as_if_alone(bias, ids, distance):
    model, inputs, key = make(bias=bias), ids(1, 9), jax.random.key(1)
    segments = jnp.array([[1] * 4 + [2] * 5])
    positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]])

    @jax.jit
    def hidden(model, inputs, positions, segments, documents):
        keys = DropoutKeys.of_tokens(key, documents, positions)
        described = {"positions_BL": positions, "segments_BL": segments}
        return model.hidden(inputs, **described, dropout=keys)

    packed = hidden(model, inputs, positions, segments, segments + 10)
    alone = hidden(
        model, inputs[:, 4:], positions[:, 4:], jnp.ones((1, 5), jnp.int32), segments[:, 4:] + 10
    )
    assert distance(packed[:, 4:], alone) < 1e-6
