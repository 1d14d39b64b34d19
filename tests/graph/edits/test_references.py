from __future__ import annotations

from typing import Any

import fiddle as fdl
import pytest
from graph_toys import edited, parts

from luthier.errors import UnknownReference
from luthier.graph import copies, evaluate, references, value
from luthier.graph.grammar import Unreadable
from luthier.graph.references import take


@pytest.fixture
def graph():
    return parts.experiment()


def test_a_plain_value_becomes_a_constant_once(graph):
    first = references.refer(graph, ("model", "dim"))
    assert graph.model.dim is first
    assert (first.value, first.name) == (16, "dim")
    assert references.refer(graph, ("model", "dim")) is first


def test_a_default_becomes_a_constant(graph):
    node = references.refer(graph, ("optimizer", "b1"))
    assert graph.optimizer.b1 is node
    assert evaluate(node) == 0.9


def test_only_values_can_be_referred_to(graph):
    graph.extra = fdl.Config(parts.Constant)
    with pytest.raises(Unreadable, match=r"model is a node, not a value; .*alias:model"):
        references.refer(graph, ("model",))
    with pytest.raises(Unreadable, match=r"extra\.rate is not set"):
        references.refer(graph, ("extra", "rate"))
    with pytest.raises(UnknownReference, match=r"did you mean model\.dim"):
        references.refer(graph, ("model", "dmi"))


def test_aliases(graph):
    found = references.alias(graph, ("extra",), ("model", "layers", 0))
    assert found is graph.model.layers[0]
    assert references.alias(graph, ("seed",), ("steps",)) is graph.steps


def test_nothing_contains_itself(graph):
    for target in [("model", "layers"), ("model", "layers", 0, "dim"), ("model", "dim")]:
        with pytest.raises(Unreadable, match="would contain itself"):
            references.alias(graph, target, ("model",))
    graph.model.dim = value(3)
    inside = fdl.Config(dict, a=graph.model.dim)
    with pytest.raises(Unreadable, match="would contain itself"):
        references.refuse_circle(graph, ("model", "dim"), inside, into_constant=True)
    references.refuse_circle(graph, ("model", "dim"), inside)  # the constant is replaced
    references.refuse_circle(graph, ("model", "dim"), graph.model.dim, into_constant=True)
    references.refuse_circle(graph, ("steps",), graph.model.dim)


def test_nodes_of_a_value_are_yielded_once(graph):
    found = list(copies.nodes_of([graph.model.layers, {"a": graph.model}, (graph.model,)]))
    assert len(found) == len({id(node) for node in found}) == 3


def taken(text, annotation=Any, recorded=edited.recorded):
    return take(parts.experiment(), ("extra",), text, annotation, recorded)


@pytest.mark.parametrize(
    "text", ["3", "aliases", "run", "running:a.b", "ref:a", "f(run:last.model)"]
)
def test_other_values_take_nothing(text):
    assert taken(text) is None


def test_an_alias_is_the_very_node():
    graph = parts.experiment()
    (found,) = take(graph, ("extra",), "alias: model ", Any, None)
    assert found is graph.model


def test_a_run_gives_a_copy():
    asked = []

    def recorded(run):
        asked.append((run, edited.recorded("last")))
        return asked[-1][1]

    (found,) = taken("run:name/20261121-a1b2.model.layers[0]", recorded=recorded)
    assert asked[0][0] == "name/20261121-a1b2"
    assert found == asked[0][1].model.layers[0]
    assert found is not asked[0][1].model.layers[0]


def test_paths_may_hold_slashes():
    asked = []

    def recorded(run):
        asked.append(run)
        graph = parts.experiment()
        graph.evaluations["a/b.c"] = 3
        return graph

    assert taken("run:a1.evaluations['a/b.c']", recorded=recorded) == (3,)
    assert asked == ["a1"]


def test_a_class_may_have_the_word_itself():
    assert taken("run:last.model", edited.Start) is None
    assert taken("@run:last.steps", edited.Start) == (1000,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alias:", "'alias:' names no path; write alias:PATH"),
        ("run:", "'run:' does not name a run and a path; write run:ID.PATH, as run:last.model"),
        ("run:last", "'run:last' does not name a run and a path"),
        ("@run:.model", "'@run:.model' does not name a run and a path"),
        (
            "run:last.modle",
            "run:last.modle: does not exist; did you mean run:last.mode or run:last",
        ),
    ],
)
def test_what_cannot_be_taken(text, message):
    with pytest.raises(Unreadable) as caught:
        taken(text)
    assert str(caught.value).startswith(message)


def test_where_there_are_no_runs():
    with pytest.raises(Unreadable, match="no runs are known here"):
        taken("run:last.model", recorded=None)
