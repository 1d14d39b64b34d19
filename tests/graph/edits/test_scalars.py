from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.errors import BadInput, OverrideError
from luthier.graph import apply


def meant(graph, override: str) -> str:
    """Return which field is suggested for an override that would replace a node."""
    with pytest.raises(OverrideError) as caught:
        apply(graph, [override])
    (problem,) = caught.value.problems
    return " or ".join(problem.nearest)


@pytest.fixture
def graph():
    return parts.experiment()


def test_the_only_field_that_could_have_it_is_meant(graph):
    fdl.clear_tags(graph.optimizer.learning_rate, "peak")
    assert meant(graph, "optimizer.learning_rate=0.5") == "optimizer.learning_rate.peak=0.5"
    assert meant(graph, "optimizer=true") == "optimizer.nesterov=true"
    assert meant(graph, "optimizer.learning_rate=abc") == ""


def test_the_only_one_with_a_tag_is_meant(graph):
    assert meant(graph, "optimizer=0.5") == "", "b1 or b2"
    fdl.add_tag(graph.optimizer, "b2", parts.Rate)
    assert meant(graph, "optimizer=0.5") == "optimizer.b2=0.5"


def test_the_first_that_has_no_default_is_meant_unless_there_are_nodes_below(graph):
    fdl.clear_tags(graph.optimizer.learning_rate, "peak")
    assert meant(graph, "optimizer.learning_rate=3") == "optimizer.learning_rate.peak=3"
    assert meant(graph, "model.layers[0]=3") == "", "hidden has a default"
    graph.optimizer.learning_rate.warmup_steps = fdl.Config(parts.Constant, 1.0)
    assert meant(graph, "optimizer.learning_rate=3") == "", "a node is below"


def test_what_replaces_a_node_is_let_through(graph):
    node = fdl.Config(parts.Constant, 1.0)
    assert apply(graph, [("optimizer.learning_rate", node)]).optimizer.learning_rate == node
    graph.callback = fdl.Partial(parts.Constant, 1.0)
    assert apply(graph, [("callback", parts.relu)]).callback is parts.relu
    assert apply(graph, ["callback=None"]).callback is None
    assert apply(graph, ["steps=3"]).steps == 3


def test_default_instances_count_as_nodes(graph):
    with pytest.raises(OverrideError) as caught:
        apply(graph, ["rules=3"])
    (problem,) = caught.value.problems
    assert (problem.path, problem.what, problem.remedy) == (
        "rules",
        "is a Rules node, which 3 cannot replace",
        "set one of its fields (rules.parameters, sizes)",
    )


def test_arithmetic_that_fails_is_refused_in_one_line(graph):
    with pytest.raises(BadInput) as caught:
        apply(graph, ["seed=3", "optimizer=ref:seed//0"])
    (problem,) = caught.value.problems
    assert "seed // 0 (integer division or modulo by zero) cannot replace" in str(problem)
