from __future__ import annotations

import math

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import compared, parts, recorded
from graph_toys.random_pairs import pairs

from luthier import graph as graphs
from luthier.graph import apply, compare, equal, values
from luthier.graph.paths import format_path, parse_path, walk

SETTINGS = hypothesis.settings(
    deadline=None, suppress_health_check=list(hypothesis.HealthCheck), max_examples=100
)


def overrides_between(a, b):
    return compare.overrides_of(compare.compare(compare.document(a), compare.document(b)))


def check(a, b):
    """Return whether overrides turn `a` into `b`, apart from the changes that they omit.

    Whatever differs after them is at, in or around a path that is omitted, or no longer shared with
    such a place.
    """
    found = overrides_between(a, b)
    made = apply(a, found.overrides)
    if not found.omitted:
        assert equal(made, b), found
    assert all(one.reason for one in found.omitted)
    # What is omitted may be shared in either graph: with a new alias, it is at the alias as well.
    named = [path for one in found.omitted for g in (a, made) for path in _places(g, one.path)]
    comparison = compare.compare(compare.document(made), compare.document(b))
    for draft in comparison.differ.drafts:
        ends = (draft.path_a, draft.path_b, draft.more.get("same_as"))
        paths = [parse_path(path) for path in ends if path]
        assert any(
            path[: len(omitted)] == omitted or omitted[: len(path)] == path
            for path in paths or [()]
            for omitted in named
        ), (draft.kind, ends, found.overrides, found.omitted)
    return not found.omitted and bool(found.overrides)


def _places(graph, path):
    """Yield all paths of a place, as parts; it is in a node that may have several."""
    parts = parse_path(path) if path else ()
    yield parts
    held = {place.path: place.value for place in walk(graph, defaults=False)}
    for end in range(1, len(parts) + 1):
        value = held.get(format_path(parts[:end]))
        if isinstance(value, fdl.Buildable | list | dict):
            others = [parse_path(other) for other, each in held.items() if each is value]
            yield from ((*other, *parts[end:]) for other in others)


@SETTINGS
@hypothesis.given(pairs())
def test_overrides_make_what_they_claim(pair):
    check(*pair)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=2000)
@hypothesis.given(pairs())
def test_2000_times_overrides_make_what_they_claim(pair):
    check(*pair)


def test_a_shared_node_whose_first_place_goes_is_followed_to_its_other_place():
    shared = compared.part()
    a = compared.part(size=[shared], rate=shared)
    b = compared.part(size=[], rate=compared.part(shape=[]))
    # The default of `shape` is a tuple, so no override makes it a list.
    assert not check(a, b)


def test_a_tag_that_is_omitted_is_missing_at_a_new_alias_as_well():
    tagged = compared.part(size=0)
    fdl.add_tag(tagged, "size", recorded.Tagged)
    a = compared.part(size={"a": None}, rate=compared.part(size=0))
    b = compared.part(size={"a": tagged}, rate=tagged)
    assert not check(a, b)
    found = overrides_between(a, b)
    assert len(found.overrides) == 1
    assert "alias:" in found.overrides[0]
    assert [one.reason for one in found.omitted] == ["the override grammar cannot set tags"]


def test_overrides_are_reproduced():
    a = parts.experiment()
    overrides = [
        *("optimizer.b2=0.5", "steps=7", "name='it is'", "model.layers[0].hidden=3"),
        *("kind=graph_toys.parts.Kind.EXACT", "note='None'"),
        *("evaluations.held_out.every.count=4", "reset:evaluations['long text']"),
        "optimizer.learning_rate:=config:graph_toys.parts.Constant(rate=0.1)",
        *("model.layers[1]:=alias:model.layers[0]", "extra=1e999"),
    ]
    for override in overrides:
        b = apply(a, [override])
        found = overrides_between(a, b)
        assert (found.overrides, found.omitted) == ((override,), ()), override


def test_a_new_shared_value_is_set_as_a_value_and_its_lost_sharing_is_reported():
    a, b = parts.experiment(), parts.experiment()
    b.data.length = b.evaluations["held_out"].data.length = values.value(32, name="length")
    b.seed = values.multiply(values.value(3, name="factor"), 4)
    found = overrides_between(a, b)
    changed = graphs.apply(a, found.overrides)
    assert (changed.data.length, changed.evaluations["held_out"].data.length) == (32, 32)
    assert changed.seed == 12
    assert {one.path for one in found.omitted} == {
        "seed",
        "data.length",
        "evaluations.held_out.data.length",
    }
    assert all("sharing between several places" in one.reason for one in found.omitted)


