"""Trials in lanes: as they would be alone, whatever is in the other lanes."""

import os
import pathlib
import time

import jax
import numpy as np
import pytest

from luthier.records.metrics_file import read_metrics
from luthier.study.engines.execution import Execution, Inbox, Plans
from luthier.study.engines.messages import MessageWriter, Refill
from luthier.study.engines.packed_trials import LaneRunner, PackingChoice, choose
from luthier.study.protocol import Reported, TrialEnded, Work

PEAK = "optimizer.learning_rate.peak"
HOIST = (PEAK, "optimizer.b2", "seed")
TRIALS = [(f"{PEAK}={0.001 * (i + 1)}", f"optimizer.b2={0.95 + 0.01 * i}") for i in range(4)]


class Slice:
    """A slice without a process: its inbox is a pipe, its events are a list."""

    def __init__(self, plans, memory_bytes=None):
        received, sent = os.pipe()
        self.events, self.on_event = [], lambda event: None
        self.execution = Execution(0, plans, (), memory_bytes, self._send)
        self.inbox = Inbox(os.fdopen(received, "rb"), self.execution.watcher)
        self.writer = MessageWriter(os.fdopen(sent, "wb"))
        self.lanes = LaneRunner(self.execution, self.inbox)

    def _send(self, event):
        self.events.append(event)
        self.on_event(event)

    def run(self, work, refills=()):
        """Run work to its end; return how its trials ended."""
        for message in (work, *map(Refill, refills)):
            self.writer.send(message)
        self.wait_for(len(work.trials) + len(refills))
        while (task := self.inbox.take()) is not None:
            if work.lanes == "single":
                self.execution.run(work, task.trial, task.watcher)
            else:
                self.lanes.run(task)
        return {event.trial: event for event in self.events if isinstance(event, TrialEnded)}

    def wait_for(self, number):
        deadline = time.monotonic() + 60
        while self.inbox.num_waiting < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture(scope="module")
def plans():
    """Return the plans for two devices, so that all tests share what is compiled."""
    return Plans(jax.devices()[:2])


@pytest.fixture(scope="module")
def alone(plans, tiny, write_trial, tmp_path_factory):
    """Return the results and the folder of the trials, run one after another."""
    study = tmp_path_factory.mktemp("alone")
    trials = [write_trial(study, i, tiny(*words)) for i, words in enumerate(TRIALS)]
    return Slice(plans).run(Work(trials, hoist=HOIST)), study


def _losses(study, trial):
    run = pathlib.Path(study, "trials", f"{trial:04d}", "run")
    return np.array([row["loss"] for row in read_metrics(run / "metrics.jsonl")])


def _assert_equal(found, study, expected, other, rtol):
    for trial, ended in found.items():
        assert ended.outcome == "complete", ended.reason
        np.testing.assert_allclose(_losses(study, trial), _losses(other, trial), rtol=rtol)
        pairs = zip(ended.result["series"], expected[trial].result["series"], strict=True)
        for (step, values), (wanted_step, wanted) in pairs:
            assert step == wanted_step
            assert values == pytest.approx(wanted, rel=rtol)


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["vmap", "map", "shard"])
def test_packed_trials_are_what_they_are_alone(lanes, plans, alone, tiny, write_trial, tmp_path):
    trials = [write_trial(tmp_path, i, tiny(*words)) for i, words in enumerate(TRIALS)]
    slice = Slice(plans)
    # Two lanes for four trials: the last two begin in lanes that were used before.
    found = slice.run(Work(trials[:2], hoist=HOIST, lanes=lanes), refills=trials[2:])
    assert len(found) == 4
    expected, other = alone
    _assert_equal(found, tmp_path, expected, other, 1e-5)
    modes = [found[trial].result["mode"] for trial in range(4)]
    assert {(mode["lanes"], mode["num_lanes"]) for mode in modes} == {(lanes, 2)}
    assert {mode["lane"] for mode in modes} == {0, 1}
    assert set(modes[0]["hoisted"]) == set(HOIST)
    for trial in trials:
        assert (pathlib.Path(trial.directory) / "run" / "checkpoints" / "10").is_dir()


@pytest.mark.full
def test_a_trial_does_not_depend_on_its_neighbours(plans, tiny, write_trial, tmp_path):
    losses = []
    for number, other in enumerate(TRIALS[1:3]):
        study = tmp_path / str(number)
        trials = [write_trial(study, i, tiny(*words)) for i, words in enumerate((TRIALS[0], other))]
        Slice(plans).run(Work(trials, hoist=HOIST, lanes="vmap"))
        losses.append(_losses(study, 0))
    np.testing.assert_array_equal(*losses)


