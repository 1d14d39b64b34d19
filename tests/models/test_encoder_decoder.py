import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph
from luthier.layers import DropoutKeys, FullRemat, Scanned, Unrolled
from luthier.recipes import encoders

VOCAB, SOURCE, TARGET = 23, 12, 10
SIZES = {
    "vocab_size": VOCAB,
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "head_dim": 6,
    "hidden_dim": 24,
    "num_buckets": 6,
    "max_distance": 8,
}
PAIRS = [(4, 3), (2, 5), (5, 1)]


@functools.cache
def make(kind="t5", stack=Scanned(), dtype=jnp.float32):
    recipe = getattr(encoders, kind)(**SIZES, dropout=0.5)
    recipe.encoder.stack = recipe.decoder.stack = stack
    template = functools.partial(graph.build(recipe), dtype=dtype)
    init = lambda: template(rngs=nnx.Rngs(0))
    graphdef, _ = nnx.split(nnx.eval_shape(init))
    return nnx.merge(graphdef, jax.jit(lambda: nnx.state(init()))())


def pack(pairs):
    """Lay pairs, given as (document, source, target), into one row."""
    names = ("inputs", "positions", "segments", "documents")
    sides = [{name: np.zeros((1, n), np.int32) for name in names} for n in (SOURCE, TARGET)]
    starts = [0, 0]
    for segment, (document, *texts) in enumerate(pairs, 1):
        for i, (side, tokens) in enumerate(zip(sides, texts, strict=True)):
            part = np.s_[0, starts[i] : starts[i] + len(tokens)]
            side["inputs"][part], side["positions"][part] = tokens, np.arange(len(tokens))
            side["segments"][part], side["documents"][part] = segment, document
            starts[i] += len(tokens)
    return jax.tree.map(jnp.asarray, sides)


@functools.partial(jax.jit, static_argnums=2)
def hidden(model, sides, with_dropout=False):
    described = []
    for side in sides:
        keys = DropoutKeys.of_tokens(jax.random.key(3), side["documents"], side["positions"])
        names = {"positions_BL": side["positions"], "segments_BL": side["segments"]}
        described.append(names | {"dropout": keys if with_dropout else None})
    source = model.encode(sides[0]["inputs"], **described[0])
    return model.decode_hidden(sides[1]["inputs"], source, **described[1])


@pytest.fixture
def pairs(ids):
    return [(document, ids(s), ids(t)) for document, (s, t) in enumerate(PAIRS, 5)]


@pytest.mark.full
@pytest.mark.parametrize("with_dropout", [False, True])
@pytest.mark.parametrize("kind", ["t5", "t5_gated"])
def test_packed_pairs_are_as_if_alone(kind, with_dropout, pairs, distance):
    model = make(kind)
    packed, start = hidden(model, pack(pairs), with_dropout)[0], 0
    for pair in pairs:
        length = len(pair[2])
        alone = hidden(model, pack([pair]), with_dropout)[0]
        assert distance(packed[start : start + length], alone[:length]) < 2e-6
        start += length


@pytest.mark.full
def test_a_target_sees_its_source_and_its_own_past(pairs):
    model, sides = make(), pack(pairs)
    before = np.asarray(hidden(model, sides)[0])
    sources, targets = (np.asarray(side["segments"][0]) for side in sides)
    for side, changed in [(0, 0), (0, 5), (0, SOURCE - 1), (1, 0), (1, 4), (1, TARGET - 1)]:
        other = [dict(part) for part in sides]
        token = (other[side]["inputs"][0, changed] + 1) % VOCAB
        other[side]["inputs"] = other[side]["inputs"].at[0, changed].set(token)
        after = np.asarray(hidden(model, other)[0])
        if side == 0:
            sees = (targets == sources[changed]) & (targets > 0)
        else:
            its = targets[changed]
            sees = (targets == its) & (np.arange(TARGET) >= changed) & (its > 0)
            sees[changed] = True
        assert (before[~sees] == after[~sees]).all(), (side, changed)
        assert (before[sees] != after[sees]).any(-1).all(), (side, changed)


