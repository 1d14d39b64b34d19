"""A run whose machine is lost goes on elsewhere from its copy in an object store."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import processes

STEPS = ("training.steps=400", "checkpoints.every.count=20")


def _start(directory):
    return subprocess.Popen(
        processes.command(*STEPS),
        cwd=directory,
        env=processes.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_machine_loses_at_most_what_was_not_copied(tmp_path, monkeypatch, number):
    """A killed run comes back where it was; one that was preempted, on another machine."""
    alone, first = tmp_path / "alone", tmp_path / "first"
    second = first if number == signal.SIGKILL else tmp_path / "second"
    for folder in {alone, first, second}:
        folder.mkdir()
    processes.train(alone, *STEPS)
    monkeypatch.setenv("LUTHIER_MIRROR", f"file://{tmp_path}/bucket/runs")
    process = _start(first)
    pattern = "bucket/runs/quickstart/*/checkpoints/*/commit.json"
    while not list(tmp_path.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 75}[number]
    assert processes.last_step(first) < 400
    shutil.rmtree(first / "runs")
    processes.train(second, *STEPS)
    assert processes.losses(second) == processes.losses(alone), "each step once, bit-identical"
    headers = [row["step"] for row in processes.lines(second) if row["kind"] == "header"]
    assert len(headers) == 2
    assert headers[0] == 0
    assert headers[1] >= 20
    assert os.listdir(tmp_path / "bucket" / "runs") == ["quickstart"]