@pytest.mark.full
def test_a_pruned_lane_is_refilled_without_compiling(plans, tiny, write_trial, tmp_path):
    trials = [write_trial(tmp_path, i, tiny(*words)) for i, words in enumerate(TRIALS)]
    slice = Slice(plans)

    def on_event(event):
        if isinstance(event, Reported) and event.step == 5:
            watcher = slice.inbox._watchers[event.trial, event.fence]
            watcher.answer(event.trial != 1)

    slice.on_event = on_event
    compiled = set(plans.plan(tiny(), HOIST).program.compiled)
    work = Work(trials[:2], hoist=HOIST, lanes="vmap", asks=True)
    found = slice.run(work, refills=trials[2:])
    assert {n: e.outcome for n, e in found.items()} == {
        0: "complete",
        1: "pruned",
        2: "complete",
        3: "complete",
    }
    assert found[1].result["steps"] == 5
    assert found[2].result["mode"]["lane"] == 1
    known = set(plans.plan(tiny(), HOIST).program.compiled)
    assert known >= compiled
    assert len([key for key in known if key[0] == "lanes" and key[1] == "vmap"]) == 1


@pytest.mark.full
def test_trials_of_another_program_wait_and_what_is_wrong_harms_nobody(
    plans, tiny, write_trial, tmp_path
):
    graphs = [
        tiny(*TRIALS[0]),
        tiny("model.num_layers=2"),
        tiny("data.source:=luthier.data.TextFiles('/nowhere/*.txt')"),
        tiny("parallelism.mesh.fsdp=3"),
        tiny(*TRIALS[1]),
    ]
    trials = [write_trial(tmp_path, i, graph) for i, graph in enumerate(graphs)]
    found = Slice(plans).run(Work(trials[:2], hoist=HOIST, lanes="map"), refills=trials[2:])
    outcomes = {trial: ended.outcome for trial, ended in found.items()}
    assert outcomes == {0: "complete", 1: "complete", 2: "failed", 3: "infeasible", 4: "complete"}
    assert found[0].result["facts"]["parameters"] < found[1].result["facts"]["parameters"]


def test_lanes_that_do_not_fit_the_memory_are_never_run(plans, tiny, write_trial, tmp_path):
    slice = Slice(plans, memory_bytes=1000)
    (ended,) = slice.run(
        Work([write_trial(tmp_path, 0, tiny())], hoist=HOIST, lanes="vmap", spare_lanes=1)
    ).values()
    assert ended.outcome == "infeasible"
    assert ended.reason.startswith("the compiled step of all lanes needs ")
    assert not (tmp_path / "trials" / "0000" / "run").exists()


@pytest.mark.full
def test_a_lane_that_is_stopped_leaves_the_others_alone_and_goes_on_later(
    plans, alone, tiny, write_trial, tmp_path
):
    trials = [write_trial(tmp_path, i, tiny(*words)) for i, words in enumerate(TRIALS[:2])]
    slice = Slice(plans)

    def on_event(event):
        if isinstance(event, Reported) and (event.trial, event.step) == (1, 5):
            slice.inbox._watchers[1, 1].stop()

    slice.on_event = on_event
    work = Work(trials, hoist=HOIST, lanes="vmap")
    assert set(slice.run(work)) == {0}
    slice.on_event = lambda event: None
    again = slice.run(Work(trials[1:], hoist=HOIST, lanes="vmap", spare_lanes=1))
    expected, other = alone
    _assert_equal(again, tmp_path, expected, other, 1e-5)


@pytest.mark.full
def test_what_was_measured_is_kept_for_the_program(plans, tiny, write_trial, tmp_path, monkeypatch):
    asked = []

    def choose(plan_for, devices, num_trials, memory_bytes):
        asked.append(num_trials)
        return PackingChoice("map", 2)

    monkeypatch.setattr("luthier.study.engines.packed_trials.choose", choose)
    trials = [write_trial(tmp_path, i, tiny(*words)) for i, words in enumerate(TRIALS[:3])]
    slice = Slice(plans)
    found = slice.run(Work(trials, hoist=HOIST, lanes="auto"))
    assert {ended.result["mode"]["lanes"] for ended in found.values()} == {"map"}
    assert asked == [3]


def test_on_two_devices_lanes_of_one_device_each_are_weighed_too(tiny):
    plans = Plans(jax.devices()[:2])
    graph = tiny("training.steps=10000000")
    asked = []

    def plan_for(num_devices):
        asked.append(num_devices)
        return plans.plan(graph, HOIST, num_devices)

    choice = choose(plan_for, plans.devices, 2, None)
    assert asked == [0, 0, 0, 1]
    assert (choice.lanes == "shard") == (choice.num_devices == 1)
