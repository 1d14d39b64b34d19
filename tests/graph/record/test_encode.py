from __future__ import annotations

import functools
import importlib
import json
import sys

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_toys import parts, recorded

from luthier import graph as graphs
from luthier.errors import RecordError
from luthier.graph import add, apply
from luthier.graph.record import to_json

LAYER = {"config": "graph_toys.parts.Layer", "arguments": {}}

LONG = "x" * 40
RECORD = """\
{
 "format": "luthier.graph",
 "version": 1,
 "graph": {
  "config": "graph_toys.recorded.Part",
  "tags": {"size": ["graph_toys.recorded.Tagged"]},
  "arguments": {
   "size": {
    "id": 1,
    "config": "luthier.graph.values.constant",
    "arguments": {"value": 256, "name": "dim"}
   },
   "rate": {
    "config": "luthier.graph.values.total",
    "arguments": {"left": {"ref": 1}, "right": "%s"}
   },
   "other": {
    "dict": {
     "a": {"id": 2, "partial": "graph_toys.parts.Layer", "arguments": {"dropout": 0.5}},
     "b": {"tuple": [{"ref": 2}, {"name": "jax.nn.gelu"}, {"float": "inf"}]},
     "c": {"factory": "graph_toys.parts.Layer", "arguments": {}}
    }
   }
  }
 }
}
"""


def _written(value):
    graph = fdl.Config(recorded.Part, size=value)
    return json.loads(to_json(graph))["graph"]["arguments"]["size"]


def _problems(graph):
    with pytest.raises(RecordError) as caught:
        to_json(graph)
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_the_text_of_a_record():
    dim = graphs.value(256, name="dim")
    layer = fdl.Partial(parts.Layer, dropout=0.5)
    graph = fdl.Config(recorded.Part, rate=add(dim, LONG), size=dim)
    fdl.add_tag(graph, "size", recorded.Tagged)
    graph.other = {
        "a": layer,
        "b": (layer, jax.nn.gelu, float("inf")),
        "c": fdl.ArgFactory(parts.Layer),
    }
    assert to_json(graph) == RECORD % LONG


def test_the_order_of_sets_does_not_show():
    a, b = fdl.Config(recorded.keywords, z=1), fdl.Config(recorded.keywords, a=2)
    a.a, b.z = 2, 1
    assert to_json(a) == to_json(b)


def test_containers():
    assert _written([1, (2,)]) == [1, {"tuple": [2]}]
    assert _written({"a": [1]}) == {"dict": {"a": [1]}}
    assert _written({1: 2, (3,): 4}) == {"dict": [[1, 2], [{"tuple": [3]}, 4]]}
    assert _written({2, 1}) == {"set": [1, 2]}
    assert _written(frozenset("b")) == {"frozenset": ["b"]}
    fields = {"left": 1, "right": []}
    assert _written(recorded.Pair(1, [])) == {
        "namedtuple": "graph_toys.recorded.Pair",
        "fields": fields,
    }
    assert _written(recorded.Point(1)) == {
        "instance": "graph_toys.recorded.Point",
        "fields": {"x": 1, "y": 0},
    }


def test_only_what_is_shared_has_an_id():
    layer, listed, point = fdl.Config(parts.Layer), [1], recorded.Point(1)
    assert _written([layer, fdl.Config(parts.Layer)]) == [LAYER, LAYER]
    assert _written([layer, layer]) == [{"id": 1, **LAYER}, {"ref": 1}]
    assert _written([listed, listed]) == [{"id": 1, "list": [1]}, {"ref": 1}]
    assert _written([point, point])[1] == {"ref": 1}
    same = (1, 2)
    assert _written([same, same]) == [{"tuple": [1, 2]}] * 2
    assert _written([jax.nn.gelu, jax.nn.gelu]) == [{"name": "jax.nn.gelu"}] * 2


def test_ids_follow_the_order_of_first_visits():
    inner = fdl.Config(parts.Layer)
    outer = fdl.Config(recorded.Part, size=inner)
    written = _written([outer, inner, outer])
    assert written[0]["id"] == 1
    assert written[0]["arguments"]["size"]["id"] == 2
    assert written[1:] == [{"ref": 2}, {"ref": 1}]


def test_all_that_cannot_be_written_is_reported_at_once():
    graph = parts.experiment()
    graph.extra = [lambda: 0, np.zeros(3), {"k": jnp.zeros(2)}, object(), sys]
    graph.callback = jax.nn.initializers.he_normal()
    graph.note = functools.partial(parts.relu, 1)
    graph.optimizer.learning_rate = fdl.Config(parts.chain, 1, 2)
    problems = _problems(graph)
    messages = {
        "extra[0]": "lambda",
        "extra[1]": "array of float64[3]",
        "extra[2].k": "array of float32[2]",
        "extra[3]": "fdl.Config",
        "extra[4]": "module sys",
        "callback": "local to a function",
        "note": "use fdl.Partial(graph_toys.parts.relu, ...)",
        "optimizer.learning_rate": "without names",
    }
    assert set(problems) == set(messages)
    for path, text in messages.items():
        assert text in problems[path], problems[path]
        assert ";" in problems[path], "a remedy"


def test_the_origin_of_what_cannot_be_written_is_reported():
    graph = parts.experiment()
    graph.extra = lambda: 0
    assert "test_encode.py" in _problems(graph)["extra"]
    assert to_json(apply(graph, ["extra=1"]))


@pytest.mark.parametrize("name", ["configs.lm.quickstart.experiment", "sweeps.architecture.study"])
def test_functions_in_folders_of_experiments_are_refused(name):
    module, _, function = name.rpartition(".")
    node = fdl.Config(getattr(importlib.import_module(module), function))
    assert f"{name} is in a folder of experiments" in _problems(node)[""]


def test_a_cycle_is_reported():
    graph = fdl.Config(recorded.Part)
    graph.other = [graph]
    assert "cycle" in _problems(graph)["other[0]"]


def test_other_nodes_of_fiddle_are_refused():
    class Other(fdl.Config):
        pass

    assert "type Other" in _problems(fdl.Config(recorded.Part, size=Other(parts.Layer)))["size"]
