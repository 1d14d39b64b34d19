import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.errors import BadInput
from luthier.layers import (
    Attention,
    DropoutKeys,
    Embedding,
    FullRemat,
    FusedAttention,
    LayerNorm,
    LearnedPositions,
    Mlp,
    PreNormBlock,
    SaveNamed,
    SaveProjections,
    Scanned,
    Unrolled,
)
from luthier.models import Decoder

VOCAB = 23
VARIANTS = [
    (Unrolled(), False),
    (Scanned(SaveProjections()), False),
    (Unrolled(FullRemat()), True),
    (Scanned(FullRemat()), True),
    (Scanned(SaveNamed(("query", "attention_context", "mlp_up")), unroll=2), True),
]


def pack(documents, length):
    """Lay documents, given as (id, tokens), into one row."""
    names = ("inputs", "positions", "segments", "documents")
    row = {name: np.zeros((1, length), np.int32) for name in names}
    start = 0
    for segment, (document, tokens) in enumerate(documents, 1):
        part = np.s_[0, start : start + len(tokens)]
        row["inputs"][part] = tokens
        row["positions"][part] = np.arange(len(tokens))
        row["segments"][part] = segment
        row["documents"][part] = document
        start += len(tokens)
    return {name: jnp.asarray(value) for name, value in row.items()}


@jax.jit
def forward(model, inputs):
    return model(inputs)


@functools.partial(jax.jit, static_argnums=3)
def hidden(model, batch, key, with_dropout):
    keys = DropoutKeys.of_tokens(key, batch["documents"], batch["positions"])
    return model.hidden(
        batch["inputs"],
        positions_BL=batch["positions"],
        segments_BL=batch["segments"],
        dropout=keys if with_dropout else None,
    )


@functools.partial(jax.jit, static_argnums=(0, 4))
def gradient(graphdef, state, batch, key, with_dropout):
    def loss(state):
        model = nnx.merge(graphdef, state)
        logits = model.logits(hidden(model, batch, key, with_dropout))
        return (jax.nn.logsumexp(logits, -1) - logits[..., 3]).sum()

    return jax.value_and_grad(loss)(state)


@pytest.fixture
def batch(ids):
    rows = [pack([(5, ids(7)), (6, ids(6))], 16), pack([(7, ids(16))], 16)]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)


@pytest.mark.full
def test_names_axes_and_number_of_parameters(make_decoder):
    model = make_decoder()
    found = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    assert found["blocks.attention.query.kernel"] == ("layers", "embed", "heads", "head_dim")
    assert found["blocks.mlp.down.kernel"] == ("layers", "mlp", "embed")
    assert found["blocks.attention_norm.scale"] == ("layers", "embed")
    assert found["embedding.table"] == ("vocab", "embed")
    assert found["norm.scale"] == ("embed",)
    assert found["unembedding.kernel"] == ("embed", "vocab")
    assert len(found) == len(jax.tree.leaves(nnx.state(model))) == 12


@pytest.mark.full
def test_scanned_and_unrolled_parameters_are_bit_identical(make_decoder, by_layer):
    scanned, unrolled = (by_layer(nnx.state(make_decoder(s))) for s in (Scanned(), Unrolled()))
    assert scanned.keys() == unrolled.keys()
    for name, value in scanned.items():
        assert np.asarray(value).tobytes() == np.asarray(unrolled[name]).tobytes(), name


@pytest.mark.full
@pytest.mark.parametrize(("stack", "with_dropout"), VARIANTS, ids=repr)
def test_stacks_and_remat_agree(stack, with_dropout, make_decoder, by_layer, batch, distance):
    key = jax.random.key(3)
    plain = gradient(*nnx.split(make_decoder()), batch, key, with_dropout)
    other = gradient(*nnx.split(make_decoder(stack)), batch, key, with_dropout)
    assert distance(other[0], plain[0]) < 1e-6
    expected, found = by_layer(plain[1]), by_layer(other[1])
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert distance(found[name], value) < 1e-6, name


@pytest.mark.full
def test_dropout_changes_the_result(make_decoder, ids):
    model, key = make_decoder(), jax.random.key(3)
    batch = pack([(5, ids(7))], 16)
    assert (hidden(model, batch, key, True) != hidden(model, batch, key, False)).any()


