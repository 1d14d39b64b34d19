from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import modules, parts

from luthier.graph import value
from luthier.graph.grammar import Unreadable, every_place, parse_statement, select


def selected(graph, pattern: str) -> list[str]:
    statement = parse_statement(f"{pattern}=0")
    return [place.path for place in select(graph, statement, lambda: every_place(graph))]


@pytest.fixture
def graph():
    return parts.experiment()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("class:Rules.sizes", ["rules.sizes"]),
        ("any:dropout", ["model.layers[0].dropout", "model.layers[1].dropout", "model.dropout"]),
        ("**.hidden", ["model.layers[0].hidden", "model.layers[1].hidden"]),
        ("any:layers[1].hidden", ["model.layers[1].hidden"]),
        ("any:layers[*].hidden", ["model.layers[0].hidden", "model.layers[1].hidden"]),
        ("model.layers[*].hidden", ["model.layers[0].hidden", "model.layers[1].hidden"]),
        ("model.*.dropout", []),
        ("model.*t", ["model.dropout"]),
        (
            "model.**.dropout",
            ["model.layers[0].dropout", "model.layers[1].dropout", "model.dropout"],
        ),
        ("evaluations.*.batch_size", ["evaluations.held_out.batch_size"]),
        (
            "evaluations[*].batch_size",
            ["evaluations.held_out.batch_size", "evaluations['long text'].batch_size"],
        ),
        (
            "any:length",
            [
                "data.length",
                "evaluations.held_out.data.length",
                "evaluations['long text'].data.length",
            ],
        ),
        ("class:Mlp.hidden", ["model.layers[0].hidden", "model.layers[1].hidden"]),
        ("class:Layer.dropout", ["model.layers[0].dropout", "model.layers[1].dropout"]),
        ("@GatedMlp.gate", ["model.layers[1].gate"]),
        ("class:graph_toys.parts.GatedMlp.gate", ["model.layers[1].gate"]),
        ("class:parts.GatedMlp.gate", ["model.layers[1].gate"]),
        ("class:Experiment.steps", ["steps"]),
        ("class:Experiment.optimizer.b2", ["optimizer.b2"]),
        ("tag:Rate", ["optimizer.learning_rate.peak"]),
        ("#graph_toys.parts.Rate", ["optimizer.learning_rate.peak"]),
    ],
)
def test_patterns(graph, pattern, expected):
    if not expected:
        with pytest.raises(Unreadable):
            selected(graph, pattern)
        return
    assert selected(graph, pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("any:dropuot", "any:dropuot matches nothing; did you mean any:dropout?"),
        ("layers[*].hidden", "paths start at the root; for all of them write any:layers[*].hidden"),
        ("model.layers[*].hiden", "did you mean model.layers[*].hidden?"),
        ("class:Mpl.hidden", "the graph has no node of Mpl; did you mean class:Mlp.hidden?"),
        ("class:Zzz.hidden", "the graph has no node of Zzz; there are Cosine, Evaluation"),
        ("class:Mlp.hiden", "class:Mlp.hiden: Mlp has no 'hiden'; did you mean class:Mlp.hidden?"),
        ("class:Mlp", "class:Mlp names no field; write class:Mlp.FIELD=VALUE"),
        ("class:Mlp.", "class:Mlp names no field; write class:Mlp.FIELD=VALUE"),
        ("class:.", "class: names no field"),
        ("tag:Rat", "no argument is tagged 'Rat'; did you mean tag:Rate?"),
        ("tag:Zzz", "no argument is tagged 'Zzz'; there are Rate"),
    ],
)
def test_what_matches_nothing(graph, pattern, message):
    with pytest.raises(Unreadable) as caught:
        selected(graph, pattern)
    assert message in str(caught.value)


def test_what_is_shared_is_selected_once(graph):
    dim = value(8, name="dim")
    graph.model.dim = graph.model.layers[1].dim = dim
    # layers[0] and layers[2] are one node; the two uses of the constant are one value.
    assert selected(graph, "any:dim") == ["model.dim", "model.layers[0].dim"]


def test_what_parents_pass_is_not_selected(graph):
    graph.extra = [fdl.Partial(modules.Dense, out=3), fdl.Partial(modules.Dense, dim=4, out=3)]
    found = selected(graph, "extra[*].*")
    assert found == ["extra[0].out", "extra[0].use_bias"] + [
        f"extra[1].{name}" for name in ("dim", "out", "use_bias")
    ]


def test_no_tags(graph):
    fdl.clear_tags(graph.optimizer.learning_rate, "peak")
    with pytest.raises(Unreadable, match="the graph has no tags"):
        selected(graph, "tag:Rate")


def test_tags_of_subclasses(graph):
    fdl.add_tag(graph.optimizer, "b1", parts.SpecialRate)
    assert selected(graph, "tag:Rate") == ["optimizer.b1", "optimizer.learning_rate.peak"]


def test_a_name_of_two_constants_is_refused_with_the_places_of_both(graph):
    graph.steps, graph.seed = value(3, name="n"), value(4, name="n")
    with pytest.raises(Unreadable) as caught:
        selected(graph, "gin:n")
    assert str(caught.value.problem) == (
        "'n' is the name of 2 constants, at seed and steps; write a path instead"
    )
