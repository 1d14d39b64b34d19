from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from luthier import graph as graphs
from luthier.cli import operands
from luthier.errors import BadInput, UnknownReference
from luthier.records import Evaluation, Status, encode_event


def _read(name):
    return operands.read_record(operands.find_record(name))


def test_a_run_with_what_it_came_to(tiny, make_run):
    run = make_run(graphs.apply(tiny, ["seed=3"]), "ab12cd34")
    event = Evaluation(4, "held_out", {"loss": 2.5}, {"loss": "lower"})
    run.metrics_path.write_text(json.dumps(encode_event(event, 1.0, 4)) + "\n")
    evaluations = {"held_out": {"loss": 2.5, "perplexity": 12.0}}
    run.write_status(Status("finished", step=1000, evaluations=evaluations))
    for name in ("run:ab", "run:last", str(run.path)):
        operand = _read(name)
        assert operand.title == name
        side = operand.document.side
        assert side.detail == "run tiny/ab12cd34, finished at step 1,000"
        assert operand.document.origin("seed") == "argument 1: seed=3"
        assert operand.metrics_path == run.metrics_path
        assert [(one.name, one.value, one.direction) for one in operand.objectives] == [
            ("held_out/loss", 2.5, "lower"),
            ("held_out/perplexity", 12.0, ""),
        ]


def test_damage_beside_a_record_hides_that_and_nothing_else(tiny, make_run):
    run = make_run(tiny, "ab12cd34")
    for name in ("config.history.json", "config.values.json", "status.json"):
        (run.path / name).write_text("{")
    operand = _read("run:ab")
    assert operand.document.side.detail == "run tiny/ab12cd34"
    assert operand.document.origin("seed") == ""


def test_a_file_the_standard_input_and_a_mirror_are_records(tiny, tmp_path, monkeypatch):
    text = graphs.to_json(tiny)
    (tmp_path / "x.json").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    mirrored = tmp_path / "wandb" / "offline-run-20260101_000000-abcd" / "files" / "luthier"
    mirrored.mkdir(parents=True)
    (mirrored / "config.json").write_text(text)
    found = [_read(name) for name in ("x.json", "-", str(mirrored.parents[1]))]
    assert len({operand.document.fingerprint for operand in found}) == 1
    assert [operand.title for operand in found[:2]] == ["x.json", "standard input"]


def test_a_mirror_without_a_record_is_that_of_the_run_around_it(tiny, make_run):
    run = make_run(tiny, "ab12cd34")
    mirrored = run.path / "wandb" / "offline-run-1-a"
    (mirrored / "files").mkdir(parents=True)
    assert operands.find_record(str(mirrored)).path == run.path.resolve() / "config.json"
    run.config_path.rename(run.path / "gone")
    with pytest.raises(BadInput) as caught:
        operands.find_record(str(mirrored))
    assert str(caught.value) == (
        f"{mirrored} has no recorded config: there is no files/luthier/config.json; give the "
        "folder of the run, or its config.json"
    )


def test_a_run_without_its_record_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UnknownReference, match=r"is the folder of a run without config\.json"):
        operands.find_record(str(tmp_path))


def test_what_is_no_record_is_left_to_others(tiny, tmp_path):
    for name in ("trials.tiny", str(tmp_path), "HEAD~1:trials.tiny"):
        assert operands.find_record(name) is None
        assert operands.find_records(name) is None


def test_a_run_may_be_kept_elsewhere(tiny, make_run, monkeypatch, tmp_path):
    make_run(tiny, "ab12cd34")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert operands.read_run("ab", "../runs").title == "tiny/ab12cd34"


def test_trials_one_and_all(study):
    operand = _read("study:rates/1")
    assert operand.document.side.detail == "optimizer.b2=0.9, complete"
    assert operand.objectives[0].value == 1.5
    assert _read(str(study / "trials" / "0001")).state == "complete"
    places = operands.find_records("study:rates")
    assert [place.name for place in places] == [f"study:rates/{number}" for number in range(3)]
    assert operands.find_records("study:rates/1") is None


def test_a_trial_is_found_by_its_number(study):
    assert operands.find_trial("rates/1") == Path("studies/rates/trials/0001")
    assert operands.find_trial(f"{study}/2").name == "0002"
    assert operands.is_trial(study / "trials" / "0000")
    assert not operands.is_trial(study)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("rates", "'rates' is not a trial of a study; write study:NAME/7"),
        ("rates/²", "'rates/²' is not a trial of a study; write study:NAME/7"),
        ("rates/9", "rates has no trial 9; it has the trials 0 to 2"),
        ("rate/1", "there is no study 'rate'; did you mean rates?"),
    ],
)
def test_what_is_not_there_is_refused(study, reference, text):
    with pytest.raises(UnknownReference) as caught:
        operands.find_trial(reference)
    assert str(caught.value) == text


def test_a_study_of_one_trial_has_nothing_to_compare(study):
    for number in (1, 2):
        shutil.rmtree(study / "trials" / f"000{number}")
    with pytest.raises(UnknownReference, match=r"^the study rates has only one trial yet$"):
        operands.every_trial("rates")


def test_how_a_trial_stands(study):
    base = operands.describe_trial(study / "trials" / "0000")
    assert (base["detail"], base["state"]) == ("the base, complete", "complete")
    assert base["objectives"][0].direction == "lower"
    waiting = operands.describe_trial(study / "trials" / "0002")
    assert (waiting["detail"], waiting["state"]) == ("seed=3", "")
    assert waiting["objectives"][0].value is None
    (study / "facts.json").unlink()
    alone = operands.describe_trial(study / "trials" / "0001")
    assert (alone["detail"], alone["objectives"]) == ("optimizer.b2=0.9", [])
