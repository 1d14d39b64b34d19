from __future__ import annotations

from typing import Any

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import find
from luthier.graph.grammar import Unreadable
from luthier.graph.scalars import refuse_on_node


def meant(graph, path: str, *admitting: str) -> str:
    """Return which field is suggested, where these fields could have the value."""
    with pytest.raises(Unreadable) as caught:
        refuse_on_node(find(graph, path), 3, Any, "=3", lambda field: field.part in admitting)
    return " or ".join(caught.value.problem.nearest)


@pytest.fixture
def graph():
    return parts.experiment()


def test_the_only_field_that_could_have_it_is_meant(graph):
    assert meant(graph, "optimizer.learning_rate", "total_steps") == (
        "optimizer.learning_rate.total_steps=3"
    )
    assert meant(graph, "optimizer.learning_rate") == ""


def test_the_only_one_with_a_tag_is_meant(graph):
    fdl.add_tag(graph.optimizer, "b2", parts.Rate)
    assert meant(graph, "optimizer", "b1", "b2") == "optimizer.b2=3"


def test_the_first_that_has_no_default_is_meant_unless_there_are_nodes_below(graph):
    fdl.clear_tags(graph.optimizer.learning_rate, "peak")
    every = ("peak", "warmup_steps", "total_steps")
    assert meant(graph, "optimizer.learning_rate", *every) == "optimizer.learning_rate.peak=3"
    assert meant(graph, "model.layers[0]", "hidden", "dim") == "", "hidden has a default"
    assert meant(graph, "evaluations.held_out", "data", "batch_size") == "", "data is a node"


def test_what_replaces_a_node_is_let_through(graph):
    place = find(graph, "optimizer.learning_rate")
    refuse_on_node(place, fdl.Config(parts.Constant, 1.0), Any)
    refuse_on_node(place, parts.relu, Any)
    refuse_on_node(place, None, parts.Schedule | None)
    refuse_on_node(find(graph, "steps"), 3, Any)


def test_default_instances_count_as_nodes(graph):
    with pytest.raises(Unreadable) as caught:
        refuse_on_node(find(graph, "rules"), 3, Any)
    assert str(caught.value) == (
        "rules: is a Rules node, which 3 cannot replace; "
        "set one of its fields (rules.parameters, rules.sizes)"
    )


def test_arithmetic_that_fails_is_refused_in_one_line(graph):
    with pytest.raises(BadInput) as caught:
        graphs.apply(graph, ["seed=3", "optimizer=ref:seed//0"])
    (problem,) = caught.value.problems
    assert "seed // 0 (integer division or modulo by zero) cannot replace" in str(problem)
