from __future__ import annotations

import json

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier.cli import showing
from luthier.errors import BadInput


class Special(fdl.Tag):
    """Special values."""


@pytest.fixture
def graph(importable_project):
    return graphs.resolve("trials.tiny")


def test_the_table_has_a_line_for_each_value(graph):
    lines = showing.written(graph.optimizer, "table").splitlines()
    assert lines == [
        "path                        value",
        "learning_rate               luthier.optim.WarmupCosine",
        "learning_rate.peak          0.01",
        "learning_rate.warmup_steps  1",
        "learning_rate.total_steps   4 (shared as steps)",
        "learning_rate.end           0.0",
    ]


def test_the_table_shows_tags_defaults_and_sharing(graph):
    graph.model.norm = graph.model.block.norm
    fdl.add_tag(graph.optimizer.learning_rate, "peak", Special)
    lines = showing.written(graph, "table", defaults=True).splitlines()
    assert lines[0].split() == ["path", "value", "tags"]
    found = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert found["model.norm"] == ["same", "settings", "as", "model.block.norm"]
    assert found["optimizer.learning_rate.peak"] == ["0.01", "#Special"]
    assert found["optimizer.b1"] == ["0.9", "default"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_is_written_is_read_back(graph, form):
    read = {"json": graphs.from_json, "yaml": graphs.from_yaml}[form]
    assert graphs.equal(read(showing.written(graph, form)), graph)


def test_every_form_ends_with_one_line_break(graph):
    for form in showing.FORMS:
        text = showing.written(graph, form)
        assert text.endswith("\n"), form
        assert not text.endswith("\n\n"), form
    assert json.loads(showing.written(graph, "json"))
    assert showing.written(graph, "svg").startswith("<svg ")
    assert "def experiment()" in showing.written(graph, "py")


def test_a_file_that_cannot_be_written(tmp_path):
    path = tmp_path / "none" / "x.py"
    with pytest.raises(BadInput) as caught:
        showing.save("x", str(path))
    assert str(caught.value) == f"cannot write {path}: no such file or directory [set by --output]"
