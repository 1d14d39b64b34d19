"""Mirrors of many runs by one process, as the worker of a sweep keeps them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time

import pytest

from luthier.records import Ended, Header, Records, RunDirectory, Step, Wandb
from luthier.records.weights_and_biases import shared_mirrors


@pytest.fixture
def runs(tmp_path, configuration):
    return [
        RunDirectory.create(tmp_path, "study", f"trial{number}", configuration=configuration)
        for number in range(3)
    ]


def begin(run, **settings):
    recorder = Records(console=None, wandb=Wandb(mode="offline", **settings)).open(run)
    recorder.emit(Header("demo"))
    recorder.emit(Step(1, {"loss": float(run.id[-1])}))
    return recorder


def end(recorder):
    """Close a run; return how long that took."""
    recorder.emit(Ended("finished", 1))
    start = time.monotonic()
    recorder.close()
    return time.monotonic() - start


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def id_of(run):
    return json.loads((run.path / "wandb.json").read_text())["id"]


@pytest.mark.full
def test_the_real_wandb_keeps_runs_apart_that_are_open_at_once(runs, read_wandb):
    with shared_mirrors():
        recorders = [begin(run) for run in runs[:2]]
        for recorder in recorders:
            end(recorder)
    for number, run in enumerate(runs[:2]):
        (directory,) = (run.path / "wandb").glob("offline-run-*")
        contents = read_wandb(directory)
        assert contents["run"]["run_id"] == id_of(run)
        assert [row["train/loss"] for row in contents["history"]] == [number]
        assert (contents["summary"]["status"], contents["exit"]) == ("finished", 0)


def test_the_end_of_a_run_waits_for_nothing(runs, fake, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_WANDB", "hang in finish")
    with shared_mirrors():
        for run in runs:
            assert end(begin(run, finish_seconds=1.0)) < 0.5
        # All come to their end with wandb: one that hangs holds up no other.
        wait_for(lambda: len(fake("finish")) == 3)
    left_behind = re.findall(r"process (\d+) continues in the background", capfd.readouterr().err)
    assert len(left_behind) == 3
    (process,) = map(int, set(left_behind))
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # whoever watches it has waited for it first
        os.waitpid(process, 0)


def test_a_process_that_dies_is_reported_by_its_runs_and_replaced_for_the_next(
    runs, fake, monkeypatch, capfd
):
    monkeypatch.setenv("FAKE_WANDB", "die in finish")
    with shared_mirrors():
        ended, running = begin(runs[0]), begin(runs[1])
        wait_for(lambda: len(fake("init")) == 2)
        end(ended)
        wait_for(lambda: "trial0: W&B stopped: its process was ended by signal 9" in err(capfd))
        monkeypatch.delenv("FAKE_WANDB")
        last = begin(runs[2])
        end(running)
        end(last)
    notice = "W&B stopped: its process was ended by signal 9; training continues; `luthier runs"
    assert f"{notice} trial1 --sync wandb`" in runs[1].metrics_path.read_text()
    assert [call["id"] for call in fake("init")][-1] == id_of(runs[2])
    assert len(fake("finish")) == 2


def err(capfd, seen=[]):  # noqa: B006 - what was printed before is kept between calls
    seen.append(capfd.readouterr().err)
    return "".join(seen)
