from __future__ import annotations

import shutil

import pytest

from luthier import cli, records
from luthier import graph as graphs
from luthier.cli import main
from luthier.records import Status

TINY = "trials.tiny"


@pytest.fixture
def record(make_run):
    """Return a function that records a run of a graph with a status."""

    def recorded(graph, id, status):
        run = make_run(graph, id)
        run.write_status(Status(status=status))
        return run

    return recorded


@pytest.fixture
def graph(importable_project):
    return cli.load_reference(TINY)


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_recorded_graph_gets_a_run_of_its_own(graph, status, record):
    run = record(graph, None, status)
    assert cli.choose_run(run, graph) == (None, True)


def test_the_same_command_goes_on_with_the_run_that_it_began(graph, record):
    first = record(graph, None, "finished")
    second = record(graph, f"{first.id}-2", "interrupted")
    third = record(graph, "renamed", "interrupted").path
    third.rename(third.with_name(f"{first.id}-²"))  # not a number, although `isdigit` is true
    found, new = cli.choose_run(first, graph)
    assert (records.find("runs", found), new) == (second, False)
    assert cli.choose_run(second, graph) == (None, True), "only what was begun after it"


def test_a_rerun_that_is_over_is_not_begun_again(graph, record):
    first = record(graph, None, "finished")
    record(graph, f"{first.id}-2", "finished")
    assert cli.choose_run(first, graph) == (None, True)


def test_another_graph_is_that_of_another_run(graph, record):
    run = record(graph, None, "finished")
    assert cli.choose_run(run, graphs.apply(graph, ["seed=9"])) == (None, False)
    assert cli.choose_run(run, graphs.apply(graph, ["name=other"])) == (None, False)


def test_changes_of_the_recorded_graph_are_printed(graph, capsys, record):
    run = record(graph, "ab12", "finished")
    cli.print_rerun(run, graph, graphs.apply(graph, ["seed=9"]))
    assert capsys.readouterr().out == (
        "the config of run tiny/ab12, with these changes:\n"
        "argument 1: seed=9\n"
        "  ~ seed: 0 -> 9 (was left at its default)\n"
    )
    cli.print_rerun(run, graph, graph)
    assert capsys.readouterr().out.endswith("with these changes:\nnothing changes\n")


@pytest.fixture
def copied(trained, tmp_path, monkeypatch):
    """A copy of the project with a trained run, to train in."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    return folder


def _losses(run):
    found = (recorded.event for recorded in records.read_events(run.metrics_path))
    steps = [event.values for event in found if isinstance(event, records.Step)]
    return [(values["loss"], values["learning_rate"]) for values in steps]


@pytest.mark.full
def test_a_rerun_repeats_the_run_to_the_last_bit(copied, capsys):
    first = records.find("runs", "last")
    words = ["train", f"run:{first.id[:5]}", "--wandb", "off"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"the config of run tiny/{first.id}, with these changes:\nnothing changes\n"
    )
    second = records.find("runs", f"{first.id}-2")
    assert second.read_config() == first.read_config()
    assert second.read_status().status == "finished"
    assert len(_losses(first)) == 4
    assert _losses(second) == _losses(first)


def test_changes_by_overrides_are_printed_before_training(copied, capsys):
    first = records.find("runs", "last")
    words = ["train", f"run:{first.id}", "optimizer.b2=0.9", "--wandb", "off", "--dry-run"]
    assert main(words) == 0
    title, _, rest = capsys.readouterr().out.partition("\n")
    assert title == f"the config of run tiny/{first.id}, with these changes:"
    assert rest.startswith(
        "argument 1: optimizer.b2=0.9\n  ~ optimizer.b2: 0.95 -> 0.9 (was left at its default)\n"
    )
    assert "nothing was trained" in rest


@pytest.mark.full
def test_what_goes_on_with_a_run_is_compared_with_it(copied, capsys):
    first = records.find("runs", "last")
    words = ["train", "trials.tiny", "--wandb", "off", "--run", first.id, "--dry-run"]
    assert main([*words, "optimizer.b2=0.9", "name=tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        f"- tiny/{first.id}  (run tiny/{first.id}, finished at step 4)",
        "+ this graph",
        "1 change: 1 set",
        "└── ~ optimizer.b2: 0.95 -> 0.9 (x0.947) (was left at its default)",
    ]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("5,808 parameters")
    assert main([*words[:5], "unknown", "--dry-run"]) == 2
    assert "no run 'unknown' in runs" in capsys.readouterr().err