@pytest.mark.parametrize(
    ("core", "with_dropout"), [(None, False), (None, True), (FusedAttention(), False)], ids=repr
)
def test_packed_documents_are_as_if_alone(core, with_dropout, make_decoder, ids, distance):
    model, key = make_decoder(core=core), jax.random.key(3)
    documents = [(5, ids(7)), (9, ids(1)), (6, ids(5))]
    packed = hidden(model, pack(documents, 16), key, with_dropout)[0]
    start = 0
    for document, tokens in documents:
        alone = hidden(model, pack([(document, tokens)], 16), key, with_dropout)[0]
        assert distance(packed[start : start + len(tokens)], alone[: len(tokens)]) < 1e-6
        start += len(tokens)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=3), st.integers(0, 15), st.integers(1, VOCAB - 1))
def test_a_token_sees_only_the_past_of_its_document(make_decoder, sizes, changed, by):
    documents = [(i, np.arange(n) * 5 % VOCAB) for i, n in enumerate(sizes)]
    documents = [d for i, d in enumerate(documents) if sum(sizes[: i + 1]) <= 16]
    batch = pack(documents, 16)
    inputs = batch["inputs"].at[0, changed].set((batch["inputs"][0, changed] + by) % VOCAB)
    model, key = make_decoder(), jax.random.key(0)
    before = np.asarray(hidden(model, batch, key, False)[0])
    after = np.asarray(hidden(model, batch | {"inputs": inputs}, key, False)[0])
    segments = np.asarray(batch["segments"][0])
    may_change = (segments == segments[changed]) & (segments > 0) & (np.arange(16) >= changed)
    may_change[changed] = True
    assert (before[~may_change] == after[~may_change]).all()
    assert (before[changed] != after[changed]).any()


@pytest.mark.full
@pytest.mark.parametrize(
    ("stack", "core"), [(Scanned(), None), (Unrolled(), FusedAttention())], ids=repr
)
def test_decoding_is_the_forward_pass(stack, core, make_decoder, ids, distance):
    model, inputs = make_decoder(stack, core=core), ids(2, 9)
    logits = forward(model, inputs)
    decode = jax.jit(lambda model, tokens, cache: model.decode(tokens, cache))
    cache, start = model.init_cache(2, 12), 0
    for size in (4, 1, 1, 1, 1, 1):
        after, cache = decode(model, inputs[:, start : start + size], cache)
        start += size
        assert after.shape == (2, VOCAB)
        assert distance(after, logits[:, start - 1]) < 1e-6


@pytest.mark.full
def test_the_cache_knows_learned_positions(ids, distance):
    block = functools.partial(
        PreNormBlock, functools.partial(Attention, 2), functools.partial(Mlp, 16), LayerNorm
    )
    embedding = functools.partial(Embedding, position=functools.partial(LearnedPositions, 6))
    model = Decoder(VOCAB, 8, 2, block, LayerNorm, embedding, rngs=nnx.Rngs(0))
    inputs, cache = ids(1, 6), model.init_cache(1, 6)
    decode = jax.jit(lambda model, tokens, cache: model.decode(tokens, cache))
    for i in range(6):
        after, cache = decode(model, inputs[:, i : i + 1], cache)
    assert distance(after, forward(model, inputs)[:, -1]) < 1e-6
    for use in (lambda: model.init_cache(1, 7), lambda: model(ids(1, 7))):
        with pytest.raises(BadInput, match="rows of 7 tokens, but only 6 learned positions"):
            use()


def test_low_precision_ends_in_float32_logits(make_decoder, ids):
    model = make_decoder(dtype=jnp.bfloat16)
    assert model.blocks.mlp.up.kernel.dtype == jnp.float32
    assert jax.eval_shape(model.hidden, ids(1, 4)).dtype == jnp.bfloat16
    assert jax.eval_shape(model, ids(1, 4)).dtype == jnp.float32
    logits, _ = jax.eval_shape(model.decode, ids(1, 1), model.init_cache(1, 4))
    assert logits.dtype == jnp.float32


def test_abstract_models_hold_no_arrays(make_decoder):
    abstract = nnx.eval_shape(lambda: nnx.merge(*nnx.split(make_decoder(num_layers=2))))
    leaves = jax.tree.leaves(nnx.state(abstract))
    assert leaves
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


@pytest.mark.full
def test_models_can_be_packed_by_vmap(make_decoder, ids, distance):
    """Many small models in one program, as lanes of a sweep."""
    model, inputs = make_decoder(), ids(1, 6)
    graphdef, state = nnx.split(model)
    other = jax.tree.map(lambda x: 1.1 * x, state)
    both = jax.tree.map(lambda *x: jnp.stack(x), state, other)
    lanes = jax.jit(jax.vmap(lambda state: nnx.merge(graphdef, state)(inputs)))(both)
    for lane, one in zip(lanes, (state, other), strict=True):
        assert distance(lane, forward(nnx.merge(graphdef, one), inputs)) < 1e-6
