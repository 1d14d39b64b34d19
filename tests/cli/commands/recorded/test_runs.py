from __future__ import annotations

import json

import pytest

from luthier.cli import main
from luthier.cli.commands.recorded import runs


def test_a_folder_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["runs"]) == 0
    assert "no runs" in capsys.readouterr().out


def test_the_list(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main.main(["runs"]) == 0
    heads, row = capsys.readouterr().out.splitlines()
    assert heads.split()[0] == "id"
    assert "tiny" in row
    assert "finished" in row
    assert "4/4" in row


def test_one_run(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (run,) = (trained / "runs" / "tiny").iterdir()
    assert main.main(["runs", run.name[:5]]) == 0
    out = capsys.readouterr().out
    assert run.name in out
    assert "held_out/nats_per_byte" in out


def test_json(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main.main(["runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "finished"
    assert main.main(["runs", row["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == row["id"]


def test_runs_may_be_kept_elsewhere(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["runs", "--directory", str(trained / "runs")]) == 0
    assert "tiny" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (1.23456789, "1.235"), (12345.6, "12,346"), (3, "3")]
)
def test_numbers(value, text):
    assert runs._number(value) == text


def test_durations():
    assert runs._duration(3661.5) == "1:01:01"
