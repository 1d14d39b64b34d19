from __future__ import annotations

import json

import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.cli.showing import print_parameters, subtotals
from luthier.planner import Parameter
from luthier.planner import model_parameters as parameters


def _parameter(name, scalars):
    return Parameter(name, (scalars,), "float32", None, "-", "", scalars, scalars, 4 * scalars)


@pytest.fixture
def graph(importable_project):
    return graphs.apply(graphs.resolve("trials.tiny"), ["parallelism.mesh.fsdp=2"])


def test_every_parameter_has_its_axes_spec_and_initializer(graph):
    found = {p.name: p for p in parameters(graph, jax.devices()[:2])}
    kernel = found["blocks.mlp.up.kernel"]
    assert kernel == Parameter(
        name="blocks.mlp.up.kernel",
        shape=(1, 16, 16),
        dtype="float32",
        axes=("layers", "embed", "mlp"),
        spec="-, fsdp, -",
        initializer="FanIn(scale=1.0)",
        scalars=256,
        active=256,
        bytes=1024,
    )
    assert found["embedding.table"].initializer == "Normal(stddev=0.02)"
    assert found["norm.scale"].initializer == "Ones()"


@pytest.mark.full
def test_the_initializer_is_what_the_graph_says(graph):
    node = graphs.apply(graph, [])
    node.model.embedding.table = fdl.Config(layers.TruncatedNormal, stddev=0.5)
    found = {p.name: p.initializer for p in parameters(node, jax.devices()[:2])}
    assert found["embedding.table"] == "TruncatedNormal(stddev=0.5)"


def test_subtrees_of_several_parameters_are_summed():
    found = [_parameter("a.b.c", 1), _parameter("a.b.d", 2), _parameter("a.e.f", 4)]
    sums = {name: total.scalars for name, total in subtotals(found).items()}
    assert sums == {"a": 7, "a.b": 3}


def test_the_table_is_indented_below_the_sums(graph, capsys):
    print_parameters(graph, jax.devices()[:2], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    names = [line[:34].rstrip() for line in lines]
    start = names.index("  blocks.mlp")
    assert names[start : start + 3] == [
        "  blocks.mlp",
        "    blocks.mlp.down.kernel",
        "    blocks.mlp.up.kernel",
    ]
    assert lines[-1].startswith("10 parameters, ")


def test_json(graph, capsys):
    print_parameters(graph, jax.devices()[:2], as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["scalars"] == sum(p["scalars"] for p in report["parameters"])
    assert report["scalars_by_subtree"]["blocks.mlp"] == 512
    assert sum(report["scalars_by_part"].values()) == report["scalars"]
    assert 0 < report["embedding_scalars"] < report["scalars"] == report["trained_scalars"]
