"""Runs whose records are damaged are listed, shown and compared, and a line tells of it."""

import json
import shutil

import pytest

from luthier.cli import main
from luthier.records import read_metrics


@pytest.fixture
def damaged(trained, tmp_path, monkeypatch):
    """A project with two runs; the record of the first has three zero bytes in its middle."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (run,) = tmp_path.glob("runs/tiny/*")
    shutil.copytree(run, run.with_name("other"))
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    at = next(i for i, line in enumerate(map(json.loads, lines)) if line["step"] == 2)
    for path, index in ((run / "metrics.jsonl", at), (run / "goodput.jsonl", 1)):
        raw = path.read_bytes().splitlines(keepends=True)
        raw[index] = raw[index][:20] + b"\0\0\0" + raw[index][23:]
        path.write_bytes(b"".join(raw))
    notice = f"metrics.jsonl: line {at + 1} is damaged; what is whole was read"
    return run, notice


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["runs", "{}"],
        ["runs", "{}", "--json"],
        ["runs", "{}", "other", "--diff"],
        ["diff", "run:{}", "run:other"],
        ["diff", "run:{}", "run:other", "--effects"],
    ],
    ids=" ".join,
)
def test_a_line_reports_damage_and_everything_else_is_shown(damaged, capsys, words):
    run, notice = damaged
    assert main([word.format(run.name) for word in words]) == 0
    found = capsys.readouterr()
    lines = [line for line in found.err.splitlines() if "effects imports" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("luthier: ")
    assert lines[0].endswith(notice)
    assert found.out
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl", report=print)] == [1, 3, 4]


def test_goodput_reports_damage_in_a_line(damaged, capsys):
    run, _ = damaged
    assert main(["runs", run.name, "--goodput"]) == 0
    found = capsys.readouterr()
    assert found.out
    (line,) = found.err.splitlines()
    assert line.endswith("goodput.jsonl: line 2 is damaged; what is whole was read")
