"""Tiny trials of real training, and a loop that drives an engine as a driver would."""

import pathlib
import time

import pytest

from luthier import graph as graphs
from luthier.records import events, read_events
from luthier.study import Lost, TrialEnded, TrialWork

TINY = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.steps=10",
    "training.global_batch_size=4",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "checkpoints.every.count=4",
    "evaluations.held_out.every.count=5",
    "evaluations.held_out.num_batches=2",
    "evaluations.held_out.global_batch_size=4",
    "optimizer.learning_rate.warmup_steps=2",
    "records.console=None",
    "records.wandb=None",
)


_MEASURED = {
    *("step_seconds", "steps_per_second", "tokens_per_second", "data_wait_seconds"),
    *("memory_bytes", "mfu", "seconds"),
}


def recorded(path):
    """Return all that a metrics.jsonl has of steps and evaluations, but what a clock measured."""
    return [
        (step, type(event).__name__, {k: v for k, v in event.values.items() if k not in _MEASURED})
        for _, step, event in read_events(path)
        if isinstance(event, events.Step | events.Evaluation)
    ]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a function from overrides to a tiny experiment."""
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text("To be, or not to be, that is the question.\n" * 30)
    text = f"luthier.data.TextFiles('{folder}/*.txt')"
    own = (f"data.source:={text}", f"evaluations.held_out.data.source:={text}")
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*TINY, *own])
    return lambda *overrides: graphs.apply(graph, list(overrides))


@pytest.fixture(scope="session")
def write_trial():
    """Return a function that writes the directory of a trial and returns its work."""

    def write(study, number, graph, fence=1):
        directory = pathlib.Path(study, "trials", f"{number:04d}")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(graphs.to_json(graph))
        return TrialWork(number, fence, str(directory))

    return write


@pytest.fixture(scope="session")
def until():
    """Return a function that collects events until as many trials ended as were wanted."""

    def collect(engine, wanted, seconds=300, on_event=lambda event: None):
        found, deadline = [], time.monotonic() + seconds
        while sum(isinstance(e, TrialEnded | Lost) for e in found) < wanted:
            assert time.monotonic() < deadline, found
            for event in engine.events(1.0):
                on_event(event)
                found.append(event)
        return found

    return collect
