"""Every experiment survives each form in which it can be written: JSON, Python, YAML, a picture."""

import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from luthier import graph as graphs


@pytest.fixture
def graph(experiment):
    return graphs.resolve(experiment.reference)


def test_json_makes_an_equal_graph(graph):
    loaded = graphs.from_json(graphs.to_json(graph))
    assert graphs.equal(loaded, graph)
    assert graphs.fingerprint(loaded) == graphs.fingerprint(graph)


def test_yaml_makes_an_equal_graph(graph):
    loaded = graphs.from_yaml(graphs.to_yaml(graph))
    assert graphs.equal(loaded, graph)
    assert graphs.fingerprint(loaded) == graphs.fingerprint(graph)


def test_python_makes_an_equal_graph_and_is_formatted(graph, tmp_path):
    text = graphs.to_python(graph)
    module = {}
    exec(compile(text, "exported.py", "exec"), module)
    loaded = module["experiment"]()
    assert graphs.equal(loaded, graph)
    assert graphs.fingerprint(loaded) == graphs.fingerprint(graph)
    place = tmp_path / "exported.py"
    place.write_text(text)
    ruff = shutil.which("ruff") or f"{sys.prefix}/bin/ruff"
    options = ["--isolated", "--line-length", "100"]
    for command in (["format", "--check"], ["check", "--select", "E,F,I"]):
        done = subprocess.run([ruff, *command, *options, place], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_sharing_and_tags_are_kept(graph):
    """`equal` looks at both; an experiment that shares nothing would not tell."""
    shared = [place for place in graphs.walk(graph) if graphs.is_value_node(place.value)]
    assert len({id(place.value) for place in shared}) < len(shared)


def test_the_picture_can_be_read(graph):
    assert ElementTree.fromstring(graphs.to_svg(graph)).tag.endswith("svg")
