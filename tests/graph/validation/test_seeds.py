from __future__ import annotations

import fiddle as fdl
from flax import nnx

from luthier import data, layers, models
from luthier.errors import ValidationError
from luthier.graph import apply, value
from luthier.graph.validation import validate


def problems(graph) -> list[str]:
    try:
        validate(graph)
    except ValidationError as error:
        return [str(p).replace(f" [set by {p.origin}]", "") for p in error.problems]
    return []


def preferences(**settings):
    return fdl.Config(
        data.Preferences,
        source=fdl.Config(data.Arithmetic, **settings),
        tokenizer=fdl.Config(data.Bytes),
        length=32,
    )


def mixture(**components):
    weights = dict.fromkeys(components, 1.0)
    return fdl.Config(
        data.Mixture, components=components, stages=[fdl.Config(data.Stage, weights=weights)]
    )


def test_two_sources_that_draw_the_same_are_refused():
    graph = mixture(a=preferences(count=100), b=preferences(count=50, seed=0))
    assert problems(graph) == [
        "components.b.source: draws the same examples as components.a.source: both are Arithmetic "
        "with seed=0, split='train', largest=99; set components.b.source.seed to another number, "
        "or share it if that is meant: components.b.source.seed=alias:components.a.source.seed"
    ]


def test_the_remedies_of_equal_seeds_work():
    graph = mixture(a=preferences(), b=preferences())
    assert problems(apply(graph, ["components.b.source.seed=1"])) == []
    shared = apply(graph, ["components.b.source.seed=alias:components.a.source.seed"])
    assert problems(shared) == []


def test_other_splits_and_sizes_draw_others():
    assert problems(mixture(a=preferences(), b=preferences(split="test"))) == []
    assert problems(mixture(a=preferences(), b=preferences(largest=9))) == []


def test_seeds_that_are_equal_on_purpose_are_one_value():
    seed = value(3, name="seed")
    assert problems(mixture(a=preferences(seed=seed), b=preferences(seed=seed))) == []
    other = value(3, name="seed")
    assert len(problems(mixture(a=preferences(seed=seed), b=preferences(seed=other)))) == 1


def test_a_template_with_random_streams_of_its_own_is_refused():
    norm = fdl.Partial(layers.RMSNorm)
    graph = fdl.Partial(
        models.Decoder,
        vocab_size=8,
        dim=8,
        num_layers=2,
        norm=norm,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(layers.Attention, num_heads=2),
            mlp=fdl.Partial(layers.Mlp, hidden_dim=8, rngs=fdl.Config(nnx.Rngs, 0)),
            norm=norm,
        ),
    )
    (told,) = [line for line in problems(graph) if line.startswith("block.mlp.rngs: is set")]
    assert told == (
        "block.mlp.rngs: is set, so that all modules made of this template draw the same numbers; "
        "leave it out: the parent hands over streams that come from the experiment's seed"
    )
