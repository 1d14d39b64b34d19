from __future__ import annotations

import collections

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier.durations import Steps
from luthier.errors import OverrideError, UnknownReference
from luthier.graph import apply, get, is_container, paths, set_value, value

Pair = collections.namedtuple("Pair", "a b")


@pytest.fixture
def graph():
    return parts.experiment()


@pytest.mark.parametrize(
    "path",
    [
        "steps",
        "optimizer.learning_rate.peak",
        "model.layers[1].hidden",
        "model.layers[1]",
        "evaluations['long text'].data.length",
        "evaluations.held_out",
        "rules.sizes[1]",
        "rules.parameters.embed",
        "rules.parameters.vocab[0]",
        "evaluations['long text'].every.count",
        "extra.a[0]",
        "extra['b c'].x.y[1]",
    ],
)
def test_a_set_is_read_back_and_changes_nothing_else(graph, path):
    graph.extra = {"a": [1, 2], "b c": Pair(1, 2)._replace(a=1)}
    if path.startswith("extra['b c']"):
        graph.extra = {"b c": {"x": {"y": (1, 2)}}}
    before = {p: v for p, v in _leaves(graph) if not p.startswith(path)}
    set_value(graph, path, 12345)
    assert get(graph, path) == 12345
    after = dict(_leaves(graph))
    assert before == {p: after[p] for p in before}


def _leaves(graph):
    return [(path, leaf) for path, leaf in paths(graph) if not is_container(leaf)]


def test_defaults_are_copied_before_they_change(graph):
    set_value(graph, "rules.parameters.embed", ("x",))
    set_value(graph, "evaluations['long text'].every.count", 7)
    other = parts.experiment()
    assert get(other, "rules.parameters.embed") == ("fsdp",)
    assert parts.Rules().parameters["embed"] == ("fsdp",)
    assert get(graph, "rules.parameters.vocab") == ("tensor",)
    assert graph.evaluations["long text"].every == fdl.Config(Steps, count=7)
    assert fdl.build(graph).rules.parameters["embed"] == ("x",)


def test_named_tuples_and_positions(graph):
    graph.extra = fdl.Config(dict, p=Pair(1, 2), q=fdl.Config(parts.by_position, 1))
    set_value(graph, "extra.p.b", 5)
    set_value(graph, "extra.q[1]", 6)
    assert graph.extra.p == Pair(1, 5)
    assert graph.extra.q[1] == 6


def test_a_constant_moves_all_its_users(graph):
    graph.model.dim = graph.extra = dim = value(8, name="dim")
    set_value(graph, "model.dim", 16)
    assert graph.extra is dim
    assert get(graph, "extra").value == 16
    replaced = apply(graph, ["model.dim:=3"])
    assert (replaced.model.dim, replaced.extra.value) == (3, 16)


def test_reset(graph):
    changed = apply(graph, ["reset:optimizer.b2"])
    assert get(changed, "optimizer.b2") == 0.999
    assert "b2" not in changed.optimizer.__arguments__
    again = apply(changed, ["reset:optimizer.b2", "reset:evaluations.held_out"])
    assert "b2" not in again.optimizer.__arguments__
    assert list(again.evaluations) == ["long text"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("name", "name: has no default to reset to"),
        ("model.layers[0]", "model.layers[0]: an element of a list has no default to reset to"),
        ("nme", "nme: does not exist; did you mean name?"),
    ],
)
def test_what_cannot_be_reset(graph, path, message):
    with pytest.raises(OverrideError) as caught:
        apply(graph, [f"reset:{path}"])
    without_origin = str(caught.value).replace(f" [set by argument 1: reset:{path}]", "")
    assert without_origin.startswith(message)


def test_new_keys_only_on_request(graph):
    with pytest.raises(OverrideError, match="does not exist"):
        apply(graph, ["evaluations.new=1"])
    assert apply(graph, ["evaluations.new:=Evaluation()"]).evaluations["new"] is not None
    with pytest.raises(OverrideError, match="does not exist"):
        apply(graph, ["optimizer.new:=1"])


def test_the_graph_itself_cannot_be_replaced(graph):
    with pytest.raises(UnknownReference, match=r"^the graph itself cannot be replaced$"):
        set_value(graph, "", 3)
    with pytest.raises(OverrideError, match=r"^the graph itself cannot be replaced"):
        apply(graph, [("", 3)])
    assert graph == parts.experiment()
