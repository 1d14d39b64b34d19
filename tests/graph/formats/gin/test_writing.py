from __future__ import annotations

import fiddle as fdl
import gin
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import graphs as random_graphs
from hypothesis import given, settings

from luthier import graph as graphs
from luthier.errors import RecordError
from luthier.graph import values
from luthier.graph.formats.gin import from_gin, to_gin


@pytest.fixture(autouse=True)
def clean():
    yield
    gin.clear_config()


def body(graph):
    return to_gin(graph).split("\n\n", 2)[2]


@pytest.mark.parametrize("make", [parts.experiment, recorded.everything])
def test_gin_accepts_it_and_it_is_read_to_an_equal_graph(make):
    text = to_gin(make())
    gin.parse_config(text)
    assert gin.config_str()
    assert graphs.equal(from_gin(text, ["graph_toys"]), make())
    assert graphs.fingerprint(from_gin(text, ["graph_toys"])) == graphs.fingerprint(make())


@settings(max_examples=100, deadline=None)
@given(random_graphs())
def test_random_graphs(graph):
    try:
        data = graphs.to_json(graph)
    except RecordError:
        return
    text = to_gin(graph)
    gin.clear_config()
    gin.parse_config(text)
    assert graphs.equal(from_gin(text, ["graph_toys"]), graphs.from_json(data, ["graph_toys"]))


def test_an_experiment():
    assert to_gin(fdl.Config(parts.Optimizer, learning_rate=fdl.Config(parts.Constant, 0.1))) == (
        """\
# Written by luthier: gin.parse_config accepts it, luthier reads it to an equal graph.
# luthier: format 1
# luthier: root @graph_toys.parts.Optimizer()
from __gin__ import dynamic_registration

import graph_toys.parts

\n\
graph_toys.parts.Optimizer:
    learning_rate = @graph_toys.parts.Constant()

graph_toys.parts.Constant:
    rate = 0.1
"""
    )


def test_constants_are_macros_and_arithmetic_is_a_function():
    size = values.value(256, name="size")
    graph = fdl.Config(recorded.Part, size=size, rate=values.multiply(size, 4))
    assert body(graph).splitlines() == [
        "size = 256",
        "",
        "graph_toys.recorded.Part:",
        "    size = %size",
        "    rate = @luthier.graph.values.product()",
        "",
        "luthier.graph.values.product:",
        "    left = %size",
        "    right = 4",
    ]


@pytest.mark.parametrize(
    ("make", "directive"),
    [
        (lambda: fdl.Partial(parts.relu), "partial graph_toys.parts.relu"),
        (lambda: fdl.ArgFactory(parts.Mlp), "factory graph_toys.parts.Mlp"),
        (lambda: values.value(3), "called size null"),
        (lambda: recorded.Point(1, 2), "instance graph_toys.recorded.Point"),
        (lambda: {3, 1}, 'value size {"set": [1, 3]}'),
        (lambda: float("nan"), 'value size {"float": "nan"}'),
    ],
)
def test_what_gin_has_no_words_for_is_a_comment(make, directive):
    graph = fdl.Config(recorded.Part, size=make())
    text = to_gin(graph)
    assert f"# luthier: {directive}\n" in text
    assert f"# Directives for luthier, which gin ignores: {directive.split()[0]} (1)." in text
    assert graphs.equal(from_gin(text, ["graph_toys"]), graph)


def test_sharing_and_tags_are_kept():
    mlp = fdl.Config(parts.Mlp)
    graph = fdl.Config(parts.Model, dim=1, layers=[mlp, mlp])
    fdl.add_tag(graph, "dim", parts.Rate)
    text = to_gin(graph)
    assert "# luthier: shared layers_0\n" in text
    assert "# luthier: tag graph_toys.parts.Model.dim graph_toys.parts.Rate\n" in text
    made = from_gin(text, ["graph_toys"])
    assert made.layers[0] is made.layers[1]
    assert graphs.equal(made, graph)


def test_long_values_have_a_line_for_each_entry():
    graph = fdl.Config(recorded.Part, size={"a": ["x" * 60, "y" * 60], "b": ()})
    assert body(graph).strip("\n").splitlines() == [
        "graph_toys.recorded.Part:",
        "    size = {",
        "        'a': [",
        f"            '{'x' * 60}',",
        f"            '{'y' * 60}',",
        "        ],",
        "        'b': (),",
        "    }",
    ]


def test_what_cannot_be_written_is_reported_with_its_path():
    with pytest.raises(RecordError, match="only a node can be written as gin"):
        to_gin([1])
    with pytest.raises(RecordError) as caught:
        to_gin(fdl.Config(recorded.Part, size=fdl.Config(recorded.keywords, **{"a b": 1})))
    assert str(caught.value) == "size['a b']: gin has no argument called 'a b'"
    with pytest.raises(RecordError):
        to_gin(fdl.Config(recorded.Part, size=lambda x: x))
