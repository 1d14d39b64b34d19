"""What an earlier luthier left behind can still be read, compared, resumed and finished.

`records/first_round.tar.xz` is a project of `luthier init` as luthier 0.1.0 left it before its
journals had checksums and its guard was on by default. It holds a run that was killed after its
checkpoint of step 200 of 400, a finished run, a study that was killed after 3 of 6 trials, and in
`reference/` what the uninterrupted run and study recorded. The archive is never made again: it is
the only witness of what was written then.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parent / "records" / "first_round.tar.xz"


@pytest.fixture
def project(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "proj"


def _luthier(project, *arguments):
    command = [sys.executable, "-m", "luthier", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=_environment())
    return done.returncode, done.stdout + done.stderr


def _environment():
    framework = str(Path(__file__).resolve().parents[2] / "framework")
    return {**os.environ, "PYTHONPATH": framework}


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
def test_runs_are_listed_compared_and_evaluated(project):
    code, output = _luthier(project, "runs")
    assert code == 0, output
    rows = [line.split() for line in output.splitlines()]
    assert ["3d2bf16a", "addition", "interrupted"] in [row[:3] for row in rows], output
    assert ["3d2bf16a", "finished", "finished"] in [row[:3] for row in rows], output
    code, output = _luthier(project, "diff", "run:finished/3d2bf16a", "run:addition/3d2bf16a")
    assert code == 0, output
    assert "name: 'finished' -> 'addition'" in output
    code, output = _luthier(project, "evaluate", "finished/3d2bf16a")
    assert code == 0, output
    measured = dict(line.split()[-2:] for line in output.splitlines() if len(line.split()) >= 2)
    reference = json.loads((project / "reference" / "evaluations.json").read_text())["400"]
    for name, value in reference.items():
        assert float(measured[name]) == pytest.approx(value, rel=1e-3), name


@pytest.mark.full
def test_a_killed_run_is_finished_as_if_it_had_never_been_killed(project):
    """It had no guard, which was the default then, and goes on without one."""
    reference, run = "run:addition/3d2bf16a", project / "runs" / "addition" / "3d2bf16a"
    code, output = _luthier(project, "train", reference, "--run", "addition/3d2bf16a")
    assert code == 0, output
    assert re.search(r"resumed at step +200\b", output), output
    lines = _lines(run / "metrics.jsonl")
    losses = {line["step"]: line["values"]["loss"] for line in lines if line["kind"] == "step"}
    expected = json.loads((project / "reference" / "losses.json").read_text())
    assert list(losses) == [int(step) for step in expected]
    assert list(losses.values()) == pytest.approx(list(expected.values()), rel=1e-3)


@pytest.mark.full
def test_a_killed_study_is_finished_with_the_trials_of_the_undisturbed_one(project):
    code, output = _luthier(project, "sweep", "--resume", "studies/half")
    assert code == 0, output
    lines = _lines(project / "studies" / "half" / "journal.jsonl")
    reference = _lines(project / "reference" / "journal.jsonl")

    def fields(journal, kind, field):
        return [line[field] for line in journal if line["kind"] == kind]

    assert fields(lines, "asked", "assignment") == fields(reference, "asked", "assignment")
    values = [values for (values,) in fields(lines, "ended", "values")]
    assert values == pytest.approx([v for (v,) in fields(reference, "ended", "values")], rel=1e-3)
    assert fields(lines, "ended", "outcome") == ["complete"] * 6
