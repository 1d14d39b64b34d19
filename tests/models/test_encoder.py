import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier import graph
from luthier.errors import BadInput
from luthier.layers import DropoutKeys, FullRemat, MeanOfTokens, Shared, Unrolled
from luthier.recipes import encoders

VOCAB, DIM, LENGTH = 23, 16, 16
SIZES = {"vocab_size": VOCAB, "dim": DIM, "num_layers": 2, "num_heads": 4, "hidden_dim": 24}


@functools.cache
def make(kind="bert", stack=None, dtype=jnp.float32):
    more = {"embed_dim": 8} if kind == "albert" else {}
    recipe = getattr(encoders, kind)(**SIZES, **more, max_length=LENGTH, dropout=0.5)
    if stack is not None:
        recipe.stack = stack
    template = functools.partial(graph.build(recipe), dtype=dtype)
    init = lambda: template(rngs=nnx.Rngs(0))
    graphdef, _ = nnx.split(nnx.eval_shape(init))
    return nnx.merge(graphdef, jax.jit(lambda: nnx.state(init()))())


def pack(texts):
    """Lay texts, given as (document, tokens), into one row."""
    names = ("inputs", "positions", "segments", "documents")
    row = {name: np.zeros((1, LENGTH), np.int32) for name in names}
    start = 0
    for segment, (document, tokens) in enumerate(texts, 1):
        part = np.s_[0, start : start + len(tokens)]
        row["inputs"][part], row["positions"][part] = tokens, np.arange(len(tokens))
        row["segments"][part], row["documents"][part] = segment, document
        start += len(tokens)
    return {name: jnp.asarray(value) for name, value in row.items()}


@functools.partial(jax.jit, static_argnums=2)
def hidden(model, batch, with_dropout=False):
    keys = DropoutKeys.of_tokens(jax.random.key(3), batch["documents"], batch["positions"])
    return model.hidden(
        batch["inputs"],
        positions_BL=batch["positions"],
        segments_BL=batch["segments"],
        dropout=keys if with_dropout else None,
    )


@pytest.mark.full
@pytest.mark.parametrize("with_dropout", [False, True])
@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_packed_texts_are_as_if_alone(kind, with_dropout, ids, distance):
    model, texts = make(kind), [(5, ids(7)), (9, ids(1)), (6, ids(5))]
    packed, start = hidden(model, pack(texts), with_dropout)[0], 0
    for document, tokens in texts:
        alone = hidden(model, pack([(document, tokens)]), with_dropout)[0]
        assert distance(packed[start : start + len(tokens)], alone[: len(tokens)]) < 1e-6
        start += len(tokens)


@pytest.mark.full
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=3), st.integers(0, 15), st.integers(1, VOCAB - 1))
def test_a_token_sees_all_of_its_text_and_nothing_else(sizes, changed, by):
    texts = [(i, np.arange(n) * 5 % VOCAB) for i, n in enumerate(sizes)]
    texts = [t for i, t in enumerate(texts) if sum(sizes[: i + 1]) <= LENGTH]
    batch = pack(texts)
    inputs = batch["inputs"].at[0, changed].set((batch["inputs"][0, changed] + by) % VOCAB)
    before, after = (np.asarray(hidden(make(), b)[0]) for b in (batch, batch | {"inputs": inputs}))
    segments = np.asarray(batch["segments"][0])
    its = segments[changed]
    sees = (segments == its) if its else np.arange(LENGTH) == changed
    assert (before[~sees] == after[~sees]).all()
    assert (before[sees] != after[sees]).any(-1).all()


@pytest.mark.parametrize(
    ("kind", "stack"),
    [
        pytest.param("bert", Unrolled(FullRemat()), marks=pytest.mark.slow),
        ("albert", Shared(1, FullRemat())),
    ],
    ids=repr,
)
def test_stacks_and_remat_agree(kind, stack, by_layer, ids, distance):
    batch = pack([(5, ids(7)), (6, ids(6))])

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(graphdef, state):
        def loss(state):
            model = nnx.merge(graphdef, state)
            logits = model.logits(hidden(model, batch, True))
            return (jax.nn.logsumexp(logits, -1) - logits[..., 3]).mean()

        return by_layer(jax.grad(loss)(state))

    expected, found = (gradient(*nnx.split(make(kind, s))) for s in (None, stack))
    assert expected.keys() == found.keys()
    # The pooler is not used, and a softmax does not see the bias of its keys.
    for name in (n for n in expected if not n.startswith("pooler.") and "key.bias" not in n):
        assert distance(found[name], expected[name]) < 2e-6, name
        assert np.abs(found[name]).max() > 0, name


