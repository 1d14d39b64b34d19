from __future__ import annotations

import json

import pytest

from luthier import graph as graphs
from luthier.cli.operands import Record, of_graph, of_record
from luthier.errors import RecordError


def test_a_graph_is_made_once(tiny):
    made = []
    operand = of_graph("a", lambda: made.append(1) or tiny, detail="b")
    assert operand.load() is tiny
    assert made == [1]
    assert (operand.document.side.title, operand.document.side.detail) == ("a", "b")
    assert not operand.is_recorded


def test_a_record_is_built_only_where_that_is_asked(tiny):
    graph = graphs.apply(tiny, ["seed=3"])
    history = json.dumps(graphs.history_record(graph))
    operand = of_record("x", Record(graphs.to_json(graph), history, run="tiny/1"), state="done")
    assert operand.is_recorded
    assert operand.state == "done"
    assert operand.document.origin("seed") == "argument 1: seed=3"
    loaded = operand.load()
    assert graphs.equal(loaded, graph)
    assert graphs.explain(loaded, "seed").causes[-1].run == "tiny/1"


def test_what_a_record_names_is_not_imported(tiny):
    text = graphs.to_json(tiny).replace("luthier.models.Decoder", "module_that_is_not_there.X")
    operand = of_record("x", Record(text))
    assert operand.document.root.by_part["model"].name == "module_that_is_not_there.X"
    with pytest.raises(RecordError, match="module_that_is_not_there"):
        operand.load()
