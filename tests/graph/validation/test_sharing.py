from __future__ import annotations

import fiddle as fdl
from graph_toys import parts

from luthier.graph import multiply, value
from luthier.graph.validation import shared_between_parts


def told(graph) -> list[str]:
    return [str(problem) for problem in shared_between_parts(graph)]


def test_sharing_inside_a_part_is_fine():
    assert told(parts.experiment()) == []


def test_sharing_between_parts_is_told_with_both_paths():
    graph = parts.experiment()
    graph.evaluations["held_out"].data = graph.data
    (line,) = told(graph)
    assert line == (
        "evaluations.held_out.data: is the same Source node as data, but the two are built apart; "
        "give each its own node (copy.deepcopy), and share values with luthier.graph.value"
    )


def test_each_node_is_told_once_and_not_what_is_below():
    graph = parts.experiment()
    graph.extra = [graph.model, graph.model]
    assert [line.split(":")[0] for line in told(graph)] == ["extra[0]"]


def test_value_nodes_may_be_shared():
    graph = parts.experiment()
    dim = value(8, name="dim")
    graph.model.dim, graph.steps, graph.extra = dim, multiply(dim, 2), [dim, {"a": dim}]
    assert told(graph) == []
    assert told(fdl.Config(parts.Constant, 0.1)) == []
