"""A run's folder that is moved, and a lock that is deleted, while `luthier train` writes there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from luthier import graph as graphs

STEPS = 150
FAST = (
    f"training.steps={STEPS}",
    "checkpoints.every.count=7",
    "evaluations.held_out.every.count=200",
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def begin(tiny, root, tmp_path):
    """Return a function that starts the same training in a process of its own."""
    recorded = tmp_path / "experiment.json"
    recorded.write_text(graphs.to_json(tiny(root, *FAST)))
    processes = []

    def start(*options):
        command = [sys.executable, "-m", "luthier", "train", str(recorded), *options]
        # Elsewhere than the test: what the process writes must not depend on its own folder.
        processes.append(
            subprocess.Popen(
                command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def training(process, root):
    """Return the folder of a run that has trained for a while, and has saved."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for metrics in root.glob("*/*/metrics.jsonl"):
            if len(list(metrics.parent.glob("checkpoints/*/commit.json"))) > 1:
                return metrics.parent
        time.sleep(0.02)
    raise AssertionError("the run saved nothing")


def steps(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row["step"] for row in map(json.loads, lines) if row["kind"] == "step"]


def content(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def ended(process):
    """Return the exit code and the last line that the process printed of itself."""
    _, errors = process.communicate(timeout=120)
    return process.returncode, "".join(errors.strip().splitlines()[-1:])


@pytest.mark.full
def test_a_run_that_is_moved_ends_and_does_not_come_back_at_the_old_path(begin, root, tmp_path):
    process = begin()
    folder = training(process, root)
    moved = tmp_path / "moved" / folder.name
    moved.parent.mkdir()
    os.rename(folder, moved)
    code, line = ended(process)
    assert code == 1
    assert "was moved or deleted while it was in use" in line
    assert not folder.exists()

    recorded = steps(moved)
    assert recorded == list(range(1, len(recorded) + 1))
    moved.rename(folder)
    again = begin()
    assert ended(again)[0] == 0
    assert steps(folder) == list(range(1, STEPS + 1))


@pytest.mark.full
def test_a_writer_that_was_stopped_writes_nothing_after_another_took_its_place(begin, root):
    first = begin()
    folder = training(first, root)
    first.send_signal(signal.SIGSTOP)
    refused = begin()
    code, line = ended(refused)
    assert code == 2
    assert f"is being written by process {first.pid}" in line

    (folder / "lock").unlink()
    second = begin()
    assert ended(second)[0] == 0
    assert steps(folder) == list(range(1, STEPS + 1))
    # A file that the first was writing when it was stopped is its own: it takes that one away.
    unfinished = set(folder.rglob(f".*.{first.pid}-*.tmp"))
    before = content(folder)
    first.send_signal(signal.SIGCONT)
    code, line = ended(first)
    assert code == 1
    assert "nothing more was written" in line
    after = content(folder)
    assert after == {path: time for path, time in before.items() if path not in unfinished}
