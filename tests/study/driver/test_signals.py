"""A study whose machine is taken away, or whose worker crashes, goes on where it was."""

import json
import random
import re
import signal
import sys
import time

import kills
import pytest
from test_loop_real_kills import write_project

from luthier.cli import main
from luthier.records import RunDirectory

LONG = (
    "training.steps=100000",
    "checkpoints.every.count=50000",
    "evaluations.held_out.every.count=50000",
)


@pytest.fixture
def study(tmp_path):
    """Return a study of one long trial, which a process drives."""
    made = kills.Trained(write_project(tmp_path / "project", LONG), "random", 1, 1)
    yield made
    if made.is_running():
        made.kill_driver()


def _steps(run, starts=0):
    """Return the steps of a run once it was started so often; before that, none."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    if sum(row["kind"] == "header" for row in rows) < starts:
        return []
    return [row["step"] for row in rows if row["kind"] == "step"]


def _wait(study, is_so):
    deadline = time.monotonic() + 120
    while not is_so():
        assert study.is_running(), study.output()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_signal_saves_the_running_trial_and_a_native_crash_leaves_its_stacks(study, capsys):
    run = study.path / "trials" / "0000" / "run"
    trained, starts = 0, 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        study.begin()
        starts += 1
        _wait(study, lambda: max(_steps(run, starts), default=0) > trained)  # noqa: B023
        if number == signal.SIGHUP:
            study.kill_worker(random.Random(0), signal.SIGSEGV)
            starts += 1
            _wait(study, lambda: max(_steps(run, starts), default=0) > trained)  # noqa: B023
        study.send(number)
        output = study.output()
        assert study.exit_code == 75, output
        status = RunDirectory(run).read_status()
        assert status.saved_step == status.step > trained, "it is saved, and went on from there"
        trained = status.step
        assert _steps(run) == list(range(1, trained + 1))
        assert study.counts()["ended"] == []
    log = study.path / "workers" / "0.log"
    assert "Fatal Python error: Segmentation fault\n" in log.read_text()
    assert main(["sweep", "show", f"{study.path}/0"]) == 0
    pattern = (
        r"its worker died once before; the last time: its worker was ended by SIGSEGV: "
        r"Segmentation fault; stacks: \S*workers/0\.log\n"
    )
    assert re.search(pattern, capsys.readouterr().out)
