from __future__ import annotations

import fiddle as fdl
import pytest
import yaml
from graph_toys import parts, recorded

from luthier.errors import RecordError
from luthier.graph import values
from luthier.graph.export.yaml import to_yaml


def _text(graph):
    return to_yaml(graph).removeprefix("_version_: 1\n")


TOY = """\
_target_: graph_toys.parts.Experiment
name: toy
model:
  _target_: graph_toys.parts.Model
  dim: 16
  layers:
    - &layers_0 {_target_: graph_toys.parts.Mlp, hidden: 64}
    - {_target_: graph_toys.parts.GatedMlp}
    - *layers_0
optimizer:
  _target_: graph_toys.parts.Optimizer
  learning_rate:
    _target_: graph_toys.parts.Cosine
    _tags_: {peak: [graph_toys.parts.Rate]}
    peak: 0.001
    total_steps: 1000
  b2: 0.99
data: {_target_: graph_toys.parts.Source}
evaluations:
  held_out:
    _target_: graph_toys.parts.Evaluation
    data: {_target_: graph_toys.parts.Source, length: 64}
    every: {_target_: luthier.durations.Steps, count: 50}
  long text: {_target_: graph_toys.parts.Evaluation, data: {_target_: graph_toys.parts.Source}}
"""


def test_an_experiment():
    assert to_yaml(parts.experiment()) == "_version_: 1\n" + TOY


def test_values_and_partials():
    size = values.value(256, name="size")
    graph = fdl.Config(recorded.Part, size=size, rate=fdl.Partial(parts.Layer, dim=size))
    assert _text(graph).splitlines()[1:] == [
        "size: &size {_target_: luthier.graph.values.constant, value: 256, name: size}",
        "rate: {_target_: graph_toys.parts.Layer, _partial_: true, dim: *size}",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain words/and-dashes_1.5", "plain words/and-dashes_1.5"),
        ("no", '"no"'),
        ("NULL", '"NULL"'),
        ("1e3", '"1e3"'),
        ("", '""'),
        ("a: b", '"a: b"'),
        (' "', '" \\""'),
        ("ü\n\u2028", '"ü\\x0a\\u2028"'),
        ("\U000e0001", '"\\U000e0001"'),
        (4e-05, "4.0e-05"),
        (1e22, "1.0e+22"),
        (-0.0, "-0.0"),
        (float("-inf"), "-.inf"),
        (float("nan"), ".nan"),
        (True, "true"),
        (None, "null"),
        ((1,), "{_tuple_: [1]}"),
        ({}, "{}"),
        ({1: 2}, "{_dict_: [[1, 2]]}"),
        ({"_target_": 2}, "{_dict_: [[_target_, 2]]}"),
        (parts.relu, "{_name_: graph_toys.parts.relu}"),
        (recorded.Point(1, 2), '{_instance_: graph_toys.recorded.Point, x: 1, "y": 2}'),
    ],
)
def test_leaves(value, text):
    assert _text(fdl.Config(recorded.Part, size=value)).splitlines()[1] == f"size: {text}"


def test_arguments_that_look_like_our_keys():
    graph = fdl.Config(recorded.keywords, _target_=3, b=4)
    assert "_arguments_: {_target_: 3, b: 4}" in _text(graph)


def test_a_leaf_stands_below_a_key():
    assert to_yaml([1, "a"]) == "_version_: 1\n_graph_: [1, a]\n"


@pytest.mark.parametrize("make", [recorded.everything, parts.experiment])
def test_others_read_it_as_plain_yaml(make):
    plain = yaml.safe_load(to_yaml(make()))
    assert plain["_target_"].startswith("graph_toys.")
    assert all(len(line) <= 101 for line in to_yaml(make()).splitlines())


def test_long_entries_are_spread_out():
    graph = fdl.Config(recorded.Part, size=[["x" * 60, "y" * 60], [{"a": "z" * 99}]])
    assert _text(graph).splitlines()[1:] == [
        "size:",
        f"  - - {'x' * 60}",
        f"    - {'y' * 60}",
        f"  - - a: {'z' * 99}",
    ]


def test_what_cannot_be_recorded_is_told_with_its_path():
    with pytest.raises(RecordError) as caught:
        to_yaml(fdl.Config(recorded.Part, size=lambda x: x))
    assert caught.value.problems[0].path == "size"
