from __future__ import annotations

from graph_toys import compared, parts

from luthier.graph import compare, copy_graph, diff, equal, values
from luthier.graph.compare.differ import Differ


def kinds(a, b):
    return [(change.kind, change.path) for change in diff(a, b)]


def test_what_is_kept_is_one_to_one():
    a, b = compared.insert_at_0()
    differ = Differ(compare.document(a), compare.document(b))
    differ.run()
    assert len(differ.kept_a) == len(differ.kept_b) == 1 + 1 + 3
    assert {id(node) for node in differ.kept_a.values()} == set(differ.kept_b)


def test_constants_that_are_shared_in_another_way_differ():
    dim = values.value(8, name="dim")
    a = compared.part(size=values.multiply(dim, 2), rate=dim)
    b = compared.part(
        size=values.multiply(values.value(8, name="dim"), 2), rate=values.value(8, name="dim")
    )
    assert not equal(a, b)
    (change,) = diff(a, b)
    told = "= size: dim * 2 = 16 (of a constant that others share in another way)"
    assert str(change).split("  [")[0] == told
    assert not change.is_effective


def test_a_constant_in_arithmetic_is_told_where_it_has_no_place():
    a, b = (compared.part(size=values.add(values.multiply(values.value(n), 2), 1)) for n in (1, 2))
    assert kinds(a, b) == [("changed", "size")]


def test_wrapping_and_unwrapping():
    a, b = compared.wrap()
    assert kinds(a, b) == [("class", "other"), ("moved", "other.inner")]
    assert kinds(b, a) == [("class", "other"), ("moved", "other")]
    (_, back) = diff(b, a)
    assert back.path_before == "other.inner"


def test_a_swapped_class_that_is_shared_is_told_once():
    one, other = compared.mlp(hidden=1), compared.Head
    swapped = compared.fdl.Config(other)
    assert kinds(compared.part(size=one, rate=one), compared.part(size=swapped, rate=swapped)) == [
        ("class", "size")
    ]


def test_an_element_that_is_added_names_the_place_that_it_is_the_same_as():
    a = parts.experiment()
    b = copy_graph(a)
    b.model.layers.append(b.model.layers[1])
    (change,) = diff(a, b)
    assert (change.kind, change.path) == ("added", "model.layers[3]")
    assert change.same_as == "model.layers[1]"
    assert change.summary == "the same as model.layers[1]"
