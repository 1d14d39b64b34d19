from __future__ import annotations

import time

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.graph import UNSET, Change, add, apply, copy_graph, diff, equal, multiply, render_diff
from luthier.graph import value as shared_value


def part(**given):
    return fdl.Config(recorded.Part, **given)


def lines(a, b):
    """The rendered lines, without origins."""
    return [line.split("  [")[0] for line in render_diff(diff(a, b)).splitlines()]


def test_equal_graphs_do_not_differ():
    for make in (recorded.everything, parts.experiment):
        assert diff(make(), make()) == []
        graph = make()
        assert diff(graph, graph) == []
    assert render_diff([]) == "no differences"


def test_values_set_reset_added_and_removed():
    a = part(size=1, rate=2.0, other={"x": 1, "y": [1]}, shape=(1, 2))
    b = part(size=2, other={"x": 1, "z": 3}, shape=(1, 3), extra=None)
    assert [(change.kind, change.path, change.before, change.after) for change in diff(a, b)] == [
        ("changed", "size", 1, 2),
        ("reset", "rate", 2.0, 0.1),
        ("removed", "other.y", [1], UNSET),
        ("added", "other.z", UNSET, 3),
        ("changed", "shape", (1, 2), (1, 3)),
        ("set", "extra", {"a": [1]}, None),
    ]
    assert lines(a, b) == [
        "~ size: 1 -> 2",
        "~ rate: 2.0 -> 0.1 (the default)",
        "- other.y: [1]",
        "+ other.z: 3",
        "~ shape: (1, 2) -> (1, 3)",
        "~ extra: {'a': [1]} -> None (was left at its default)",
    ]


def test_types_count():
    assert lines(part(size=1), part(size=1.0)) == ["~ size: 1 -> 1.0"]
    assert lines(part(size=1), part(size=True)) == ["~ size: 1 -> True"]
    assert lines(part(size=(1,)), part(size=[1])) == ["~ size: (1,) -> [1]"]
    assert lines(part(size=None), part(size=fdl.Config(parts.Layer, dim=3))) == [
        "~ size: None -> graph_toys.parts.Layer(dim=3)"
    ]


def test_a_value_set_to_its_default_has_no_effect():
    (change,) = diff(part(), part(size=3))
    assert change.kind == "set"
    assert not change.is_effective
    (change,) = diff(part(), part(size=3.0))
    assert change.is_effective


def test_the_origin_of_a_change_is_reported():
    graph = parts.experiment()
    changed = apply(graph, ["optimizer.b2=0.5"])
    (change,) = diff(graph, changed)
    assert change.origin == "argument 1: optimizer.b2=0.5"
    assert str(change) == "~ optimizer.b2: 0.99 -> 0.5  [argument 1: optimizer.b2=0.5]"


def test_a_swapped_class_is_one_change():
    a = part(size=fdl.Config(parts.Mlp, hidden=64, dim=8, activation=parts.relu))
    b = part(size=fdl.Config(parts.GatedMlp, hidden=64, dim=16, gate="gelu"))
    swap, value = diff(a, b)
    assert (swap.kind, swap.path) == ("class", "size")
    assert swap.swap.carried == ("hidden", "dim")
    assert swap.swap.dropped == ("activation",)
    assert swap.swap.gained == ("gate",)
    assert (value.path, value.before, value.after) == ("size.dim", 8, 16)
    assert lines(a, b)[0] == (
        "~ size: graph_toys.parts.Mlp -> graph_toys.parts.GatedMlp; kept hidden, dim; "
        "dropped activation = graph_toys.parts.relu; new gate = 'gelu'"
    )
    kinds = lines(part(size=fdl.Config(parts.Layer)), part(size=fdl.Partial(parts.Layer)))
    assert kinds == ["~ size: graph_toys.parts.Layer -> partial graph_toys.parts.Layer"]


def test_an_insertion_into_a_list_is_one_change():
    def layers(*sizes):
        return part(other=[fdl.Config(parts.Mlp, hidden=size) for size in sizes])

    assert lines(layers(1, 2, 3), layers(0, 1, 2, 3)) == [
        "+ other[0]: graph_toys.parts.Mlp(hidden=0)"
    ]
    assert lines(layers(1, 2, 3), layers(1, 3)) == ["- other[1]: graph_toys.parts.Mlp(hidden=2)"]
    assert lines(layers(1, 1, 1), layers(1, 1, 1, 1)) == [
        "+ other[3]: graph_toys.parts.Mlp(hidden=1)"
    ]
    assert lines(layers(1, 2, 3), layers(0, 1, 9, 3)) == [
        "+ other[0]: graph_toys.parts.Mlp(hidden=0)",
        "~ other[2].hidden (was other[1].hidden): 2 -> 9",
    ]
    assert lines(layers(), layers(1)) == ["+ other[0]: graph_toys.parts.Mlp(hidden=1)"]


def test_a_change_inside_a_list_is_reported_in_place():
    a, b = parts.experiment(), parts.experiment()
    b.model.layers[1].hidden = 5
    assert lines(a, b) == ["~ model.layers[1].hidden: 32 -> 5 (was left at its default)"]


def test_sharing_is_a_change_of_its_own():
    layer = fdl.Config(parts.Mlp, dim=fdl.Config(parts.Layer))
    shared, apart = (part(size=layer, rate=x) for x in (layer, copy_graph(layer)))
    (change,) = diff(shared, apart)
    assert (change.kind, change.path, change.same_as) == ("unshared", "rate", "size")
    assert change.is_effective
    (change,) = diff(apart, shared)
    assert (change.kind, change.path, change.same_as) == ("shared", "rate", "size")
    assert lines(shared, apart) == ["= rate: is no longer the same as size"]
    assert lines(apart, shared) == ["= rate: is now the same as size"]
    apart.rate.hidden = 5
    assert lines(shared, apart) == [
        "= rate: is no longer the same as size",
        "~ rate.hidden: 32 -> 5 (was left at its default)",
    ]


