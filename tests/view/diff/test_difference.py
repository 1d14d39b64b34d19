from __future__ import annotations

import json
import re

import luthier
from luthier import graph as graphs
from luthier.graph import compare
from luthier.view.diff import page
from tests.view.diff import comparisons


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
    assert str(luthier.diff(record, graph)) == "- recorded\n+ quickstart\nnothing differs"


def test_configs_are_headed_by_their_names_where_these_differ():
    graph = graphs.resolve("configs.lm.quickstart")
    waves = graphs.apply(graph, ["name=waves"])
    assert str(luthier.diff(waves, graph)).splitlines()[:2] == ["- waves", "+ quickstart"]
    found = luthier.diff(waves, "configs.lm.quickstart")
    assert str(found).splitlines()[:2] == ["- waves", "+ configs.lm.quickstart"]
    found = luthier.diff(graph, graphs.apply(graph, ["seed=1"]))
    assert str(found).splitlines()[:2] == ["- the first", "+ the second"]
    parts = luthier.diff(waves.optimizer, graph.optimizer)
    assert str(parts).splitlines()[:2] == ["- the first", "+ the second"]


def _data(text):
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(inside)


def test_the_page_holds_the_whole_comparison():
    comparison, effects = comparisons.small(), comparisons.effects()
    text = page.render(comparison, effects)
    assert _data(text) == {"comparison": comparison, "effects": effects}
    assert "<title>configs.lm.quickstart → runs/quickstart/0123</title>" in text


def test_effects_are_not_needed():
    assert _data(page.render(comparisons.small()))["effects"] is None


def test_a_page_is_small():
    text = page.render(comparisons.comparison([], []))
    assert len(text) < 100_000
