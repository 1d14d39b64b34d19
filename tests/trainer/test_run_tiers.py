"""A run with a fast tier goes on from the nearest checkpoint, to the same result."""

from __future__ import annotations

import contextlib
import json
import threading

import jax
import pytest

from luthier import graph as graphs
from luthier import planner, trainer
from luthier.checkpoint import commit
from luthier.trainer import CompiledStep, Request, Watcher, open_session

FAST = 'checkpoints.fast=luthier.checkpoint.FastTier("{}", luthier.durations.Steps(2))'


def _stop_after(graph, steps):
    """Train some steps, and leave without a save."""
    plan = planner.make(graph, jax.devices())
    step = CompiledStep(plan.program)
    with (
        contextlib.suppress(GeneratorExit),
        open_session(graph, plan, step, Request(), Watcher()) as session,
    ):
        loop = session.loop
        loop.begin()
        for _ in range(steps):
            loop.advance(loop.next_batch())
        raise GeneratorExit


@pytest.mark.full
@pytest.mark.parametrize("copying", ["HostCopy", "DeviceCopy"])
def test_a_stopped_run_goes_on_from_the_fast_tier(tiny, finished, tmp_path, copying):
    fast, runs = tmp_path / "fast", tmp_path / "runs"
    graph = tiny(runs, FAST.format(fast), f"checkpoints.copying=luthier.checkpoint.{copying}()")
    _stop_after(graph, 9)
    (run,) = (runs / graphs.get(graph, "name")).iterdir()
    assert sorted(p.name for p in (run / "checkpoints").iterdir() if p.is_dir()) == ["5"]
    assert [p.name for p in next(fast.iterdir()).iterdir()] == ["8"]
    result = trainer.run(graph)
    assert result.directory == run
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert [line["step"] for line in lines if line["kind"] == "header"] == [0, 8]
    whole = (finished.directory / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["values"]["loss"] for line in whole if '"kind": "step"' in line]
    assert [line["values"]["loss"] for line in steps] == losses
    assert list(fast.iterdir()) == []  # the last checkpoint is durable


@pytest.mark.full
def test_what_only_the_fast_tier_holds_is_saved_for_good_before_it_is_discarded(tiny, tmp_path):
    """The run is over where it is: no step is left that would be followed by a save."""
    fast, runs = tmp_path / "fast", tmp_path / "runs"
    graph = tiny(runs, FAST.format(fast), "checkpoints.every=None")
    _stop_after(graph, 9)
    (run,) = (runs / graphs.get(graph, "name")).iterdir()
    assert not list((run / "checkpoints").glob("*/commit.json"))
    shorter = graphs.apply(graph, ["training.stop=luthier.durations.Steps(8)"])
    result = trainer.run(shorter, run=run.name)
    assert (result.directory, result.status, result.step) == (run, "finished", 8)
    assert [p.parent.name for p in (run / "checkpoints").glob("*/commit.json")] == ["8"]
    assert list(fast.iterdir()) == []


@pytest.mark.full
def test_whoever_asks_to_stop_is_heard_until_the_last_state_is_saved(tiny, tmp_path, monkeypatch):
    class Leaving(Watcher):
        left = threading.Event()

        def __exit__(self, *unused):
            self.left.set()

    seen, write = [], commit.write

    def watched(*arguments):
        seen.append(Leaving.left.wait(1.0))
        return write(*arguments)

    monkeypatch.setattr(commit, "write", watched)
    graph = tiny(tmp_path / "runs", "training.steps=2", "checkpoints.every=None")
    plan = planner.make(graph, jax.devices())
    step = CompiledStep(plan.program)
    with open_session(graph, plan, step, Request(), Leaving()) as session:
        session.run()
    assert (session.outcome.status, seen, Leaving.left.is_set()) == ("finished", [False], True)