def test_what_is_inside_of_a_shared_node_is_reported_once():
    layer = fdl.Config(parts.Layer)
    a = part(size=layer, rate=layer, other=[layer])
    b = copy_graph(a)
    b.size.dim = 5
    assert lines(a, b) == ["~ size.dim: 8 -> 5 (was left at its default)"]


def test_value_nodes():
    dim = shared_value(4, name="dim")
    a = part(size=multiply(dim, 2), rate=dim, other=[dim])
    b = copy_graph(a)
    b.rate.value = 5
    assert lines(a, b) == ["~ rate: 4 -> 5 (shared as dim)"]
    b.size = multiply(b.rate, 3)
    assert lines(a, b) == ["~ size: dim * 2 = 8 -> dim * 3 = 15", "~ rate: 4 -> 5 (shared as dim)"]
    only = part(size=multiply(shared_value(4), 2))
    changed = copy_graph(only)
    changed.size.left.value = 6
    assert lines(only, changed) == ["~ size: 4 * 2 = 8 -> 6 * 2 = 12"]
    literal = copy_graph(a)
    literal.rate = 4
    assert lines(a, literal) == ["= rate: 4 (shared as dim) -> 4"]
    assert lines(literal, a) == ["= rate: 4 -> 4 (shared as dim)"]
    literal.rate = 5
    assert lines(a, literal) == ["~ rate: 4 (shared as dim) -> 5"]
    renamed = copy_graph(a)
    renamed.rate.name = "width"
    assert lines(a, renamed)[-1] == "~ rate: 4 (shared as dim) -> 4 (shared as width)"


def test_tags():
    a, b = part(size=1), part(size=1)
    fdl.add_tag(b, "size", recorded.Tagged)
    (change,) = diff(a, b)
    assert not change.is_effective
    assert lines(a, b) == ["~ size: tags none -> #graph_toys.recorded.Tagged"]


def test_a_change_is_data():
    change = Change("changed", "a.b", 1, 2)
    assert change == Change("changed", "a.b", 1, 2)
    assert change.is_effective


def test_other_roots():
    assert lines(fdl.Config(parts.Layer), fdl.Config(parts.Mlp)) == [
        "~ the root: graph_toys.parts.Layer -> graph_toys.parts.Mlp"
    ]


def test_no_changes_exactly_when_equal():
    make = [
        lambda: part(size=[1]),
        lambda: part(size=(1,)),
        lambda: part(size=fdl.Config(parts.Layer)),
        lambda: part(size=shared_value(1)),
        lambda: part(size=shared_value(1, name="a")),
        lambda: part(size=shared_value(2)),
        lambda: part(size=add(shared_value(1), 1)),
        lambda: part(size=add(shared_value(1), 2)),
        lambda: part(size={"a": recorded.Point(1, [1])}),
        lambda: part(size={"a": recorded.Point(1, [2])}),
        lambda: part(size=recorded.Pair(1, 2)),
        parts.experiment,
        recorded.everything,
    ]
    for i, left in enumerate(make):
        for j, right in enumerate(make):
            a, b = left(), right()
            assert (diff(a, b) == []) == equal(a, b) == (i == j)


@pytest.mark.full
@SETTINGS
@hypothesis.given(graphs(), graphs())
def test_random_graphs_differ_exactly_when_unequal(a, b):
    assert (diff(a, b) == []) == equal(a, b)
    assert diff(a, copy_graph(a)) == []
    assert len(render_diff(diff(a, b)).splitlines()) >= 1


@pytest.mark.full
def test_five_thousand_nodes_take_little_time(capsys):
    def big(last):
        blocks = [fdl.Config(parts.Mlp, hidden=i, dim=fdl.Config(parts.Layer)) for i in range(2500)]
        return part(other=[*blocks, fdl.Config(parts.Layer, dim=last)])

    a, b = big(1), big(2)
    b.other.insert(0, fdl.Config(parts.Layer))
    del b.other[1000]
    b.other[2000].dim.dropout = 0.5
    start = time.perf_counter()
    found = diff(a, b)
    with capsys.disabled():
        print(f"\ndiff of 5,000 nodes: {time.perf_counter() - start:.2f} s")
    assert [change.kind for change in found] == ["added", "removed", "set", "changed"]


def test_a_field_of_a_default_is_what_changed():
    """Setting it makes nodes of the defaults around it, which differ from them in nothing else."""
    graph = parts.experiment()
    changed = apply(graph, ["rules.parameters.embed=('data',)", "rules.sizes=(2, 1)"])
    assert lines(graph, changed) == [
        "~ rules.parameters.embed: ('fsdp',) -> ('data',)",
        "~ rules.sizes: (1, 1) -> (2, 1) (was left at its default)",
    ]
    assert lines(changed, graph) == [
        "~ rules.parameters.embed: ('data',) -> ('fsdp',)",
        "~ rules.sizes: (2, 1) -> (1, 1) (the default)",
    ]
    assert all(change.is_effective for change in diff(graph, changed))


def test_a_node_that_repeats_the_default_is_one_change_without_effect():
    graph = parts.experiment()
    changed = copy_graph(graph)
    changed.rules = fdl.Config(parts.Rules)
    (change,) = diff(graph, changed)
    assert (change.path, change.kind, change.is_effective) == ("rules", "set", False)
