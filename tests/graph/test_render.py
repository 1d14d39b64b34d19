from __future__ import annotations

import fiddle as fdl
import jax.numpy as jnp
import numpy as np
from graph_toys import parts, recorded

from luthier import graph as graphs
from luthier.graph import floor_divide, head_text, multiply, render, text_of

SET = """\
graph_toys.parts.Experiment
  name = 'toy'
  model: graph_toys.parts.Model
    dim = 16
    layers: list
      [0]: graph_toys.parts.Mlp
        hidden = 64
      [1]: graph_toys.parts.GatedMlp
      [2]: same as model.layers[0]
  optimizer: graph_toys.parts.Optimizer
    learning_rate: graph_toys.parts.Cosine
      peak #Rate = 0.001
      total_steps = 1000
    b2 = 0.99
  data: graph_toys.parts.Source
  evaluations: dict
    held_out: graph_toys.parts.Evaluation
      data: graph_toys.parts.Source
        length = 64
      every: luthier.durations.Steps
        count = 50
    ['long text']: graph_toys.parts.Evaluation
      data: graph_toys.parts.Source"""

OPTIMIZER = """\
graph_toys.parts.Optimizer
  learning_rate: graph_toys.parts.Cosine
    peak #Rate = 0.001
    total_steps = 1000
    warmup_steps = 100  (default)
  b2 = 0.99
  b1 = 0.9  (default)
  nesterov = False  (default)"""


def test_what_is_set():
    assert render(parts.experiment()) == SET


def test_defaults_come_after_what_is_set():
    assert render(parts.experiment().optimizer, defaults=True) == OPTIMIZER


def test_value_nodes_are_shown_live():
    dim, unnamed = graphs.value(256, name="dim"), graphs.value(3)
    graph = fdl.Config(
        recorded.Part,
        size=dim,
        rate=multiply(dim, 4),
        other=[fdl.Partial(parts.Layer, dim=unnamed), unnamed],
        extra=floor_divide(dim, 0),
    )
    assert render(graph).splitlines()[1:] == [
        "  size = 256 (shared as dim)",
        "  rate = dim * 4 = 1024",
        "  other: list",
        "    [0]: partial graph_toys.parts.Layer",
        "      dim = 3 (shared as other[0].dim)",
        "    [1] = 3 (shared as other[0].dim)",
        "  extra = dim // 0 = ?",
    ]


def test_missing_arguments_are_marked():
    lines = render(fdl.Config(parts.Model)).splitlines()
    assert lines == ["graph_toys.parts.Model", "  dim is not set"]
    assert render(fdl.Partial(parts.Model)) == "partial graph_toys.parts.Model"


def test_long_lines_are_cut():
    lines = render(fdl.Config(recorded.Part, size="x" * 300), width=40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].endswith("…")
    lines = render(fdl.Config(parts.untyped), defaults=True, width=24).splitlines()
    assert "  nothing = …  (default)" in lines
    assert "  size = 3  (default)" in lines


def test_values_on_one_line():
    values_by_text = {
        "'a'": "a",
        "(1,)": (1,),
        "(1, 'a')": (1, "a"),
        "[1, {2: 3}]": [1, {2: 3}],
        "{1, 2}": {2, 1},
        "jax.numpy.bfloat16": jnp.bfloat16,
        "graph_toys.parts.relu": parts.relu,
        "Kind.FAST": parts.Kind.FAST,
        "graph_toys.recorded.Point(x=1, y=None)": recorded.Point(1, None),
        "float32": np.dtype("float32"),
        "partial graph_toys.parts.Layer": fdl.Partial(parts.Layer),
        "inf": float("inf"),
    }
    for text, value in values_by_text.items():
        assert text_of(value) == text
    assert "0x" not in text_of(object())
    assert "lambda" in text_of(lambda: 0)
    assert head_text([1]) == "list"


def test_long_dicts_are_spread_out_and_long_lists_cut():
    graph = fdl.Config(recorded.Part, size={"a": "x" * 20, "b": [1, 2]}, rate=list(range(50)))
    assert render(graph, width=30).splitlines()[1:] == [
        "  size: dict",
        "    a = 'xxxxxxxxxxxxxxxxxxxx'",
        "    b = [1, 2]",
        "  rate = [0, 1, 2, 3, 4, 5, 6…",
    ]


def test_everything_renders():
    text = render(recorded.everything(), defaults=True)
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert render([1, fdl.Config(parts.Layer)]).splitlines() == [
        "list",
        "  [0] = 1",
        "  [1]: graph_toys.parts.Layer",
    ]
    assert render(3) == "3"


def test_a_value_node_alone_is_its_expression_and_value():
    width = graphs.value(8, name="width")
    assert render(multiply(width, 4)) == "width * 4 = 32"
    assert render(width) == "8 (shared as width)"
