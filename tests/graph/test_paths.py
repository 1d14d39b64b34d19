from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier import graph as luthier_graph
from luthier.errors import UnknownReference
from luthier.graph import (
    UNSET,
    children,
    find,
    format_path,
    get,
    is_container,
    locate,
    nearest,
    nearest_paths,
    parse_path,
    paths,
    walk,
)


@pytest.fixture
def graph():
    return parts.experiment()


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("", (), ""),
        ("a", ("a",), "a"),
        ("a.b_2.c", ("a", "b_2", "c"), "a.b_2.c"),
        ("a[0].b", ("a", 0, "b"), "a[0].b"),
        ("a[-1]", ("a", -1), "a[-1]"),
        ("a['k']", ("a", "k"), "a.k"),
        ('a["k v"].b', ("a", "k v", "b"), "a['k v'].b"),
        ("a['x.y=z']", ("a", "x.y=z"), "a['x.y=z']"),
        ("[0][1]", (0, 1), "[0][1]"),
        ("a['À'][0]", ("a", "À", 0), "a['À'][0]"),
    ],
)
def test_paths_read_and_write(text, expected, canonical):
    assert parse_path(text) == expected
    assert format_path(expected) == canonical
    assert parse_path(canonical) == expected


@pytest.mark.parametrize("text", [".a", "a..b", "a.", "a[", "a[1", "a b", "a.[0]", "a[*]", "1a"])
def test_what_is_no_path_is_refused(text):
    with pytest.raises(UnknownReference, match="is not a path; write it like"):
        parse_path(text)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("steps", 1000),
        ("optimizer.b1", 0.9),
        ("optimizer.learning_rate.peak", 1e-3),
        ("model.layers[1].gate", "silu"),
        ("model.layers[-1].hidden", 64),
        ("evaluations.held_out.every.count", 50),
        ("evaluations['held_out'].data.length", 64),
        ("evaluations['long text'].every.count", 100),
        ("rules.parameters.embed", ("fsdp",)),
        ("rules.parameters['vocab'][0]", "tensor"),
        ("rules.sizes[1]", 1),
    ],
)
def test_get_reaches_what_is_set_and_what_is_default(graph, path, expected):
    assert get(graph, path) == expected


def test_get_of_the_root_and_of_what_is_not_set(graph):
    assert get(graph, "") is graph
    graph.extra = fdl.Config(parts.Constant)
    assert find(graph, "extra.rate").value is UNSET
    with pytest.raises(UnknownReference, match=r"^extra\.rate: is not set$"):
        get(graph, "extra.rate")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("optimzer.b2", "optimzer.b2: does not exist; did you mean optimizer.b2?"),
        (
            "optimizer.learning_rate.paek",
            "optimizer.learning_rate.paek: does not exist; "
            "did you mean optimizer.learning_rate.peak?",
        ),
        ("warmup_steps", "does not exist; did you mean optimizer.learning_rate.warmup_steps?"),
        ("wrong.peak", "does not exist; did you mean optimizer.learning_rate.peak?"),
        ("model.layers[9].hidden", "does not exist; did you mean model.layers"),
        ("steps.a", "steps.a: does not exist: steps is 1000, which has no fields"),
        ("extra.rate.b", "extra.rate.b: does not exist: extra.rate is not set"),
        (
            "callback.rates",
            "callback.rates: does not exist: callback is graph_toys.parts.Constant without its "
            "arguments; it takes rate",
        ),
        (
            "callback.rate",
            "write callback=graph_toys.parts.Constant(), whose arguments are settings",
        ),
        ("qqqq", "qqqq: does not exist; the root has name, model, optimizer, data, evaluations"),
        ("rules.parameters.embd", "does not exist; did you mean rules.parameters.embed?"),
        ("evaluations.heldout", "does not exist; did you mean evaluations.held_out?"),
    ],
)
def test_unknown_paths_name_the_nearest(graph, path, message):
    graph.extra = fdl.Config(parts.Constant)
    graph.callback = parts.Constant
    with pytest.raises(UnknownReference) as caught:
        get(graph, path)
    assert message in str(caught.value)


def test_locate_returns_how_far_it_came(graph):
    place, depth = locate(graph, ("optimizer", "nothing", "more"))
    assert (place.path, depth) == ("optimizer", 1)
    assert place.value is graph.optimizer


