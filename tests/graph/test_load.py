from __future__ import annotations

import json

import fiddle as fdl
import hypothesis
import numpy as np
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import (
    copy_graph,
    equal,
    evaluate,
    fingerprint,
    from_json,
    multiply,
    origin_of,
    value,
)
from luthier.graph.record import to_json

PACKAGES = ["graph_toys"]


def _round_trip(graph):
    return from_json(to_json(graph), PACKAGES)


def _problems(text):
    with pytest.raises(RecordError) as caught:
        from_json(text, PACKAGES)
    problems = caught.value.problems
    assert len(str(caught.value).splitlines()) == len(problems)
    return [str(problem) for problem in problems]


def _of(node):
    return json.dumps({"format": "luthier.graph", "version": 1, "graph": node})


@pytest.mark.parametrize("make", [recorded.everything, parts.experiment])
def test_a_record_rebuilds_an_equal_graph(make):
    graph = make()
    loaded = _round_trip(graph)
    assert equal(loaded, graph)
    assert to_json(loaded) == to_json(graph)
    assert fingerprint(loaded) == fingerprint(graph)


def test_fiddle_finds_them_equal_too():
    graph = parts.experiment()
    assert _round_trip(graph) == graph
    shared = [recorded.Point(1), {1, 2}]
    graph = fdl.Config(recorded.Part, size=shared, rate=(shared, shared[0]), other=[shared[1]])
    loaded = _round_trip(graph)
    assert loaded == graph
    assert loaded.size is loaded.rate[0]
    assert loaded.size[0] is loaded.rate[1]


def test_tags_come_back_exactly():
    graph = parts.experiment()
    graph.optimizer.learning_rate.__argument_tags__["total_steps"].add(parts.DropoutTag)
    loaded = _round_trip(graph)
    assert fdl.get_tags(loaded.optimizer.learning_rate, "total_steps") == {parts.DropoutTag}
    assert fdl.get_tags(loaded.optimizer.learning_rate, "peak") == {parts.Rate}


def test_a_tagged_value_in_a_list_comes_back():
    graph = fdl.Config(recorded.Part, size=[parts.Rate.new(3), parts.Rate.new()])
    loaded = _round_trip(graph)
    assert equal(loaded, graph)
    assert fdl.build(loaded.size[0]) == 3


def test_the_origin_of_a_loaded_value_is_the_file():
    loaded = from_json(to_json(parts.experiment()), PACKAGES, source="runs/x/config.json")
    assert origin_of(loaded, "optimizer.b2") == "runs/x/config.json"


@pytest.mark.full
@SETTINGS
@hypothesis.given(graphs())
def test_random_graphs_round_trip(graph):
    loaded = _round_trip(graph)
    assert equal(loaded, graph)
    assert to_json(loaded) == to_json(graph)
    assert fingerprint(loaded) == fingerprint(graph)
    assert fingerprint(loaded, "program") == fingerprint(graph, "program")


@pytest.mark.full
@SETTINGS
@hypothesis.given(graphs(), graphs())
def test_random_graphs_are_equal_exactly_when_their_fingerprints_are(a, b):
    assert equal(a, b) == (fingerprint(a) == fingerprint(b))
    assert equal(a, copy_graph(a))


def test_equality_looks_at_sharing_tags_types_and_what_is_set():
    def graph(**given):
        return fdl.Config(recorded.Part, **given)

    layer = fdl.Config(parts.Layer)
    different = [
        (graph(size=layer, rate=layer), graph(size=layer, rate=copy_graph(layer))),
        (graph(size=layer, rate=copy_graph(layer)), graph(size=layer, rate=layer)),
        (graph(size=3), graph()),
        (graph(size=1), graph(size=1.0)),
        (graph(size=1), graph(size=True)),
        (graph(size=[1]), graph(size=(1,))),
        (graph(size=0.0), graph(size=np.float64(0.0))),
        (graph(size=parts.relu), graph(size=parts.gelu)),
        (graph(size=layer), graph(size=fdl.cast(fdl.Partial, layer))),
        (graph(size={"a": 1}), graph(size={"a": 1, "b": 2})),
        (graph(size=np.zeros(2)), graph(size=np.zeros(2))),
    ]
    for a, b in different:
        assert not equal(a, b), (a, b)
        assert not equal(b, a), (a, b)
    tagged = graph(size=3)
    fdl.add_tag(tagged, "size", recorded.Tagged)
    assert not equal(tagged, graph(size=3))
    assert equal(graph(size=float("nan")), graph(size=float("nan")))
    assert equal(graph(size=(1, 2), rate=(1, 2)), graph(size=(1, 2), rate=(*[1, 2],)))


