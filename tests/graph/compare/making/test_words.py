from __future__ import annotations

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import compared, parts
from graph_toys.random_pairs import pairs

from luthier import graph as graphs
from luthier.graph import apply, compare, equal, values

SETTINGS = hypothesis.settings(
    deadline=None, suppress_health_check=list(hypothesis.HealthCheck), max_examples=100
)


def said(a, b):
    return compare.overrides_of(compare.compare(compare.document(a), compare.document(b)))


def check(a, b):
    """Say whether words make `b` of `a`; fail where they claim to and do not."""
    words = said(a, b)
    made = apply(a, words.all_words)
    if not words.unsayable:
        assert equal(made, b), words
    unsaid = [one for one in words.unsayable if not one.reason]
    assert unsaid == []
    return not words.unsayable and bool(words.all_words)


@SETTINGS
@hypothesis.given(pairs())
def test_words_make_what_they_claim(pair):
    check(*pair)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=2000)
@hypothesis.given(pairs())
def test_2000_times_words_make_what_they_claim(pair):
    check(*pair)


def test_a_shared_thing_whose_first_place_goes_is_followed_to_its_other_place():
    shared = compared.part()
    a = compared.part(size=[shared], rate=shared)
    b = compared.part(size=[], rate=compared.part(shape=[]))
    # The default of `shape` is a tuple, so no word makes it a list.
    assert not check(a, b)


def test_words_of_overrides_say_the_same():
    a = parts.experiment()
    words = [
        *("optimizer.b2=0.5", "steps=7", "name='it is'", "model.layers[0].hidden=3"),
        *("kind=graph_toys.parts.Kind.EXACT", "note='None'"),
        *("evaluations.held_out.every.count=4", "reset:evaluations['long text']"),
        "optimizer.learning_rate:=config:graph_toys.parts.Constant(rate=0.1)",
        *("model.layers[1]:=alias:model.layers[0]", "extra=1e999"),
    ]
    for word in words:
        b = apply(a, [word])
        found = said(a, b)
        assert (found.all_words, found.unsayable) == ((word,), ()), word


def test_a_new_shared_value_is_set_as_a_value_and_its_lost_sharing_is_reported():
    a, b = parts.experiment(), parts.experiment()
    b.data.length = b.evaluations["held_out"].data.length = values.value(32, name="length")
    b.seed = values.multiply(values.value(3, name="factor"), 4)
    found = said(a, b)
    changed = graphs.apply(a, found.all_words)
    assert (changed.data.length, changed.evaluations["held_out"].data.length) == (32, 32)
    assert changed.seed == 12
    assert {one.path for one in found.unsayable} == {
        "seed",
        "data.length",
        "evaluations.held_out.data.length",
    }
    assert all("several places share it" in one.reason for one in found.unsayable)


def test_what_has_no_word_says_why():
    a, b = parts.experiment(), parts.experiment()
    fdl.add_tag(b.model, "dim", parts.Rate)
    b.name = 3
    found = said(a, b)
    assert found.all_words == ()
    assert [(one.path, one.reason) for one in found.unsayable] == [
        ("model.dim", "the grammar has no word for tags"),
        ("name", "the grammar reads it as another value here"),
    ]


def test_a_comparison_leaves_its_graphs_alone():
    for make in compared.PAIRS:
        a, b = make()
        said(a, b)
        assert equal(a, make()[0])
        assert equal(b, make()[1])
