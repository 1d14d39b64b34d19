from __future__ import annotations

import json

import fiddle as fdl
from graph_toys import parts, recorded

from luthier.graph import apply, values
from luthier.graph.record import history


def test_every_set_is_told_in_order():
    graph = apply(
        parts.experiment(), ["optimizer.b2=0.5", "optimizer.b2=0.7", "reset:optimizer.b2"]
    )
    first, second, third, last = history(graph)["optimizer.b2"]
    assert first["value"] == 0.99
    assert "graph_toys/parts.py:" in first["origin"]
    assert second == {"value": 0.5, "origin": "argument 1: optimizer.b2=0.5"}
    assert third == {"value": 0.7, "origin": "argument 2: optimizer.b2=0.7"}
    assert last["reset"] is True
    assert "value" not in last


def test_sets_inside_of_containers_are_told():
    graph = apply(
        parts.experiment(), ["model.layers[1].hidden=5", "evaluations.held_out.data.length=3"]
    )
    found = history(graph)
    assert found["model.layers[1].hidden"][-1]["value"] == 5
    assert found["evaluations.held_out.data.length"][-1]["value"] == 3


def test_a_constant_is_told_at_its_users():
    dim = values.value(4, name="dim")
    graph = fdl.Config(recorded.Part, rate=values.multiply(dim, 2), size=dim, other=[{"k": dim}])
    changed = apply(graph, ["size=5"])
    found = history(changed)
    for path in ("size", "other[0].k"):
        assert found[path][0]["value"] == 4
        assert found[path][-1] == {"value": 5, "origin": "argument 1: size=5"}
    assert [entry["value"] for entry in found["size"]] == [4, "dim", 5]
    assert found["rate"][0]["value"] == "dim * 2"
    assert not any(path.startswith("rate.") for path in found)


def test_nodes_are_told_by_their_class_and_all_is_json():
    found = history(parts.experiment())
    assert found["optimizer"][0]["value"] == "graph_toys.parts.Optimizer"
    assert found["model.layers"][0]["value"][0]["class"] == "graph_toys.parts.Mlp"
    json.dumps(history(recorded.everything()))