@pytest.mark.slow
@pytest.mark.parametrize("stack", [Unrolled(FullRemat())], ids=repr)
def test_stacks_and_remat_agree(stack, pairs, distance):
    sides = pack(pairs)

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(graphdef, state):
        def loss(state):
            model = nnx.merge(graphdef, state)
            logits = model.logits(hidden(model, sides, True))
            return (jax.nn.logsumexp(logits, -1) - logits[..., 3]).mean()

        return _by_layer(jax.grad(loss)(state))

    expected, found = (gradient(*nnx.split(make(stack=s))) for s in (Scanned(), stack))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert distance(found[name], value) < 5e-6, name
        assert np.isfinite(value).all(), name
        assert np.abs(value).max() > 0, name


def _by_layer(state):
    """Return {name: array}, layers stacked, for every kind of stack."""
    flat = {path: value[...] for path, value in nnx.to_flat_state(state)}
    found = {}
    for path, value in flat.items():
        numbers = [part for part in path if isinstance(part, int)]
        name = ".".join(str(part) for part in path if not isinstance(part, int))
        found.setdefault(name, {})[tuple(numbers)] = value
    return {
        name: jnp.stack([each[k] for k in sorted(each)]) if () not in each else each[()]
        for name, each in found.items()
    }


@pytest.mark.full
def test_decoding_token_by_token_is_the_same(ids, distance):
    model, inputs, targets = make("t5_gated"), ids(2, 7), ids(2, 6)

    @jax.jit
    def step_by_step(model):
        cache = model.init_cache(model.encode(inputs), 6)
        found = []
        for part in (targets[:, :3], targets[:, 3:4], targets[:, 4:5], targets[:, 5:]):
            logits, cache = model.decode(part, cache)
            found.append(logits)
        return jnp.stack(found, axis=1)

    expected = jax.jit(lambda model: model(inputs, targets))(model)[:, 2:]
    assert distance(step_by_step(model), expected) < 2e-6


@pytest.mark.full
def test_sources_and_targets_have_masks_of_their_own(ids):
    """The same document and position stand in both texts."""
    model, keys = make(), jax.random.key(3)
    tokens = ids(1, 4)
    described = DropoutKeys.of_tokens(keys, jnp.ones((1, 4), jnp.int32), jnp.arange(4)[None])
    seen = []
    original = model.embedding.dropout

    class Spy:
        def __call__(self, x, keys):
            seen.append(keys.uniform((3,)))
            return original(x, keys)

    @jax.jit
    def spy(model):
        model.embedding.dropout = Spy()
        source = model.encode(tokens, dropout=described)
        model.decode_hidden(tokens, source, dropout=described)
        return seen

    first, second = spy(model)
    assert (first != second).all()


def test_names_and_axes():
    found = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(make()))
    }
    heads = ("layers", "embed", "heads", "head_dim")
    assert found["encoder.blocks.attention.query.kernel"] == heads
    assert found["decoder.blocks.cross_attention.query.kernel"] == heads
    assert found["decoder.bias.table"] == found["encoder.bias.table"] == (None, "heads")
    assert found["decoder.norm.scale"] == ("embed",)
    assert not [name for name in found if name.startswith("unembedding")]


@pytest.mark.full
def test_bfloat16_is_computed_in_where_it_is_asked_for(ids):
    model = make(dtype=jnp.bfloat16)
    source = jax.jit(lambda model, x: model.encode(x))(model, ids(2, 5))
    assert source.states_BSD.dtype == jnp.bfloat16
    step = lambda model, x: model.decode(x, model.init_cache(source, 4))
    logits, cache = jax.jit(step)(model, ids(2, 3))
    assert logits.dtype == jnp.float32
    assert cache.layers.own.key_BSGK.dtype == jnp.bfloat16


@pytest.mark.full
def test_first_logits_are_small_whatever_the_size(ids):
    """Tied logits are scaled by D^-0.5, and unscaled scores have small queries to begin with."""
    logits = jax.jit(lambda model, *texts: model(*texts))(make(), ids(4, 9), ids(4, 9))
    assert 0.5 < float(jnp.std(logits)) < 2.0
