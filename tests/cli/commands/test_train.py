from __future__ import annotations

import argparse
import re
import shlex

import pytest

from luthier import graph as graphs
from luthier.cli import main
from luthier.cli.commands import train

TINY = "trials.tiny"
HELD_OUT = "evaluations.held_out.data.source.pattern"


def test_it_trains_and_says_what_is_next(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (run,) = (trained / "runs" / "tiny").iterdir()
    assert (run / "config.json").exists()
    assert main(["train", TINY, "--wandb", "off"]) == 0
    assert "finished" in capsys.readouterr().out, "a finished run is not trained again"
    assert len(list((trained / "runs" / "tiny").iterdir())) == 1


@pytest.mark.full
def test_a_run_below_the_project_names_it_in_its_header(importable_project, monkeypatch, capsys):
    (importable_project / "pyproject.toml").write_text("[tool.luthier]\n")
    (importable_project / "below").mkdir()
    (importable_project / "text.txt").rename(importable_project / "below" / "text.txt")
    monkeypatch.chdir(importable_project / "below")
    words = ["records.console=luthier.records.Console()", "checkpoints=None", "evaluations={}"]
    assert main(["train", TINY, *words, "training.steps=2", "--wandb", "off"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines[1][1].startswith(f"{importable_project}/runs/tiny/")
    assert lines[2] == ["project", f"{importable_project}, from its pyproject.toml"]


def test_dry_run_writes_nothing(project, capsys):
    assert main(["train", TINY, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("name=../evil", "name: '../evil' cannot be the name of a run; use letters"),
        ("records.directory=file/runs", "cannot create file/runs/tiny/"),
        ("records.directory=file", "cannot create file/tiny/"),
        ("model.dim=1e30", "model: the model cannot be built: OverflowError: "),
        ("name=hunter2hunter2", "name: "),
    ],
)
def test_dry_run_refuses_what_a_run_would(project, monkeypatch, capsys, override, line):
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    (project / "file").touch()
    before = sorted(project.iterdir())
    assert main(["train", TINY, "--dry-run", override]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"luthier: {line}")
    assert sorted(project.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["any:source.pattern=txt/*.txt"],
            [
                "data.source.pattern: no file matches 'txt/*.txt' [set by argument 1: "
                "any:source.pattern=txt/*.txt]; relative patterns start at "
            ],
        ),
        (["--run", "nothing"], ["no run 'nothing': there are no runs in runs"]),
        (
            ["restore=run:gone", "data.source.pattern=absent.txt", f"{HELD_OUT}=gone.txt"],
            [
                "data.source.pattern: no file matches 'absent.txt'",
                f"{HELD_OUT}: no file matches 'gone.txt' [set by argument 3: ",
                "restore: gone does not exist [set by argument 1: restore=run:gone]; give",
            ],
        ),
    ],
)
def test_dry_run_opens_data_runs_and_weights(project, capsys, words, lines):
    before = sorted(project.rglob("*"))
    assert main(["train", TINY, *words, "--dry-run"]) == 2
    errors = capsys.readouterr().err.splitlines()
    for error, line in zip(errors, lines, strict=True):
        assert error.startswith(f"luthier: {line}"), error
    assert sorted(project.rglob("*")) == before


def test_dry_run_reads_the_first_batches_and_names_the_run(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["train", TINY, "--wandb", "off", "--dry-run", "seed=5"]) == 0
    out = capsys.readouterr().out
    assert "\ndata: 56 rows; read the first batch of 8\n" in out
    assert "\nevaluations.held_out.data: 56 rows; read the first batch of 8\n" in out
    assert "would start a new run in runs/tiny\n" in out
    assert main(["train", TINY, "--wandb", "off", "--dry-run"]) == 0
    assert " is finished: nothing would be trained\n" in capsys.readouterr().out


def test_a_missing_file_is_reported_with_its_path_and_origin(project, capsys):
    (project / "text.txt").unlink()
    assert main(["train", TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    pattern = (
        r"source\.pattern: no file matches 'text\.txt' \[set by \S*trials/tiny\.py:48\]; relative"
    )
    assert re.match(rf"luthier: data\.{pattern}", line)


def test_dry_run_prints_how_much_is_trained(project, capsys):
    words = ["train", TINY, "--dry-run"]
    assert main(words) == 0
    all_of_them = capsys.readouterr().out.split()[0]
    mask = r"training.trainable=luthier.optim.Matching('norm\.scale$')"
    assert main([*words, mask]) == 0
    # The norms of one block, two, and that of the decoder: three scales of 16.
    assert f"{all_of_them} parameters, 48 of them trained, on" in capsys.readouterr().out


def test_a_run_is_continued_by_its_id_alone(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["train", "--run", "last"]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_missing_run_is_one_problem(project, capsys):
    assert main(["train", "--run", "nothing"]) == 2
    assert capsys.readouterr().err == "luthier: no run 'nothing': there are no runs in runs\n"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([TINY, "seed=1"], f"luthier train {TINY} seed=1"),
        ([TINY, "--new", "--devices", "cpu:8"], f"luthier train {TINY} --devices cpu:8"),
        ([TINY, "--extend", "-y", "--run", "a"], f"luthier train {TINY} --run a"),
        ([TINY, "name=a b"], f"luthier train {TINY} 'name=a b'"),
    ],
)
def test_the_command_that_resumes(words, command):
    assert train._resume_command(words) == command
    assert shlex.split(command)[:2] == ["luthier", "train"]


@pytest.mark.parametrize("mode", train.WANDB_MODES)
@pytest.mark.parametrize("before", ["records.wandb=None", "records.wandb=luthier.records.Wandb()"])
def test_wandb_modes(project, monkeypatch, mode, before):
    monkeypatch.syspath_prepend(str(project))
    graph = graphs.apply(graphs.resolve(TINY), [before])
    assert graphs.get(train._with_wandb(graph, mode), "records.wandb.mode") == mode


def test_overrides_without_an_experiment_belong_to_the_run(trained, monkeypatch):
    monkeypatch.chdir(trained)
    arguments = argparse.Namespace(reference="seed=1", overrides=["name=x"], run="last")
    reference = train._reference(arguments, train.Problems())
    assert reference.startswith("runs/tiny/")
    assert arguments.overrides == ["seed=1", "name=x"]


@pytest.mark.full
def test_steps_are_taken_twice_and_compared(project, capsys):
    assert main(["train", TINY, "--check-determinism"]) == 0
    assert "2 steps taken twice: all " in capsys.readouterr().out
    assert not (project / "runs").exists()
