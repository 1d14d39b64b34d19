from __future__ import annotations

import luthier
from luthier import graph as graphs
from luthier.graph import compare


def test_two_graphs_are_one_call():
    graph = graphs.resolve("configs.lm.quickstart")
    found = luthier.diff(graph, graphs.apply(graph, ["optimizer.b2=0.95", "seed=1"]))
    assert bool(found)
    assert len(found) == 2
    assert [change.path for change in found] == ["seed", "optimizer.b2"]
    assert str(found).splitlines()[2:] == [
        "2 changes: 2 changed",
        "├── ~ seed: 0 -> 1 (+1)",
        "└── ~ optimizer.b2: 0.98 -> 0.95 (x0.969)",
    ]
    assert [change["path"] for change in found.as_json()["changes"]] == ["seed", "optimizer.b2"]
    assert found.as_html().lstrip().startswith("<!")


def test_a_record_may_be_one_of_the_two():
    graph = graphs.resolve("configs.lm.quickstart")
    record = compare.read(graphs.to_json(graph), "recorded")
    assert not luthier.diff(record, graph)
    assert str(luthier.diff(record, graph)) == "- recorded\n+ the second\nnothing differs"
