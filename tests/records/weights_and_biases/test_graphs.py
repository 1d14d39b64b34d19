from __future__ import annotations

import json
import types

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier.checkpoint import FromRun
from luthier.optim import Constant
from luthier.program import Experiment
from luthier.records import Configuration, Ended, Records, RunDirectory, Wandb
from luthier.records.weights_and_biases import log_difference, parent_of


def _graph(peak, restore=None):
    graph = fdl.Config(Experiment, name="demo", optimizer=fdl.Config(Constant, peak))
    if restore is not None:
        graph.restore = fdl.Config(FromRun, str(restore))
    return graph


def _configuration(graph):
    return Configuration(graphs.to_json(graph), graphs.history_record(graph), values={})


def _create(root, id, graph):
    return RunDirectory.create(root, "demo", id, configuration=_configuration(graph))


@pytest.fixture
def child(tmp_path):
    parent = _create(tmp_path / "runs", "first", _graph(0.5))
    return _create(tmp_path / "runs", "second", _graph(0.25, parent.path))


def test_the_parent_is_the_run_that_was_restored(child):
    found = parent_of(child)
    assert (found.title, found.folder) == ("demo/first", child.path.parent / "first")


def test_a_parent_that_is_gone_or_none_is_none(tmp_path):
    alone = _create(tmp_path, "alone", _graph(0.5))
    assert parent_of(alone) is None
    orphan = _create(tmp_path, "orphan", _graph(0.5, tmp_path / "gone"))
    assert parent_of(orphan) is None
    orphan.config_path.write_text("{")
    assert parent_of(orphan) is None


def test_the_parent_of_a_trial_is_the_base_of_its_study(tmp_path):
    study = tmp_path / "studies" / "rates"
    for trial in ("0000", "0007"):
        folder = study / "trials" / trial
        RunDirectory.create(folder.parent, trial, "run", configuration=_configuration(_graph(0.5)))
        (folder / "config.json").write_text(graphs.to_json(_graph(0.5)))
    assert parent_of(RunDirectory(study / "trials" / "0007" / "run")) is None
    (study / "study.json").write_text("{}")
    found = parent_of(RunDirectory(study / "trials" / "0007" / "run"))
    assert (found.title, found.folder.name) == ("the base of rates", "0000")
    assert parent_of(RunDirectory(study / "trials" / "0000" / "run")) is None


def test_the_difference_is_an_artifact(child, fake):
    recorder = Records(console=None, wandb=Wandb()).open(child)
    recorder.emit(Ended("finished", 0))
    recorder.close()
    (call,) = fake("log_artifact")
    assert (call["type"], call["metadata"]["parent"]) == ("diff", "demo/first")
    diff_lines = call["files"]["diff.txt"].splitlines()
    assert diff_lines[0] == "optimizer.value: 0.5 -> 0.25"
    comparison = json.loads(call["files"]["diff.json"])
    assert [side["title"] for side in comparison["sides"]] == ["demo/first", "demo/second"]
    assert len(comparison["changes"]) == call["metadata"]["changes"] == len(diff_lines)


def test_nothing_is_logged_where_there_is_nothing_to_compare_with(child, tmp_path):
    logged = []
    run = types.SimpleNamespace(id="x", dir=str(tmp_path), log_artifact=logged.append)
    (child.path.parent / "first" / "config.json").write_text("{")
    log_difference(None, run, child)
    log_difference(None, run, RunDirectory(child.path.parent / "first"))
    assert logged == []


@pytest.mark.full
def test_the_real_wandb_holds_the_record_and_the_difference(child, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    recorder = Records(console=None, wandb=Wandb()).open(child)
    recorder.emit(Ended("finished", 0))
    recorder.close()
    (mirrored,) = (child.path / "wandb").glob("offline-run-*")
    folder = mirrored / "files" / "luthier"
    assert (folder / "config.json").read_text() == child.read_config()
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "config.history.json",
        "config.values.json",
    }
    staged = {path.read_text() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert any("optimizer.value: 0.5 -> 0.25" in text for text in staged)
