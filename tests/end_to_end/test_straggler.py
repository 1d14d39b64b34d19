"""One of two real processes is slowed down, and the run says which."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WORDS = (
    "configs.lm.quickstart",
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=32",
    "data.length=32",
    "training.global_batch_size=8",
    "training.steps=100000",
    "evaluations={}",
    "records.wandb=None",
    "--processes",
    "2",
    "--devices",
    "cpu:2",
)


def _children(process):
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(map(int, path.read_text().split()))


def _lines(place, name):
    paths = place.glob(f"runs/*/*/{name}")
    return [line for path in paths for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slowed_process_is_named_in_the_console_and_the_record(tmp_path):
    (tmp_path / "a.txt").write_text("To be, or not to be, that is the question.\n" * 200)
    source = f"data.source:=luthier.data.TextFiles('{tmp_path}/*.txt')"
    process = subprocess.Popen(
        [sys.executable, "-m", "luthier", "train", *WORDS, source],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 500
    while not _lines(tmp_path, "metrics.jsonl"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    slow = _children(process)[1]

    def report():
        notices = [line for line in _lines(tmp_path, "metrics.jsonl") if '"notice"' in line]
        return [line for line in notices if "process 1 of 2 on " in line and " is slow: " in line]

    # It runs for a fifth of the time.
    while not report():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, _lines(tmp_path, "hosts.jsonl")[-3:]
        os.kill(slow, signal.SIGSTOP)
        time.sleep(0.04)
        os.kill(slow, signal.SIGCONT)
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (75, "")
    assert "process 1 of 2 on " in out
    row = json.loads(_lines(tmp_path, "hosts.jsonl")[-1])
    assert [host["process"] for host in row["hosts"]] == [0, 1]
    assert row["hosts"][1]["device_seconds"] > 1.3 * row["hosts"][0]["device_seconds"]
