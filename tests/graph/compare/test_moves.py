from __future__ import annotations

from graph_toys import compared, parts

from luthier.graph import compare, copy_graph, diff
from luthier.graph.compare.differ import holds_node


def moved(a, b):
    return [(c.kind, c.path_before, c.path) for c in diff(a, b)]


def test_a_node_moves_to_any_place():
    a, b = compared.move_a_sub_graph()
    assert moved(a, b) == [("moved", "size.encoder", "other.tower")]
    a, b = compared.part(size=compared.mlp(dim=1)), compared.part(other=compared.mlp(dim=1))
    assert moved(a, b) == [("moved", "size", "other")]


def test_a_value_moves_within_its_list_only():
    assert moved(*compared.pair([1, 2, 3], [3, 1, 2])) == [("moved", "other[2]", "other[0]")]
    assert moved(*compared.pair({"a": 1}, {"b": 1})) == [
        ("removed", "", "other.a"),
        ("added", "", "other.b"),
    ]


def test_what_was_changed_has_not_moved():
    a = compared.part(size=compared.mlp(dim=1))
    b = compared.part(other=compared.mlp(dim=2))
    assert [kind for kind, _, _ in moved(a, b)] == ["reset", "set"]


def test_an_alias_that_moves_and_what_stays():
    a = parts.experiment()
    b = copy_graph(a)
    layers = b.model.layers
    layers.insert(0, layers.pop())
    found = [(c.kind, c.path, c.same_as) for c in diff(a, b)]
    assert found == [("moved", "model.layers[2]", "")]


def test_what_holds_nodes():
    for value, holds in (([{"a": compared.mlp()}], True), ([1], False), (compared.mlp(), True)):
        assert holds_node(compare.document(value).root) is holds
