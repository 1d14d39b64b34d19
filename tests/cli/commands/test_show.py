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
        assert main(["show", TINY, *words]) == 0
        return capsys.readouterr().out

    return run


def test_it_shows_the_graph(show):
    out = show()
    assert "name = 'tiny'" in out
    assert "hidden_dim = 16" in out


def test_the_module_of_a_study_alone_means_the_study(capsys):
    assert main(["show", "sweeps.lm_learning_rate"]) == 0
    assert capsys.readouterr().out.startswith("luthier.study.Study\n  name = 'lm_learning_rate'")
    assert main(["train", "sweeps.lm_learning_rate", "training.steps=3"]) == 2
    assert capsys.readouterr().err == (
        "luthier: sweeps.lm_learning_rate is a study, not an experiment; "
        "`luthier sweep sweeps.lm_learning_rate` runs it\n"
    )


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
    assert "the default of luthier.program.Experiment" in show("--why", "seed")
    assert json.loads(show("seed=5", "--why", "seed", "--json"))


def test_why_without_a_path_lists_all_values(show):
    assert "model.dim" in show("--why")
    assert "argument 1: seed=5" in show("--why", "seed=5")
    assert show("seed=5", "--why", "seed") == show("seed", "--why", "seed=5")


def test_changes(show):
    assert show("--changes", "seed=5") == (
        "argument 1: seed=5\n  ~ seed: 0 -> 5 (was left at its default)\n"
    )
    assert show("--changes") == "nothing changes\n"


def test_params(show):
    out = show("--params")
    assert "embedding.table" in out
    assert "Normal(stddev=0.02)" in out
    assert out.splitlines()[-1].startswith("10 parameters, ")


def test_sharding_prints_the_reason_for_every_parameter(show):
    parameters = [p["name"] for p in json.loads(show("--params", "--json"))["parameters"]]
    out = show("--sharding", "parallelism.mesh.fsdp=2", "parallelism.mesh.tensor=2")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert parameters
    assert all("->" in lines[name] or "replicated" in lines[name] for name in parameters)
    assert "embed -> fsdp" in lines["embedding.table"]


def test_the_plan_as_json(show):
    plan = json.loads(show("--sharding", "--json"))
    assert plan["parameters"] > 0


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ((), "luthier.program.Experiment\n  name = 'tiny'\n"),
        (("--to", "tree"), "luthier.program.Experiment\n"),
        (("--to", "table"), "path "),
        (("--to", "json"), '{\n "format"'),
        (("--to", "yaml", "optimizer"), "_version_: 1\n_target_: luthier.optim.adamw\n"),
        (("--to", "py", "model"), '"""Exported by luthier'),
        (("--to", "svg"), "<svg "),
    ],
)
def test_forms(show, words, start):
    assert show(*words).startswith(start)


def test_the_file_says_the_form(show, project, capsys):
    assert show("--output", "x.yaml", "seed=5").startswith("x.yaml: ")
    read = graphs.from_yaml((project / "x.yaml").read_text())
    assert read.seed == 5
    assert main(["show", "x.yaml", "--why", "seed"]) == 0
    assert "x.yaml:4" in capsys.readouterr().out
    show("--output", "x.txt")
    assert (project / "x.txt").read_text() == show()


def test_exported_python_is_an_experiment(show, project, capsys):
    show("--output", "copied_by_show.py", "seed=5")
    assert main(["show", "copied_by_show"]) == 0
    assert capsys.readouterr().out == show("seed=5")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--params", "--why"), "--params and --why cannot be combined; use one at a time"),
        (("--params", "--to", "py"), "--to has no effect with --params; leave it out"),
        (("--changes", "optimizer"), "optimizer has no effect with --changes; leave it out"),
        (("--to", "py", "--json"), "--to py and --json name different formats; leave out one"),
        (
            ("--to", "svg", "--output", "x.py"),
            "--to svg and --output x.py name different formats; leave out one",
        ),
        (
            ("--to", "py", "--defaults"),
            "--defaults needs the format tree or table; py has only values that are set; leave it "
            "out",
        ),
        (("--to", "py", "model", "data"), "--to py takes one path, not 2; leave out the others"),
        (("--devices", "cpu:2"), "--devices needs --sharding or --params; add --sharding"),
        (("--to", "svg", "name"), "only nodes have a picture, and this is of type str; "),
    ],
)
def test_what_does_not_go_together(project, capsys, words, problem):
    assert main(["show", TINY, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"luthier: {problem}")
