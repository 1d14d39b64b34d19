from __future__ import annotations

import json

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
from graph_toys import parts, recorded

from luthier.graph import add, multiply, value
from luthier.graph.record import plain_leaf, to_dict


def test_nested_values_under_the_names_of_their_classes():
    found = to_dict(parts.experiment(), defaults=False)
    assert found["class"] == "graph_toys.parts.Experiment"
    assert found["optimizer"] == {
        "class": "graph_toys.parts.Optimizer",
        "learning_rate": {"class": "graph_toys.parts.Cosine", "peak": 0.001, "total_steps": 1000},
        "b2": 0.99,
    }
    assert found["model"]["layers"][2] == {"class": "graph_toys.parts.Mlp", "hidden": 64}
    assert found["evaluations"]["held_out"]["every"]["count"] == 50


def test_defaults_are_there():
    found = to_dict(parts.experiment())
    assert found["optimizer"]["b1"] == 0.9
    assert found["rules"]["parameters"] == {"embed": ["fsdp"], "vocab": ["tensor"]}
    assert found["kind"] == "FAST"


def test_value_nodes_are_what_they_stand_for():
    dim = value(4, name="dim")
    graph = fdl.Config(recorded.Part, size=dim, rate=multiply(dim, 4), other=add(1, "a"))
    found = to_dict(graph, defaults=False)
    assert (found["size"], found["rate"]) == (4, 16)
    assert found["other"] == "1 + 'a'"


def test_leaves():
    assert plain_leaf(jax.nn.gelu) == "jax.nn.gelu"
    assert plain_leaf(jnp.bfloat16) == "jax.numpy.bfloat16"
    assert plain_leaf(np.dtype("int8")) == "int8"
    assert plain_leaf(np.float32(0.5)) == 0.5
    assert plain_leaf(jax.sharding.PartitionSpec("a", None)) == ["a", None]
    assert plain_leaf(range(3)) == "range(0, 3)"
    assert "lambda" in plain_leaf(lambda: 0)
    assert "0x" not in plain_leaf(object())


def test_everything_is_plain():
    json.dumps(to_dict(recorded.everything()))
    graph = fdl.Config(recorded.Part, size=[lambda: 0, np.zeros(2), object()], rate={1: {2}})
    json.dumps(to_dict(graph))


def test_a_circle_ends():
    graph = fdl.Config(recorded.Part)
    graph.other = [graph]
    assert to_dict(graph, defaults=False)["other"] == ["..."]
