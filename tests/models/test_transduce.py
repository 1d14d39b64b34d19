import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from luthier import graph
from luthier.errors import BadInput
from luthier.models import Conditional, LanguageModel, transduce
from luthier.recipes import encoders

VOCAB = 23


@pytest.fixture(scope="module")
def model():
    recipe = encoders.t5(
        vocab_size=VOCAB,
        dim=16,
        num_layers=2,
        num_heads=2,
        head_dim=6,
        hidden_dim=24,
        num_buckets=6,
        max_distance=8,
    )
    init = lambda: graph.build(recipe)(rngs=nnx.Rngs(0))
    graphdef, _ = nnx.split(nnx.eval_shape(init))
    return nnx.merge(graphdef, jax.jit(lambda: nnx.state(init()))())


@pytest.fixture
def sources(ids):
    return [ids(5).tolist(), ids(9).tolist(), ids(1).tolist()]


@functools.partial(jax.jit)
def likeliest(model, source, target):
    return model(source, target)[0].argmax(-1)


@pytest.mark.full
def test_greedy_targets_are_what_the_model_finds_likeliest(model, sources):
    found = transduce(model, sources, start_token=0, max_new_tokens=6, temperature=0.0)
    for source, target in zip(sources, found, strict=True):
        assert len(target) == 6
        inputs = jnp.asarray([[0, *target[:-1]]])
        assert likeliest(model, jnp.asarray([source]), inputs).tolist() == target


def test_a_target_ends_at_a_stop_token(model, sources):
    whole = transduce(model, sources, start_token=0, max_new_tokens=6, temperature=0.0)
    stop = whole[0][2]
    cut = transduce(
        model, sources, start_token=0, max_new_tokens=6, temperature=0.0, stop_tokens=[stop]
    )
    for a, b in zip(whole, cut, strict=True):
        assert b == (a[: a.index(stop)] if stop in a else a)


@pytest.mark.full
def test_sampling_depends_on_the_seed_alone(model, sources):
    sample = lambda seed: transduce(model, sources, start_token=0, max_new_tokens=8, seed=seed)
    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    restricted = transduce(model, sources, start_token=0, max_new_tokens=8, seed=1, top_k=1)
    assert restricted == transduce(model, sources, start_token=0, max_new_tokens=8, temperature=0.0)


@pytest.mark.full
def test_an_empty_source_is_a_source(model):
    (target,) = transduce(model, [[]], start_token=0, max_new_tokens=3, temperature=0.0)
    assert len(target) == 3
    assert transduce(model, [], start_token=0, max_new_tokens=3) == []


@pytest.mark.full
def test_a_model_with_its_sources_is_a_language_model(model, sources):
    encoded = model.encode(jnp.asarray([sources[0]]))
    conditional = Conditional(model, encoded)
    assert isinstance(conditional, LanguageModel)
    targets = jnp.asarray([[0, 3, 4]])
    logits = conditional.logits(conditional.hidden(targets))
    assert (logits == model(jnp.asarray([sources[0]]), targets)).all()


def test_arguments_out_of_range_are_refused(model):
    with pytest.raises(BadInput, match="temperature is -1"):
        transduce(model, [[1]], start_token=0, max_new_tokens=3, temperature=-1.0)


def test_tokens_outside_the_vocabulary_are_all_named(model):
    with pytest.raises(BadInput) as caught:
        transduce(model, [[1, VOCAB], [2], [-1]], start_token=0, max_new_tokens=3)
    first, second = map(str, caught.value.problems)
    assert first == (
        f"token {VOCAB} at position 1 of source 0 is outside the vocabulary; "
        f"the model's vocabulary has the ids 0 to {VOCAB - 1}"
    )
    assert second.startswith("token -1 at position 0 of source 2 is outside the vocabulary")
