from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.errors import UnknownReference
from luthier.graph import copies, evaluate, references, value
from luthier.graph.grammar import Unreadable


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
