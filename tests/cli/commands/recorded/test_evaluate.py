from __future__ import annotations

import json

import pytest

from luthier.cli import main


@pytest.fixture(autouse=True)
def _there(trained, monkeypatch):
    monkeypatch.chdir(trained)


def test_it_prints_every_metric(capsys):
    assert main(["evaluate", "last"]) == 0
    out = capsys.readouterr().out
    assert "step 4" in out
    assert "nats_per_byte" in out


def test_json_and_an_earlier_step(capsys):
    found = {}
    for step in ("2", "4"):
        assert main(["evaluate", "last", "--step", step, "--json"]) == 0
        found[step] = json.loads(capsys.readouterr().out)
    assert [found[step]["step"] for step in found] == [2, 4]
    losses = [found[step]["evaluations"]["held_out"]["loss"] for step in found]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--evaluation", "hled_out"], "held_out"),
        (["--step", "3"], "3"),
        (["--ema"], "average"),
    ],
)
def test_what_the_run_does_not_have(words, message, capsys):
    assert main(["evaluate", "last", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.full
def test_changes_of_what_the_run_recorded(capsys):
    losses = []
    for words in ([], ["fiddler:int8_weights"]):
        assert main(["evaluate", "last", *words, "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["evaluations"]["held_out"]["loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_changes_that_are_none(capsys):
    assert main(["evaluate", "last", "fiddler:int8_weigths", "modle.dim=8"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "did you mean fiddler:int8_weights" in first
    assert "did you mean model.dim" in second
