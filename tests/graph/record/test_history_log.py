from __future__ import annotations

import json

import fiddle as fdl
import pytest
from graph_toys import parts, recorded

from luthier.graph import apply, copy_graph, from_json, multiply, resolve, to_json, value
from luthier.graph.record import history, history_record, restore_history

TOYS = ("graph_toys",)
EXPERIMENTS = ("lm.quickstart", "lm.families:gemma", "lm.bpe", "seq2seq.translation", "series.ucr")


def test_every_set_is_listed_in_order():
    graph = apply(
        parts.experiment(), ["optimizer.b2=0.5", "optimizer.b2=0.7", "reset:optimizer.b2"]
    )
    found = history(graph)["optimizer.b2"]
    first, second, third, last = ({**entry, "order": 0} for entry in found)
    assert first["value"] == 0.99
    assert "graph_toys/parts.py:" in first["origin"]
    assert second == {"value": 0.5, "origin": "argument 1: optimizer.b2=0.5", "order": 0}
    assert third == {"value": 0.7, "origin": "argument 2: optimizer.b2=0.7", "order": 0}
    assert last["reset"] is True
    assert "value" not in last
    assert [entry["order"] for entry in found] == sorted({entry["order"] for entry in found})


def test_sets_inside_of_containers_are_listed():
    graph = apply(
        parts.experiment(), ["model.layers[1].hidden=5", "evaluations.held_out.data.length=3"]
    )
    found = history(graph)
    assert found["model.layers[1].hidden"][-1]["value"] == 5
    assert found["evaluations.held_out.data.length"][-1]["value"] == 3


def test_a_constant_is_listed_at_its_users():
    dim = value(4, name="dim")
    graph = fdl.Config(recorded.Part, rate=multiply(dim, 2), size=dim, other=[{"k": dim}])
    changed = apply(graph, ["size=5"])
    found = history(changed)
    for path in ("size", "other[0].k"):
        assert found[path][0]["value"] == 4
        assert found[path][-1]["value"] == 5
        assert found[path][-1]["origin"] == "argument 1: size=5"
    texts = [entry.get("value", entry.get("expression")) for entry in found["size"]]
    assert texts == [4, "dim", 5]
    assert found["rate"][0]["expression"] == "dim * 2"
    assert not any(path.startswith("rate.") for path in found)


def test_a_constant_that_has_no_place_of_its_own_is_listed_inside_of_the_arithmetic():
    graph = fdl.Config(recorded.Part, rate=multiply(value(4, name="dim"), 2))
    assert history(graph)["rate.left.value"][0]["value"] == 4


def test_nodes_are_listed_by_their_class_and_all_is_json():
    found = history(parts.experiment())
    assert found["optimizer"][0]["node"] == "graph_toys.parts.Optimizer"
    assert found["model.layers"][0]["value"][0]["class"] == "graph_toys.parts.Mlp"
    json.dumps(history(recorded.everything()))


def test_callers_of_a_recipe_are_listed():
    (entry,) = history(resolve("configs.vision.digits"))["model.dim"]
    assert entry["origin"].startswith("framework/luthier/recipes/encoders/vit.py:")
    assert [line.split(":")[0] for line in entry["from"]] == ["configs/vision/digits.py"]


def _reread(graph, run=""):
    record = json.loads(json.dumps(history_record(graph)))
    read = from_json(to_json(graph), TOYS)
    assert restore_history(read, record, run)
    return read


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_record_gives_the_history_back(name):
    words = ["training.steps=10", "any:b2=0.9", "reset:optimizer.b1", "any:every.count=7"]
    graph = apply(resolve(f"configs.{name}"), words)
    assert history(_reread(graph)) == history(graph)


def test_a_class_that_changed_in_place_is_listed_from_a_record_too():
    graph = parts.experiment()
    fdl.update_callable(graph.optimizer, recorded.Part, drop_invalid_args=True)
    recorded_sets = [(entry["node"], entry["origin"]) for entry in history(graph)["optimizer"]]
    assert recorded_sets[-1][0] == "graph_toys.recorded.Part"
    again = history(_reread(graph))["optimizer"]
    assert [(entry["node"], entry["origin"]) for entry in again] == recorded_sets


def test_what_is_set_later_comes_after_what_was_recorded():
    graph = apply(parts.experiment(), ["optimizer.b2=0.5"])
    read = apply(_reread(graph, "toys/1"), ["optimizer.b2=0.6"])
    base, before, now = history(read)["optimizer.b2"]
    assert (base["run"], before["run"]) == ("toys/1", "toys/1")
    assert before["origin"] == "argument 1: optimizer.b2=0.5"
    assert (now["value"], now["origin"]) == (0.6, "argument 1: optimizer.b2=0.6")
    assert "run" not in now


def test_a_set_keeps_the_run_in_which_it_was_first_recorded():
    graph = _reread(apply(parts.experiment(), ["optimizer.b2=0.5"]), "toys/1")
    again = _reread(apply(graph, ["optimizer.b2=0.6"]), "toys/2")
    assert [entry["run"] for entry in history(again)["optimizer.b2"]] == [
        "toys/1",
        "toys/1",
        "toys/2",
    ]


@pytest.mark.parametrize(
    "record",
    [
        {},
        [],
        {"format": "luthier.history", "version": 2, "sets": {}},
        {"format": "luthier.history", "version": 1, "sets": []},
        {"format": "luthier.history", "version": 1, "sets": {"name": [{"value": 1}]}},
        {"format": "luthier.history", "version": 1, "sets": {"name": ["x"]}},
    ],
)
def test_what_is_no_history_is_not_restored(record):
    graph = from_json(to_json(parts.experiment()), TOYS)
    before = history(graph)
    assert not restore_history(graph, record)
    assert history(graph) == before


def test_paths_that_are_gone_are_left_out():
    graph = copy_graph(parts.experiment())
    record = history_record(graph)
    record["sets"]["model.gone.for_good"] = [{"value": 1, "origin": "x", "order": 0}]
    read = from_json(to_json(graph), TOYS)
    assert restore_history(read, record)
    assert "model.gone.for_good" not in history(read)
