from __future__ import annotations

import json

import pytest
from graph_toys import compared, parts

from luthier.errors import RecordError
from luthier.graph import apply, compare, history_record, to_dict, to_json


def test_fingerprints_tell_sharing_and_not_the_order_of_keys():
    a, b = compared.tie()
    assert compare.document(a).fingerprint != compare.document(b).fingerprint
    assert compare.document(b).fingerprint == compare.read(to_json(b)).fingerprint
    one, other = ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    first, second = (compare.document(compared.part(other=value)) for value in (one, other))
    assert first.fingerprint == second.fingerprint


def test_origins_of_a_record():
    graph = apply(parts.experiment(), ["model.layers[2].hidden=3", "optimizer.b2=0.5"])
    history = json.dumps(history_record(graph))
    document = compare.read(to_json(graph), history=history)
    for path in ("model.layers[0].hidden", "model.layers[2].hidden"):
        assert document.origin(path) == "argument 1: model.layers[2].hidden=3"
    assert document.origin("optimizer.b2") == "argument 2: optimizer.b2=0.5"
    assert document.origin("optimizer.b1") == ""
    assert document.origin("what.is.this") == ""
    assert compare.read(to_json(graph)).origin("optimizer.b2") == ""
    assert compare.document(graph).origin("optimizer.b2") == "argument 2: optimizer.b2=0.5"


def test_damaged_side_files():
    text = to_json(parts.experiment())
    for history in ("{}", "[]", '{"format": "luthier.history", "version": 1, "sets": 3}'):
        assert compare.read(text, history=history).origin("optimizer.b2") == ""
    odd = {"format": "luthier.history", "version": 1, "sets": {"optimizer.b2": [3], "steps": 1}}
    assert compare.read(text, history=json.dumps(odd)).origin("optimizer.b2") == ""
    with pytest.raises(RecordError) as raised:
        compare.read(text, "run", history="{")
    assert str(raised.value) == "the config.history.json beside run is not readable as JSON"
    with pytest.raises(RecordError) as raised:
        compare.read(text, "run", values="{")
    assert str(raised.value) == "the config.values.json beside run is not readable as JSON"
    assert compare.read(text, values='{"model": [1, {"x": 2}], "optimizer": 3}').root is not None


def test_the_defaults_of_a_record_are_those_of_its_run():
    graph = parts.experiment()
    document = compare.read(to_json(graph), values=json.dumps(to_dict(graph)))
    optimizer = document.root.by_part["optimizer"]
    found = document.defaults(optimizer)
    assert {name: node.data for name, node in found.items()} == {"b1": 0.9, "nesterov": False}
    unknown = compare.read(to_json(graph))
    assert unknown.defaults(unknown.root) is None
