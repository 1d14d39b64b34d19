from __future__ import annotations

import json

import pytest

from luthier import cli, errors
from luthier import graph as graphs
from luthier.cli import showing


def _printed(graph, path, capsys):
    showing.print_why(graph, path, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_the_chain_stands_in_order(importable_project, capsys):
    graph = graphs.apply(cli.load_reference("trials.tiny"), ["model.dim=32", "any:dim=64"])
    first, _, heads, base, argument, pattern = _printed(graph, "model.dim", capsys)
    assert first == "model.dim = 64"
    assert heads.split() == ["set", "to", "by"]
    assert base.split()[:2] == ["model.dim", "16"]
    assert "trials/tiny.py:" in base.split()[2]
    assert argument.split(maxsplit=2) == ["model.dim", "32", "argument 1: model.dim=32"]
    assert pattern.split(maxsplit=2) == ["model.dim", "64", "argument 2: any:dim=64"]


def test_a_default_says_so(importable_project, capsys):
    lines = _printed(cli.load_reference("trials.tiny"), "seed", capsys)
    assert lines[-1].split(maxsplit=2)[2] == "the default of luthier.program.Experiment"


def test_constants_list_their_other_paths_and_arithmetic_its_operands(importable_project, capsys):
    graph = cli.load_reference("trials.tiny")
    graph.training.global_batch_size = graphs.multiply(graph.training.steps, 2)
    graph = graphs.apply(graph, ["training.steps=6"])
    lines = _printed(graph, "training.steps", capsys)
    assert lines[-1] == "the same value: optimizer.learning_rate.total_steps"
    lines = _printed(graph, "training.global_batch_size", capsys)
    assert lines[0] == "training.global_batch_size = steps * 2 = 12"
    assert "it follows training.steps:" in lines
    assert lines[-1].split(maxsplit=2) == ["training.steps", "6", "argument 1: training.steps=6"]


def test_long_values_are_cut(importable_project, capsys):
    graph = graphs.apply(cli.load_reference("trials.tiny"), [("name", "n" * 200)])
    assert f"'{'n' * 46}…" in _printed(graph, "name", capsys)[-1]


def test_without_a_path_everything_that_is_set_is_listed(importable_project, capsys):
    graph = graphs.apply(cli.load_reference("trials.tiny"), ["seed=5"])
    lines = _printed(graph, "", capsys)
    assert lines[0].split() == ["path", "value", "set", "by"]
    assert ["seed", "5", "argument 1: seed=5"] in [line.split(maxsplit=2) for line in lines]
    showing.print_why(graph, "", as_json=True)
    assert json.loads(capsys.readouterr().out)["seed"]["origin"] == "argument 1: seed=5"


def test_json_has_all_of_it(importable_project, capsys):
    graph = graphs.apply(cli.load_reference("trials.tiny"), ["seed=5"])
    showing.print_why(graph, "seed", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["value"]) == ("seed", "5")
    assert found["causes"][-1]["origin"] == "argument 1: seed=5"


def test_a_path_that_does_not_exist_is_refused(importable_project):
    with pytest.raises(errors.UnknownReference, match="sed"):
        showing.print_why(cli.load_reference("trials.tiny"), "sed", as_json=False)
