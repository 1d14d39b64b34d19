"""Faults of steps: what is not a number, spikes, and losses that rise for good."""

from __future__ import annotations

import os
import signal

from injecting import injection
from staging import EVERY, LINE, Outcome, Stage, Truth, Truths


def _poison(stage: Stage, byte: int, *places: int) -> None:
    """Put a harmful byte into some of the hundred lines of the text."""
    harmful = LINE.replace("not", f"n{chr(byte)}t")
    lines = [harmful if i in places else LINE for i in range(100)]
    (stage.folder / "text" / "a.txt").write_text("".join(lines))


def _twice(stage: Stage, *overrides: str) -> Outcome:
    """Train undisturbed, and again with a kill amid; the skipped steps must be the same."""
    whole = Stage(stage.machine, stage.folder / "whole", stage.processes)
    (whole.folder / "text" / "a.txt").write_text((stage.folder / "text" / "a.txt").read_text())
    whole.train(*overrides)
    truth = Truth(whole.losses(), whole.parameters())
    stage.slow()
    started = stage.start(*overrides)
    stage.until_saved(2 * EVERY, started)
    for pid in [*started.children, started.pid]:
        os.kill(pid, signal.SIGKILL)
    started.wait()
    stage.hurry()
    reached = stage.last_step()
    stage.train(*overrides)
    lost = reached - stage.began()
    skipped = [row["values"]["skipped"] for row in stage.rows("step")]
    assert 0 < sum(skipped) < len(skipped) / 2, skipped
    notices = [line for line in stage.notices().splitlines() if "is skipped: gradient norm" in line]
    assert len(set(notices)) == sum(skipped)
    return Outcome("a notice at the step; its update is skipped", 0.0, lost, _same(stage, truth))


def _same(stage: Stage, truth: Truth) -> str:

    found, expected = stage.losses(), truth.losses
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert repr(found) == repr(expected), "bit-identical losses, those that are no numbers too"
    for name, array in stage.parameters().items():
        assert array.tobytes() == truth.arrays[name].tobytes(), name
    return "bit-identical"


@injection("steps with a NaN loss", 1, 2)
def nan_step(stage: Stage, truths: Truths) -> Outcome:
    _poison(stage, 1, 3, 43, 83)
    return _twice(stage)


@injection("steps whose gradient spikes", 1, 2)
def spike_step(stage: Stage, truths: Truths) -> Outcome:
    _poison(stage, 2, 37)
    return _twice(stage, "training.guard:=luthier.optim.Guard(spike_factor=10, warmup_steps=8)")


@injection("NaN in every step", 1, 2)
def nan_for_ever(stage: Stage, truths: Truths) -> Outcome:
    _poison(stage, 1, *range(100))
    started = stage.train(code=1)
    first = stage.rows("step")[0]["time"]
    seconds = stage.rows("ended")[0]["time"] - first
    (line,) = set(started.stderr.splitlines())
    assert "10 steps in a row had a non-finite or spiking gradient and were skipped" in line, line
    assert stage.status()["status"] == "diverged"
    return Outcome("stops after 10 in a row, suggests what to check", seconds, 0, "parameters kept")


@injection("a loss that diverges, and stays finite", 1, 2)
def divergence(stage: Stage, truths: Truths) -> Outcome:
    rate = "optimizer.learning_rate=100"
    watch = "training.divergence:=luthier.program.Divergence(rise=1.0, patience_steps=5)"
    started = stage.train(rate, watch, code=1)
    rows = stage.rows("step")
    seconds = stage.rows("ended")[0]["time"] - rows[0]["time"]
    (line,) = set(started.stderr.splitlines())
    assert "has been more than 1 above its best (" in line, line
    assert "for 5 steps. Go back to a checkpoint of before step " in line
    assert rows[-1]["step"] < 60
    again = stage.train(rate, watch, code=1)
    assert set(again.stderr.splitlines()) == {line}, "resumed, it comes to the same"
    return Outcome("stops, names the step of the best loss", seconds, 0, "stops at the same step")
