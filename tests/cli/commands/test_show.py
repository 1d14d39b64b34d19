from __future__ import annotations

import json

import pytest

from luthier import graph as graphs
from luthier.cli import main

TINY = "trials.tiny"


@pytest.fixture
def show(project, capsys):
    """Runs `luthier show trials.tiny ...` and returns what it prints."""

    def run(*words: str) -> str:
        assert main.main(["show", TINY, *words]) == 0
        return capsys.readouterr().out

    return run


def test_it_shows_the_graph(show):
    out = show()
    assert "name = 'tiny'" in out
    assert "hidden_dim = 16" in out


def test_overrides_and_paths_mix(show):
    out = show("optimizer", "optimizer.b2=0.5")
    assert "b2 = 0.5" in out
    assert "hidden_dim" not in out


def test_a_leaf_can_be_shown(show):
    assert "tiny" in show("name")


def test_defaults(show):
    assert len(show("--defaults")) > len(show())


def test_json_rebuilds_the_graph(show):
    assert graphs.get(graphs.from_json(show("--json", "seed=5")), "seed") == 5


def test_why_shows_what_set_a_value(show):
    out = show("seed=5", "seed=6", "--why", "seed")
    assert "argument 1" in out
    assert "argument 2" in out
    assert "left at its default" in show("--why", "seed")
    assert json.loads(show("seed=5", "--why", "seed", "--json"))


def test_params(show):
    out = show("--params")
    assert "embedding.table" in out
    assert "scalars" in out


def test_sharding_tells_the_reason_of_every_parameter(show):
    parameters = [line.split()[0] for line in show("--params").splitlines()[1:-1]]
    out = show("--sharding", "parallelism.mesh.fsdp=2", "parallelism.mesh.tensor=2")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert parameters
    assert all("->" in lines[name] or "replicated" in lines[name] for name in parameters)
    assert "embed -> fsdp" in lines["embedding.table"]


def test_the_plan_as_json(show):
    plan = json.loads(show("--sharding", "--json"))
    assert plan["parameters"] > 0
