from __future__ import annotations

from graph_toys import compared, parts

from luthier.graph import apply, compare, copy_graph, diff, equal, values


def kinds(a, b):
    return [(change.kind, change.path) for change in diff(a, b)]


def test_what_is_kept_is_one_to_one():
    a, b = compared.insert_at_0()
    differ = compare.compare(compare.document(a), compare.document(b)).differ
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
    line = "= size: dim * 2 = 16 (of a constant that others share in another way)"
    assert str(change).split("  [")[0] == line
    assert not change.is_effective


def test_a_constant_in_arithmetic_is_reported_where_it_has_no_place():
    a, b = (compared.part(size=values.add(values.multiply(values.value(n), 2), 1)) for n in (1, 2))
    assert kinds(a, b) == [("changed", "size")]


def test_wrapping_and_unwrapping():
    a, b = compared.wrap()
    assert kinds(a, b) == [("class", "other"), ("moved", "other.inner")]
    assert kinds(b, a) == [("class", "other"), ("moved", "other")]
    (_, back) = diff(b, a)
    assert back.path_before == "other.inner"


def test_wrapping_in_a_positional_only_argument():
    inner = compared.mlp(dim=1)
    a, b = compared.pair(inner, compared.fdl.Config(parts.by_position, inner, c=4))
    found = diff(a, b)
    assert [(change.kind, change.path) for change in found] == [
        ("class", "other"),
        ("moved", "other[0]"),
    ]
    assert found[0].swap.gained == ("c",)
    (_, back) = diff(b, a)
    assert (back.kind, back.path_before, back.path) == ("moved", "other[0]", "other")


def test_both_the_value_and_the_tags_of_a_constant_may_change():
    a, b = values.value(3, name="n"), values.value(4, name="n")
    compared.fdl.add_tag(b, "value", parts.Rate)
    found = diff(compared.part(size=a, rate=a), compared.part(size=b, rate=b))
    assert [(change.kind, change.path) for change in found] == [
        ("changed", "size"),
        ("tags", "size.value"),
    ]
    assert found[1].summary == "tags none -> #graph_toys.parts.Rate"


def test_a_swapped_class_that_is_shared_is_reported_once():
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


def test_only_what_holds_nodes_moves_to_another_argument():
    for value, moves in (([{"a": compared.mlp()}], True), ([1], False), (compared.mlp(), True)):
        found = moved(compared.part(size=value), compared.part(other=value))
        assert (found == [("moved", "size", "other")]) is moves


def test_the_tree_of_what_belongs_together():
    a, b = compared.insert_at_0()
    root = compare.compare(compare.document(a), compare.document(b)).root
    (listed,) = root.below
    assert [(pair.path_a, pair.path_b) for pair in listed.below] == [
        ("", "other[0]"),
        ("other[0]", "other[1]"),
        ("other[1]", "other[2]"),
        ("other[2]", "other[3]"),
    ]
    assert [draft.kind for draft in listed.below[0].changes] == ["added"]


def test_a_node_that_became_a_list_is_compared_with_the_element_most_like_it():
    a, b = compared.pair(
        compared.mlp(hidden=1),
        [
            compared.fdl.Config(compared.Embed, dim=4),
            compared.mlp(hidden=2),
            compared.mlp(hidden=3),
        ],
    )
    found = [(change.kind, change.path, change.path_before) for change in diff(a, b)]
    assert found == [
        ("class", "other", ""),
        ("added", "other[0]", ""),
        ("changed", "other[1].hidden", "other.hidden"),
        ("added", "other[2]", ""),
    ]
    assert diff(a, b)[0].summary == "graph_toys.parts.Mlp -> a list of 3"
    back = [(change.kind, change.path, change.path_before) for change in diff(b, a)]
    assert back == [
        ("class", "other", ""),
        ("removed", "other[0]", ""),
        ("changed", "other.hidden", "other[1].hidden"),
        ("removed", "other[2]", ""),
    ]


def test_what_a_list_in_the_place_of_a_node_holds_is_in_the_rows_and_made_by_one_override():
    shared = compared.mlp(hidden=5)
    a = compared.part(other=compared.mlp(hidden=1), size=shared)
    b = compared.part(other=[compared.mlp(hidden=2), compared.mlp(hidden=3)], size=shared)
    comparison = compare.compare(compare.document(a), compare.document(b))
    assert [row.path for row in compare.rows_of(comparison) if row.change is not None] == [
        "other",
        "other[0].hidden",
        "other[1]",
        "other[1].hidden",
    ]
    found = compare.overrides_of(comparison)
    assert len(found.overrides) == 1
    assert set(found.by_change) == {0, 1, 2}
    assert equal(apply(a, found.overrides), b)


def test_a_node_in_the_place_of_a_value_is_opened():
    a, b = compared.part(other=1), compared.part(other=compared.mlp(hidden=2))
    rows = compare.rows_of(compare.compare(compare.document(a), compare.document(b)))
    (at,) = [place for place, row in enumerate(rows) if row.path == "other"]
    assert (rows[at].before, rows[at].opens) == ("1", True)
    inside = rows[at + 1]
    assert (inside.path, inside.before, inside.after) == ("other.hidden", None, "2")