def test_a_record_that_is_no_record():
    for text in (
        "",
        "{",
        "[1, 2",
        "\x00",
        '{"a": 1}',
        "[]",
        "null",
        '{"a": 1, "a": 2}',
        "[" * 99999,
    ):
        (problem,) = _problems(text)
        assert "config.json" in problem
    assert "line 1, column" in _problems("{")[0]
    assert "twice" in _problems('{"a": 1, "a": 2}')[0]
    assert "NaN" in _problems('{"format": "luthier.graph", "version": 1, "graph": NaN}')[0]


def test_a_record_that_is_nested_too_deeply_is_refused():
    # Too deep for every Python: since 3.12 a comprehension takes no frame of its own, and up to
    # 3.11 the JSON parser refuses it first.
    nested = "[" * 3000 + "]" * 3000
    (problem,) = _problems(f'{{"format": "luthier.graph", "version": 1, "graph": {nested}}}')
    assert problem.startswith("config.json is ")
    assert problem.endswith("nested too deeply")


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_other_versions_are_refused(version):
    text = json.dumps({"format": "luthier.graph", "version": version, "graph": 1})
    assert "version" in _problems(text)[0]


def test_argument_names_are_checked():
    node = {"config": "graph_toys.parts.Optimizer", "arguments": {"b3": 1, "learning_rat": 2}}
    first, second = _problems(_of(node))
    assert first.startswith("b3: graph_toys.parts.Optimizer takes no argument 'b3'")
    assert "did you mean learning_rate" in second


def test_all_problems_are_reported_at_once():
    node = {
        "config": "graph_toys.parts.Experiment",
        "arguments": {
            "model": {"config": "os.system", "arguments": {"command": "true"}},
            "data": [{"config": "graph_toys.parts.Sourc", "arguments": {}}, {"ref": 7}],
            "extra": {"name": "builtins.eval"},
            "callback": {"strange": 1},
            "name": {"float": "much"},
            "seed": {"enum": "graph_toys.parts.Kind", "member": "SLOW"},
            "note": {"config": "jax.numpy.inf", "arguments": {}},
        },
    }
    problems = _problems(_of(node))
    paths = [problem.split(":")[0] for problem in problems]
    assert sorted(paths) == sorted(
        ["model", "data[0]", "data[1]", "extra", "callback", "name", "seed", "note"]
    )
    assert any("did you mean graph_toys.parts.Source" in problem for problem in problems)
    assert any("it has FAST, EXACT, NONE" in problem for problem in problems)


@pytest.mark.parametrize(
    "node",
    [
        {"config": "graph_toys.parts.Layer", "arguments": 3},
        {"config": "graph_toys.parts.Layer", "arguments": {}, "tags": {"dim": ["os.path"]}},
        {"config": "graph_toys.parts.Layer", "arguments": {}, "tags": {"dim": ["builtins.int"]}},
        {"config": 3, "arguments": {}},
        {"config": ["a"], "arguments": {}},
        {"name": 3},
        {"tuple": 3},
        {"set": [[1]]},
        {"dict": [[[1], 2]]},
        {"dict": 3},
        {"instance": "graph_toys.parts.relu", "fields": {}},
        {"instance": "graph_toys.recorded.Point", "fields": {"z": 1}},
        {"instance": "graph_toys.recorded.Point", "fields": {}},
        {"path": "x"},
        {"path": "x", "kind": "os"},
        {"bytes": "zz"},
        {"dtype": "float31"},
        {"partition_spec": 3},
        {"range": ["a"]},
        {"ref": [1]},
        {"enum": "graph_toys.parts.Layer", "member": "x"},
    ],
)
def test_damaged_nodes_are_one_line(node):
    assert len(_problems(_of({"tuple": [node]}))) == 1


@pytest.mark.parametrize(
    "name", ["os.system", "jax._src.xla_bridge.os.system", "builtins.eval", "subprocess.Popen"]
)
@pytest.mark.parametrize("form", ["config", "partial", "factory", "name", "enum", "instance"])
def test_a_record_cannot_name_what_is_off_the_list(name, form):
    (problem,) = _problems(_of([{form: name, "arguments": {}, "fields": {}, "member": "x"}]))
    assert "may not be imported" in problem or "is private" in problem


def test_value_nodes_stay_live_and_shared():
    dim = value(4, name="dim")
    graph = fdl.Config(recorded.Part, size=dim, rate=multiply(dim, 4))
    loaded = _round_trip(graph)
    assert loaded.size is loaded.rate.left
    loaded.size.value = 5
    assert evaluate(loaded.rate) == 20
