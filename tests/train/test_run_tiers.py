"""A run with a fast tier goes on from the nearest checkpoint, to the same result."""

from __future__ import annotations

import json

import pytest

from luthier import graph as graphs
from luthier import plan as plans
from luthier import train
from luthier.parallel import hosts
from luthier.train.interrupt import Watcher
from luthier.train.loop import OwnSlot
from luthier.train.opening import Request
from luthier.train.run import session

FAST = 'checkpoints.fast=luthier.checkpoint.FastTier("{}", luthier.durations.Steps(2))'


def _stop_after(graph, steps):
    """Train some steps, and leave without a save."""
    plan = plans.make(graph, hosts.devices())
    slot = OwnSlot(plan.program)
    training = session(graph, plan, slot, Request(), Watcher())
    fed = next(training)
    for _ in range(steps):
        fed = training.send(slot.step(fed.arrays))
    training.close()


@pytest.mark.parametrize("copying", ["HostCopy", "DeviceCopy"])
def test_a_stopped_run_goes_on_from_the_fast_tier(tiny, finished, tmp_path, copying):
    fast, runs = tmp_path / "fast", tmp_path / "runs"
    graph = tiny(runs, FAST.format(fast), f"checkpoints.copying=luthier.checkpoint.{copying}()")
    _stop_after(graph, 9)
    (run,) = (runs / graphs.get(graph, "name")).iterdir()
    assert sorted(p.name for p in (run / "checkpoints").iterdir() if p.is_dir()) == ["5"]
    assert [p.name for p in next(fast.iterdir()).iterdir()] == ["8"]
    result = train.run(graph)
    assert result.directory == run
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert [line["step"] for line in lines if line["kind"] == "header"] == [0, 8]
    whole = (finished.directory / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["values"]["loss"] for line in whole if '"kind": "step"' in line]
    assert [line["values"]["loss"] for line in steps] == losses
    assert list(fast.iterdir()) == []  # the last checkpoint is durable