@pytest.mark.full
def test_dropout_differs_between_layers_that_share_parameters(ids):
    """With equal masks in both layers, swapping the layers' keys would change nothing."""
    model, batch = make("albert"), pack([(5, ids(7))])
    keys = DropoutKeys.of_tokens(jax.random.key(3), batch["documents"], batch["positions"])
    masks = [keys.fold(1).fold(layer).uniform((4,)) for layer in range(2)]
    assert (masks[0] != masks[1]).all()
    assert (hidden(model, batch, True) != hidden(model, batch)).any()


def test_names_and_axes():
    found = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(make()))
    }
    assert found["blocks.attention.query.kernel"] == ("layers", "embed", "heads", "head_dim")
    assert found["blocks.mlp.down.kernel"] == ("layers", "mlp", "embed")
    assert found["blocks.attention_norm.scale"] == ("layers", "embed")
    assert found["embedding.tokens.table"] == ("vocab", "embed")
    assert found["head.transform.kernel"] == ("embed", None)
    assert found["head.bias"] == (None,)
    shared = {".".join(path) for path, _ in nnx.to_flat_state(nnx.state(make("albert")))}
    assert "blocks.groups.attention.query.kernel" in shared


@pytest.mark.full
def test_rows_of_padding_make_no_nan(ids):
    batch = pack([])

    @jax.jit
    def gradient(model, batch):
        def loss(model):
            states = hidden(model, batch, True)
            pooled = model.pooled(states, segments_BL=batch["segments"])
            return model.logits(states).sum() + pooled.sum()

        return nnx.value_and_grad(loss)(model)

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(make(), batch)))


@pytest.mark.full
def test_bfloat16_is_computed_in_where_it_is_asked_for(ids):
    model, batch = make(dtype=jnp.bfloat16), pack([(5, ids(7))])
    states = hidden(model, batch, True)
    assert states.dtype == jnp.bfloat16
    assert jax.eval_shape(lambda x: model.logits(x), states).dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(model)))


def test_what_is_left_out_is_named_when_it_is_asked_for(ids):
    recipe = encoders.bert(**SIZES, max_length=LENGTH)
    recipe.head = recipe.pooler = None
    model = nnx.eval_shape(lambda: graph.build(recipe)(rngs=nnx.Rngs(0)))
    assert {path[0] for path, _ in nnx.to_flat_state(nnx.state(model))} == {"blocks", "embedding"}
    with pytest.raises(BadInput, match="has no head"):
        model.logits(jnp.zeros((1, 2, DIM)))
    with pytest.raises(BadInput, match="has no pooler"):
        model.pooled(jnp.zeros((1, 2, DIM)))


def test_another_pooler_sees_which_tokens_are_padding(ids, distance):
    model, batch = nnx.clone(make()), pack([(5, ids(7))])
    model.pooler = MeanOfTokens()
    states = hidden(model, batch)
    found = jax.jit(lambda model: model.pooled(states, segments_BL=batch["segments"]))(model)
    assert distance(found[0], np.asarray(states[0, :7]).mean(0)) < 1e-6


def test_rows_longer_than_the_positions_are_refused():
    with pytest.raises(BadInput, match="only 16 learned positions"):
        make().hidden(jnp.zeros((1, 17), jnp.int32))


def test_a_call_is_the_logits_of_the_hidden_states():
    recipe = encoders.bert(**SIZES, max_length=LENGTH)
    model = nnx.eval_shape(lambda: graph.build(recipe)(rngs=nnx.Rngs(0)))
    inputs = jax.ShapeDtypeStruct((2, 3), jnp.int32)
    logits = nnx.eval_shape(lambda model, x: model.logits(model.hidden(x)), model, inputs)
    called = nnx.eval_shape(lambda model, x: model(x), model, inputs)
    assert (called.shape, called.dtype) == (logits.shape, logits.dtype)
    assert called.shape[:2] == (2, 3)
