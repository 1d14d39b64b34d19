from __future__ import annotations

import fiddle as fdl
import hypothesis
import pytest
import yaml
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import equal, from_yaml, origin_of, to_yaml, values
from luthier.graph.export import Entries, Items, YamlError, YamlReference, YamlScalar, read_yaml


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


def test_what_cannot_be_recorded_is_reported_with_its_path():
    with pytest.raises(RecordError) as caught:
        to_yaml(fdl.Config(recorded.Part, size=lambda x: x))
    assert caught.value.problems[0].path == "size"


PACKAGES = ["graph_toys"]
PART = "_target_: graph_toys.recorded.Part\n"


def _round_trip(graph):
    return from_yaml(to_yaml(graph), PACKAGES)


def _problems(text):
    with pytest.raises(RecordError) as caught:
        from_yaml(text, PACKAGES, "x.yaml")
    problems = caught.value.problems
    assert len(str(caught.value).splitlines()) == len(problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("make", [recorded.everything, parts.experiment])
def test_it_makes_an_equal_graph(make):
    assert equal(_round_trip(make()), make())
    assert to_yaml(_round_trip(make())) == to_yaml(make())


@SETTINGS
@hypothesis.given(graphs())
def test_random_graphs_come_back(graph):
    assert equal(_round_trip(graph), graph)


def test_what_people_write():
    text = """\
    # A comment.
    _target_: graph_toys.parts.Optimizer
    learning_rate: &rate
        _target_: graph_toys.parts.Cosine
        peak: 4e-5          # YAML 1.1 takes that for a string
        warmup_steps: +10
    b1: .5
    nesterov: false
    """
    node = from_yaml(text, PACKAGES)
    assert node.learning_rate.peak == 4e-5
    assert node.learning_rate.warmup_steps == 10
    assert node.b1 == 0.5
    assert node.nesterov is False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("'1'", "1"),
        ("~", None),
        ("TRUE", True),
        ("010", 10),
        ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"),
        ("-.INF", -float("inf")),
        ("[1, 2.]", [1, 2.0]),
        ("{a: {_tuple_: [1]}}", {"a": (1,)}),
        ("{1: 2}", {1: 2}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    node = from_yaml(f"{PART}size: {text}\n", PACKAGES)
    assert repr(node.size) == repr(value)


def test_the_origin_of_a_value_is_its_line():
    text = f"{PART}size: 3\nrate:\n  {PART}  size: {{a: 1}}\n"
    graph = from_yaml(text, PACKAGES, "x.yaml")
    assert origin_of(graph, "size") == "x.yaml:2"
    assert origin_of(graph, "rate.size") == "x.yaml:5"


def test_anchors_share():
    text = (
        f"{PART}size: &a {{_target_: graph_toys.parts.Layer}}\nrate: [*a, &b [1], *b, &c 3, *c]\n"
    )
    graph = from_yaml(text, PACKAGES)
    assert graph.rate[0] is graph.size
    assert graph.rate[1] is graph.rate[2]
    assert graph.rate[3:] == [3, 3]


def test_value_nodes_stay_live():
    size = values.value(4, name="size")
    graph = recorded.fdl.Config(recorded.Part, size=size, rate=values.multiply(size, 4))
    loaded = _round_trip(graph)
    loaded.size.value = 5
    assert values.evaluate(loaded.rate) == 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "x.yaml, line 1: it is not a graph: it has no _target_"),
        ("3", "x.yaml, line 1: it is not a graph: it has no _target_"),
        ("a: [1", "x.yaml, line 2: it is not readable as YAML: "),
        ("\x00", "x.yaml, line 1: it is not readable as YAML: "),
        (f"_version_: 2\n{PART}", "x.yaml, line 1: _version_ is not 1, which this luthier reads"),
        (f"{PART}size: 1\nsize: 2", "x.yaml, line 3: 'size' is given twice"),
        (f"{PART}size: *a", "x.yaml, line 2: there is no anchor &a before this alias"),
        (f"{PART}size: &a [*a]", "x.yaml, line 2: *a is inside of the node that it refers to"),
        (
            f"{PART}size: !!python/object/apply:os.system [x]",
            "x.yaml, line 2: tags such as 'tag:yaml.org,2002:python/object/apply:os.system' are "
            "not read",
        ),
        (f"{PART}<<: {{size: 1}}", "x.yaml, line 2: merge keys (<<) are not read"),
        (f"{PART}--- 3", "x.yaml, line 2: there is a second document"),
        (f"{PART}? [1]\n: 2", "x.yaml, line 1: a key is a list or mapping"),
        (
            f"{PART}_parial_: true",
            "x.yaml, line 1: a node takes no _parial_; did you mean _partial_?",
        ),
        (f"{PART}_partial_: 3", "x.yaml, line 1: only one of _partial_ can be true"),
        (
            f"{PART}_partial_: true\n_factory_: true",
            "x.yaml, line 1: only one of _partial_, _factory_ can be true",
        ),
        (f"{PART}3: 4", "x.yaml, line 2: 3 is not the name of an argument"),
        (f"{PART}_arguments_: 4", "x.yaml, line 2: _arguments_ is not a mapping"),
        (f"{PART}size: {{_dict_: [[1]]}}", "x.yaml, line 2: _dict_ is a list of pairs"),
        (f"{PART}size: {{_tuple_: 3}}", "x.yaml, line 2: this is not a list"),
        (
            f"{PART}size: &a [1]\nrate: {{_range_: *a}}",
            "x.yaml, line 3: an alias is not allowed here",
        ),
        (f"{PART}size: " + "[" * 600, "x.yaml, line 2: it is nested too deeply"),
        (f"{PART}size: " + "[" * 100 + "]" * 100, "x.yaml, line 2: it is nested too deeply"),
        (f"{PART}size: {{_strange_: 3}}", "size: unknown entry with the keys strange"),
        (
            f"{PART}sise: 3",
            "sise: graph_toys.recorded.Part takes no argument 'sise'; did you mean size?",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(text, problem):
    (found,) = _problems(text)
    assert found.startswith(problem) if problem.endswith(": ") else found == problem


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "jax._src.xla_bridge.os.system"])
@pytest.mark.parametrize("key", ["_target_", "_name_", "_instance_", "_enum_"])
def test_it_cannot_name_what_is_off_the_list(name, key):
    (problem,) = _problems(f"{PART}size: {{{key}: {name}}}")
    assert "may not be imported" in problem or "is private" in problem
    assert problem.startswith("size: ")


def test_many_aliases_take_no_time():
    lines = [PART, "size: &a0 [1]"]
    names = ["rate", "other", "shape", "extra"]
    for index, name in enumerate(names):
        lines.append(f"{name}: &a{index + 1} [{', '.join([f'*a{index}'] * 1000)}]")
    graph = from_yaml("\n".join(lines), PACKAGES)
    assert graph.extra[0][0][0][0] is graph.size


def test_lines_and_references():
    root = read_yaml("a: 1\nb: &x\n  - '2'\nc: *x\n")
    assert isinstance(root, Entries)
    assert root.items["a"] == YamlScalar(1, 1)
    items = root.items["b"]
    assert items == Items([YamlScalar("2", 3)], 3, 1) or items.number == 1
    assert root.items["c"] == YamlReference(items, 4)


def test_strings_that_only_the_slow_parser_reads():
    assert read_yaml('a: "\\udc80"').items["a"].value == "\udc80"


def test_an_error_has_its_line():
    with pytest.raises(YamlError) as caught:
        read_yaml("a: 1\nb: [\n")
    assert caught.value.line == 3
    assert str(caught.value).startswith("it is not readable as YAML: ")
