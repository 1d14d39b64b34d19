"""Processes that are really killed lose at most a save interval, and nothing else."""

import json
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import processes
from processes import kill, last_step, losses, run_directory, train, train_until

STEPS = ("training.steps=60", "checkpoints.every.count=10")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    train(directory, *STEPS)
    return losses(directory)


def _check(directory, undisturbed):
    found = losses(directory)
    assert [step for step, _ in found] == list(range(1, 61)), "every step exactly once, in order"
    assert found == undisturbed, "bit-identical losses"


@pytest.mark.full
def test_a_killed_run_resumes_bit_identically(tmp_path, undisturbed):
    process = kill(tmp_path, random.randrange(12, 40), *STEPS)
    assert process.returncode == -signal.SIGKILL
    reached = last_step(tmp_path)
    done = train(tmp_path, *STEPS)
    _check(tmp_path, undisturbed)
    restarts = [row for row in processes.lines(tmp_path) if row["kind"] == "header"]
    assert len(restarts) == 2
    assert reached - restarts[-1]["step"] <= 10 + 10 + 3, "at most what was not yet committed"
    assert "took over the lock" in done.stdout
    again = train(tmp_path, *STEPS)
    assert "is finished" in again.stdout
    _check(tmp_path, undisturbed)


def test_an_interrupt_saves_and_says_how_to_resume(tmp_path, undisturbed):
    process = train_until(tmp_path, 12, signal.SIGINT, *STEPS)
    assert process.returncode == 130
    status = json.loads((run_directory(tmp_path) / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert "to resume: luthier train" in status["message"]
    saved = [int(p.name) for p in (run_directory(tmp_path) / "checkpoints").glob("[0-9]*")]
    assert max(saved) == status["step"]
    train(tmp_path, *STEPS)
    _check(tmp_path, undisturbed)


@pytest.mark.full
def test_a_preemption_saves_and_asks_to_be_requeued(tmp_path, undisturbed):
    process = train_until(tmp_path, 12, signal.SIGTERM, *STEPS)
    assert process.returncode == 75
    train(tmp_path, *STEPS)
    _check(tmp_path, undisturbed)


def test_resumed_on_another_mesh_it_agrees(tmp_path, undisturbed):
    kill(tmp_path, 25, *STEPS)
    (run,) = (tmp_path / "runs" / "quickstart").iterdir()
    mesh = "parallelism.mesh.fsdp=2"
    train(tmp_path, *STEPS, mesh, "--devices", "cpu:8", "--run", run.name)
    found = losses(tmp_path)
    assert [step for step, _ in found] == list(range(1, 61))
    np.testing.assert_allclose(
        [loss for _, loss in found], [loss for _, loss in undisturbed], rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_random_kills(tmp_path):
    long = ("training.steps=400", "checkpoints.every.count=10")
    (undisturbed := tmp_path / "undisturbed").mkdir()
    train(undisturbed, *long)
    rng = random.Random()
    for number in range(10):
        before = last_step(tmp_path)
        # Far enough ahead that the process has begun, so near that ten of them fit in.
        process = kill(tmp_path, before + rng.randrange(1, 25), *long)
        assert process.returncode == -signal.SIGKILL, f"kill {number + 1}: it ended by itself"
    assert last_step(tmp_path) < 400
    train(tmp_path, *long)
    restarts = [row["step"] for row in processes.lines(tmp_path) if row["kind"] == "header"]
    assert len(restarts) == 11
    found = losses(tmp_path)
    assert [step for step, _ in found] == list(range(1, 401)), "every step exactly once, in order"
    assert found == losses(undisturbed), "bit-identical losses"
