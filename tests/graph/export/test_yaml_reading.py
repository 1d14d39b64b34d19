from __future__ import annotations

import hypothesis
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import origin_of, values
from luthier.graph.export.yaml import from_yaml, to_yaml
from luthier.graph.load import equal

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
        ("", "x.yaml, line 1: it is no graph, which has a _target_"),
        ("3", "x.yaml, line 1: it is no graph, which has a _target_"),
        ("a: [1", "x.yaml, line 2: it is not readable as YAML: "),
        ("\x00", "x.yaml, line 1: it is not readable as YAML: "),
        (f"_version_: 2\n{PART}", "x.yaml, line 1: _version_ is not 1, which this luthier reads"),
        (f"{PART}size: 1\nsize: 2", "x.yaml, line 3: 'size' is given twice"),
        (f"{PART}size: *a", "x.yaml, line 2: there is no anchor &a before this alias"),
        (f"{PART}size: &a [*a]", "x.yaml, line 2: *a stands inside of what it refers to"),
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
            "x.yaml, line 3: an alias cannot stand here",
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