def test_a_change_without_an_override_has_a_reason():
    a, b = parts.experiment(), parts.experiment()
    fdl.add_tag(b.model, "dim", parts.Rate)
    b.name = 3
    found = overrides_between(a, b)
    assert found.overrides == ()
    assert [(one.path, one.reason) for one in found.omitted] == [
        ("model.dim", "the override grammar cannot set tags"),
        ("name", "the grammar reads it as another value here"),
    ]


def test_a_comparison_leaves_its_graphs_alone():
    for make in compared.PAIRS:
        a, b = make()
        overrides_between(a, b)
        assert equal(a, make()[0])
        assert equal(b, make()[1])


def set_extra(value):
    """Return what `overrides_of` makes of an argument that is set to a value."""
    a, b = parts.experiment(), parts.experiment()
    b.extra = value
    comparison = compare.compare(compare.document(a), compare.document(b))
    return compare.overrides_of(comparison, ("graph_toys",))


@pytest.mark.parametrize(
    "value",
    [
        *(0, -7, 10**30, 1.5, -0.0, 1e-300, math.inf, -math.inf, math.nan, True, None),
        *("", "text", "it's", 'a"b', "a\nb", "$x", "None", "ref:x", "ü\udc80", (), (1,), [1, (2,)]),
        *({}, {"a": [1]}, {1: {"b c": None}}, parts.relu, recorded.Speed.FAST),
    ],
)
def test_the_override_of_a_value_is_read_back(value):
    found = set_extra(value)
    assert found.omitted == ()
    (override,) = found.overrides
    assert override.startswith("extra")
    assert repr(apply(parts.experiment(), [override]).extra) == repr(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1j, "the grammar cannot write a complex number"),
        (b"a", "the grammar cannot write bytes"),
        ({1}, "the grammar cannot write a set"),
        ({None: 1}, "only strings and integers can be keys in a value"),
        (recorded.Point(1), "the grammar cannot write an instance of a dataclass; only nodes"),
        (int, "a value may not name builtins.int here"),
    ],
)
def test_values_without_an_override(value, reason):
    found = set_extra(value)
    assert found.overrides == ()
    assert [(one.path, one.reason) for one in found.omitted] == [("extra", reason)]


@pytest.mark.parametrize("key", ["c d", "*", "x=1"])
def test_keys_that_the_grammar_would_read_as_something_else(key):
    a, b = parts.experiment(), parts.experiment()
    a.extra, b.extra = {key: 1}, {key: 2}
    found = overrides_between(a, b)
    if key == "c d":
        assert found.overrides == ("extra['c d']=2",)
        return
    assert found.overrides == ()
    (omitted,) = found.omitted
    assert omitted.reason == f"no override can begin with extra['{key}']"


def test_the_root_is_not_replaced():
    (omitted,) = overrides_between(*compared.another_root()).omitted
    assert omitted.reason == "no override replaces the whole config"


def test_a_list_of_several_places_is_set_at_each_of_them():
    held = [1, 2]
    a = compared.part(size={"k": held}, other=compared.part(size=held))
    b = compared.part(size={}, other=compared.part(size=[None, 1, 2]))
    assert check(a, b)
    held = [0, 1, 2]
    b = compared.part(size={"k": held}, other=compared.part(size=held))
    found = overrides_between(a, b)
    made = apply(a, found.overrides)
    assert (made.size, made.other.size) == ({"k": [0, 1, 2]}, [0, 1, 2])
    assert [one.path for one in found.omitted] == ["size.k", "other.size"]
    assert {one.reason for one in found.omitted} == {
        "the override sets the value only: its sharing between several places is lost"
    }


def test_a_list_that_holds_shared_nodes_is_set_as_copies_and_their_lost_sharing_is_reported():
    a, shared = compared.part(size=[1]), compared.mlp(hidden=3)
    b = compared.part(size=[1, shared, shared])
    comparison = compare.compare(compare.document(a), compare.document(b))
    found = compare.overrides_of(comparison, ("graph_toys",))
    made = apply(a, found.overrides, packages=("graph_toys",))
    assert made.size[1:] == [compared.mlp(hidden=3)] * 2
    assert made.size[1] is not made.size[2]
    assert [(one.path, "sharing" in one.reason) for one in found.omitted] == [("size", True)]