def test_walk_yields_every_path(graph):
    found = [place.path for place in walk(graph)]
    assert len(found) == len(set(found))
    assert found[:2] == ["name", "model"]  # in the order of the signature, parents first
    expected = [
        "optimizer.b1",
        "model.layers[0].dim",
        "model.layers[2].dim",
        "rules.parameters.embed",
    ]
    assert set(expected) <= set(found)
    for place in walk(graph):
        assert find(graph, place.path).value is place.value or place.is_default
    set_only = {place.path for place in walk(graph, defaults=False)}
    assert "model.layers[0].hidden" in set_only
    assert "optimizer.b1" not in set_only


def test_walk_enters_what_is_shared_once(graph):
    found = [place.path for place in walk(graph, once=True)]
    assert "model.layers[2]" in found
    assert "model.layers[2].dim" not in found


def test_walk_enters_equal_tuples_at_every_path():
    """Python makes one object of equal constant tuples, which nobody meant to share."""
    pair, shared = (1, 2), fdl.Config(parts.Constant, rate=0.5)
    graph = fdl.Config(dict, x=pair, y=pair, first=(shared,), second=(shared,))
    places = [place.path for place in walk(graph, once=True)]
    assert places == [
        *("x", "x[0]", "x[1]", "y", "y[0]", "y[1]"),
        *("first", "first[0]", "first[0].rate", "second", "second[0]"),
    ]


def test_walk_offers_what_is_not_set(graph):
    graph.extra = fdl.Config(parts.Constant)
    assert "extra.rate" not in {place.path for place in walk(graph)}
    assert "extra.rate" in {place.path for place in walk(graph, unset=True)}
    graph.extra = fdl.Config(parts.by_position)
    assert "extra[0]" not in {place.path for place in walk(graph)}
    found = [place for place in walk(graph, unset=True) if place.path.startswith("extra[")]
    assert [(place.path, place.value) for place in found] == [("extra[0]", UNSET), ("extra[1]", 2)]


def test_walk_ends_in_a_circle(graph):
    graph.extra = graph.model
    graph.model.layers.append(graph.model)
    assert "model.layers[3]" in dict(paths(graph))


def test_value_nodes_are_leaves(graph):
    dim = luthier_graph.value(8, name="dim")
    graph.model.dim = luthier_graph.multiply(dim, 2)
    assert dict(paths(graph))["model.dim"] is graph.model.dim
    assert not any(path.startswith("model.dim.") for path, _ in paths(graph))
    assert not is_container(dim)


def test_children_of_every_container():
    node = fdl.Config(parts.by_position, 1)
    assert children(node) == [(0, 1, False), (1, 2, True), ("c", 3, True)]
    assert children(fdl.Config(parts.keywords, 1, z=2.0)) == [("a", 1, False), ("z", 2.0, False)]
    assert children({"a": 1, 2: 3}) == [("a", 1, False), (2, 3, False)]
    assert children((4, 5)) == [(0, 4, False), (1, 5, False)]
    assert children(parts.Constant(0.1)) == [("rate", 0.1, False)]
    assert children("text") == []


def test_nearest_is_ordered_and_blind_to_case():
    known = ["learning_rate", "learning_rates", "b2", "Steps"]
    assert nearest("learning_rat", known) == ["learning_rate", "learning_rates"]
    assert nearest("steps", known) == ["Steps"]
    assert nearest("zzz", known) == []


def test_nearest_paths_name_fields_instead_of_a_node(graph):
    assert nearest_paths(graph, "optimzer.learning_rate") == ["optimizer.learning_rate"]
    found = nearest_paths(graph, "optimzer.learning_rate", leaves=True)
    assert found[0] == "optimizer.learning_rate.peak"


def test_what_is_hardly_alike_is_offered_only_where_it_was_looked_for(graph):
    """A field of the same node at 0.6; elsewhere in the graph that would be a guess."""
    assert nearest_paths(graph, "optimizer.b1x5") == ["optimizer.b1"]
    assert nearest_paths(graph, "rules.bim") == []
    with pytest.raises(UnknownReference) as refused:
        find(graph, "rules.bim")
    assert "rules has parameters" in str(refused.value)


def test_the_facade_means_the_function(graph):
    assert dict(luthier_graph.paths(graph))["steps"] == 1000


@pytest.mark.parametrize("key", ["[090]", "['a\\']", "['a\nb']", "['\\x']", "['\0']"])
def test_keys_that_cannot_be_read(key):
    with pytest.raises(UnknownReference, match="is neither an index nor text"):
        parse_path(f"a{key}")


def test_escapes_in_keys_warn_of_nothing():
    assert parse_path(r"a['\d']") == ("a", r"\d")
