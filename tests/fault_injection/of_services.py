"""Faults of what is around a run: W&B, and the clock."""

from __future__ import annotations

import os
import pathlib
import signal
import time

from injecting import injection, resumed
from machine import Started
from staging import EVERY, Outcome, Stage, Truths, compare

WANDB = 'records.wandb:=luthier.records.Wandb(mode="{}")'
KEY = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_SILENT": "true"}


@injection("W&B cannot be reached", 1, 2)
def wandb_unreachable(stage: Stage, truths: Truths) -> Outcome:
    stage.slow(0.2)
    started = stage.start(WANDB.format("auto"), environment=KEY)
    stage.until(lambda: "cannot be reached" in stage.notices(), started)
    (row,) = [row for row in stage.rows("notice") if "cannot be reached" in row["text"]]
    seconds = row["time"] - stage.rows("header")[0]["time"]
    assert row["text"].startswith("W&B: "), row["text"]
    stage.hurry()
    assert started.wait() == 0
    agreed = compare(stage, truths.of(stage.processes))
    return Outcome("a notice; offline files and the JSON lines are kept", seconds, 0, agreed)


def _service(started: Started) -> int:
    """Return the process of a run's mirror, or 0."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"weights_and_biases" in words and parent == started.pid:
            return int(path.name)
    return 0


@injection("the service of W&B crashes")
def wandb_crash(stage: Stage, truths: Truths) -> Outcome:
    stage.slow(0.5)
    started = stage.start(WANDB.format("offline"), environment=KEY)
    stage.until(lambda: _service(started), started)
    stage.until_step(1, started)
    since = time.monotonic()
    os.kill(_service(started), signal.SIGKILL)
    stage.until(lambda: "W&B stopped: " in stage.notices(), started)
    seconds = time.monotonic() - since
    notice = "W&B stopped: its process was ended by signal 9; training continues; `luthier runs "
    assert notice in stage.notices()
    stage.hurry()
    assert started.wait() == 0
    agreed = compare(stage, truths.of(1))
    return Outcome("a notice; training continues", seconds, 0, agreed)


@injection("the clock goes back an hour", 1, 2)
def clock(stage: Stage, truths: Truths) -> Outcome:
    stage.slow()
    started = stage.start()
    stage.until_saved(EVERY, started)
    (stage.folder / "clock").write_text("-3600")
    stage.until_saved(3 * EVERY, started)
    started.send(signal.SIGTERM)
    assert started.wait() == 75
    outcome = resumed(stage, truths, "not a fault: nothing is ordered by the clock", 0.0)
    assert outcome.lost == 0
    return outcome
