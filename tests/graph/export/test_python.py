from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from typing import Annotated, Any

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import equal, to_python, values


def made(text, function="experiment"):
    """What a user gets who imports the module."""
    module: dict[str, Any] = {}
    exec(compile(text, "exported.py", "exec"), module)
    return module[function]()


def _body(graph):
    """The lines of the function below its docstring."""
    lines = to_python(graph).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def experiment"))
    return "\n".join(line.removeprefix("    ") for line in lines[start + 2 :])


SMALL = """\
size = value(256, name="size")
size_config = fdl.Partial(graph_toys.parts.Layer, dim=size)
return fdl.Config(
    graph_toys.recorded.Part,
    size=size_config,
    rate=[graph_toys.parts.Rate.new(4e-5), size_config],
    other={"a": (1,), "b": multiply(size, 4)},
    extra=graph_toys.parts.Kind.FAST,
)"""


def small():
    size = values.value(256, name="size")
    layer = fdl.Partial(parts.Layer, dim=size)
    return fdl.Config(
        recorded.Part,
        size=layer,
        rate=[parts.Rate.new(4e-5), layer],
        other={"a": (1,), "b": values.multiply(size, 4)},
        extra=parts.Kind.FAST,
    )


def test_it_reads_like_an_experiment_file():
    assert _body(small()) == SMALL


@pytest.mark.parametrize("make", [recorded.everything, parts.experiment, small])
def test_it_makes_an_equal_graph(make):
    graph = made(to_python(make()))
    assert equal(graph, make())
    assert to_python(graph) == to_python(make())


@SETTINGS
@hypothesis.given(graphs())
def test_random_graphs_come_back(graph):
    assert equal(made(to_python(graph)), graph)


@hypothesis.settings(SETTINGS, max_examples=15)
@hypothesis.given(graphs())
def test_random_graphs_are_formatted_as_ruff_formats(graph):
    text = to_python(graph)
    assert _formatted(text) == text


def _formatted(text):
    ruff = shutil.which("ruff") or f"{sys.prefix}/bin/ruff"
    command = [ruff, "format", "--isolated", "--line-length", "100", "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize("make", [recorded.everything, parts.experiment, small])
def test_imports_are_sorted_and_all_used(make, tmp_path):
    (tmp_path / "exported.py").write_text(to_python(make()))
    ruff = shutil.which("ruff") or f"{sys.prefix}/bin/ruff"
    command = [ruff, "check", "--isolated", "--line-length", "100", "--select", "I,F,E", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_names_do_not_hide_modules_or_builtins():
    layer = fdl.Config(parts.Layer)
    graph = fdl.Config(
        recorded.keywords, id=[layer, layer], jnp=[[layer]], fdl={"value": [layer, layer]}
    )
    names = [line.partition(" = ")[0] for line in _body(graph).splitlines() if " = " in line]
    assert names
    assert not set(names) & {"id", "jnp", "fdl", "value"}
    assert equal(made(to_python(graph)), graph)


def test_what_is_deep_is_cut_into_variables():
    graph = fdl.Config(parts.Layer)
    for index in range(60):
        graph = fdl.Config(recorded.Part, size=graph, other="x" * 60, rate=index)
    text = to_python(graph)
    assert max(len(line) - len(line.lstrip()) for line in text.splitlines()) <= 28
    assert equal(made(text), graph)


def tagged_by_annotation(rate: Annotated[float, parts.Rate] = 0.1, other: int = 1):
    return rate


@pytest.fixture
def annotated(monkeypatch):
    monkeypatch.setattr(parts, "tagged_by_annotation", tagged_by_annotation, raising=False)
    monkeypatch.setattr(tagged_by_annotation, "__module__", "graph_toys.parts")
    return parts.tagged_by_annotation


def test_tags_of_annotations_are_not_written_and_lost_ones_are_removed(annotated):
    graph = fdl.Config(annotated, rate=3.0)
    assert "Rate" not in to_python(graph)
    assert equal(made(to_python(graph)), graph)
    fdl.remove_tag(graph, "rate", parts.Rate)
    graph = fdl.Config(recorded.Part, size=graph)
    assert 'fdl.remove_tag(size, "rate", graph_toys.parts.Rate)' in to_python(graph)
    assert equal(made(to_python(graph)), graph)


def test_several_tags_and_tags_of_what_is_not_set():
    graph = fdl.Config(recorded.Part, size=3)
    for tag in (parts.Rate, parts.DropoutTag):
        fdl.add_tag(graph, "size", tag)
        fdl.add_tag(graph, "rate", tag)
    graph = fdl.Config(recorded.Part, size=[parts.Rate.new(), graph])
    assert equal(made(to_python(graph)), graph)


def test_value_nodes_are_made_by_hand_where_that_makes_the_same():
    graph = fdl.Config(recorded.Part, size=fdl.Config(values.constant, 3, name=""))
    graph.rate = fdl.Config(values.total, left=1)
    graph.other = values.subtract(values.value(5), 2)
    assert "other=subtract(value(5), 2)" in to_python(graph)
    assert "fdl.Config(values.constant, value=3, name=" in to_python(graph)
    assert equal(made(to_python(graph)), graph)


def test_a_leaf_and_a_part_of_an_experiment():
    text = to_python(3.5, function="rate")
    assert made(text, "rate") == 3.5
    assert ast.parse(text).body[-1].name == "rate"


def test_what_cannot_be_recorded_is_reported_with_its_path():
    graph = fdl.Config(recorded.Part, size=lambda x: x, rate=[object()])
    with pytest.raises(RecordError) as caught:
        to_python(graph)
    assert [problem.path for problem in caught.value.problems] == ["size", "rate[0]"]


def test_a_tagged_value_as_an_argument_is_refused():
    graph = fdl.Config(recorded.Part, size=3)
    graph.__arguments__["size"] = parts.Rate.new(3)
    with pytest.raises(RecordError) as caught:
        to_python(graph)
    assert str(caught.value) == (
        "size: a tagged value that is an argument cannot be written as Python; "
        "tag the argument of the node instead, with fdl.add_tag"
    )
