"""Trials in lanes: as they would be alone, whatever is in the other lanes."""

import os
import pathlib
import sys
import time

import jax
import numpy as np
import pytest
from sweep_trials import recorded

from luthier import program as programs
from luthier.errors import ValidationError
from luthier.layers.attention import AutoAttention, are_kernels_allowed
from luthier.records import read_metrics
from luthier.study import Paused, Reported, TrialEnded, Work
from luthier.study.engines import (
    Execution,
    Inbox,
    LaneRunner,
    LaneVector,
    MessageWriter,
    Pack,
    PackingChoice,
    Plans,
    Refill,
    StepCost,
    compile_lanes,
    execution,
)
from luthier.study.engines.packed_trials import best, choose, powers

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
        self.execution.wait_until_closed()
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
            watcher.answer("continue" if event.trial != 1 else "prune")

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


@pytest.mark.full
def test_user_code_that_exits_fails_its_trial_and_not_the_lanes(
    plans, tiny, write_trial, tmp_path, monkeypatch
):
    validate = execution.graphs.validate

    def check(graph, *given):
        if graph.seed == 7:
            sys.exit(75)  # the code by which a worker says that its devices were taken away
        return validate(graph, *given)

    monkeypatch.setattr(execution.graphs, "validate", check)
    graphs = tiny(*TRIALS[0]), tiny("seed=7"), tiny(*TRIALS[1])
    trials = [write_trial(tmp_path, i, graph) for i, graph in enumerate(graphs)]
    found = Slice(plans).run(Work(trials, hoist=HOIST, lanes="vmap"))
    outcomes = {trial: ended.outcome for trial, ended in found.items()}
    assert outcomes == {0: "complete", 1: "failed", 2: "complete"}
    assert found[1].reason == "SystemExit: 75"


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


def _recorded(study, trial):
    return recorded(pathlib.Path(study, "trials", f"{trial:04d}", "run", "metrics.jsonl"))


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["single", "vmap"])
def test_a_promoted_trial_resumes_on_another_group_as_if_it_had_never_paused(
    lanes, plans, tiny, write_trial, tmp_path
):
    def lease(folder, numbers, answers, plans=plans, fence=1):
        trials = [write_trial(folder, i, tiny(*TRIALS[i]), fence=fence) for i in numbers]
        slice = Slice(plans)

        def on_event(event):
            if isinstance(event, Reported):
                verdict = answers.get((event.trial, event.step), "continue")
                slice.inbox._watchers[event.trial, event.fence].answer(verdict)

        slice.on_event = on_event
        slice.run(Work(trials, hoist=HOIST, lanes=lanes, asks=True, spare_lanes=2 - len(trials)))
        return slice.events

    whole, paused = tmp_path / "whole", tmp_path / "paused"
    lease(whole, (0, 1), {})
    found = lease(paused, (0, 1), {(1, 5): "pause"})
    assert [(e.trial, e.step) for e in found if isinstance(e, Paused)] == [(1, 5)]
    # Its place is free: the neighbour went on to its end.
    assert [e.trial for e in found if isinstance(e, TrialEnded)] == [0]
    assert {(e.step, e.fraction) for e in found if isinstance(e, Reported)} == {(5, 0.5), (10, 1.0)}
    elsewhere = Plans(jax.devices()[2:4])
    again = lease(paused, (1,), {}, plans=elsewhere, fence=2)
    assert [(e.trial, e.outcome) for e in again if isinstance(e, TrialEnded)] == [(1, "complete")]
    assert len(_recorded(whole, 1)) == 12
    assert _recorded(paused, 1) == _recorded(whole, 1)


@pytest.mark.full
def test_what_was_measured_is_kept_for_the_program(plans, tiny, write_trial, tmp_path, monkeypatch):
    asked = []

    def choose(plan_for, devices, num_trials, memory_bytes, num_expected, agree):
        asked.append((num_trials, num_expected))
        return PackingChoice("map", 2)

    monkeypatch.setattr("luthier.study.engines.packed_trials.choose", choose)
    trials = [write_trial(tmp_path, i, tiny(*words)) for i, words in enumerate(TRIALS[:3])]
    slice = Slice(plans)
    found = slice.run(Work(trials, hoist=HOIST, lanes="auto", num_expected=20))
    assert {ended.result["mode"]["lanes"] for ended in found.values()} == {"map"}
    assert asked == [(3, 20)]


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


PACK_HOIST = ("optimizer.learning_rate.peak", "optimizer.b2", "seed")


@pytest.fixture(scope="module")
def program(tiny):
    """Return the program of one trial on one device."""
    return programs.make(tiny(), jax.devices()[:1], PACK_HOIST)


def _batch(program, seed):
    rows = next(iter(program.experiment.data.iterator(global_batch_size=4, seed=seed)))
    return {n: jax.device_put(rows[n], s.sharding) for n, s in program.batch.items()}


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["vmap", "map", "shard"])
def test_the_first_update_of_a_lane_is_that_of_the_step_alone(program, tiny, lanes):
    graphs = [tiny(f"{PACK_HOIST[0]}={0.01 * i}", f"seed={i}") for i in (1, 2)]
    pack = Pack(compile_lanes(program, lanes, 2, jax.devices()[:2]))
    step, expected = program.compile_step(), []
    for lane, graph in enumerate(graphs):
        values = program.values(graph)
        lane_step = pack.train_step(lane)
        leaves = lane_step.leaves(lane_step.load(values, program.init(values)))
        for own, wanted in zip(leaves, program.init(values), strict=True):
            np.testing.assert_array_equal(own, wanted)
        expected.append(step(values, program.init(values), _batch(program, lane)))
    vectors = pack.step({lane: _batch(program, lane) for lane in (0, 1)})
    for lane, (leaves, vector) in enumerate(expected):
        np.testing.assert_allclose(np.asarray(LaneVector(vectors, lane)), vector, rtol=1e-6)
        for name, own, wanted in zip(program.names, pack.leaves(lane), leaves, strict=True):
            apart = np.linalg.norm(np.float64(own) - np.float64(wanted))
            assert apart <= 1e-6 * max(np.linalg.norm(np.float64(wanted)), 1e-30), name


@pytest.mark.full
@pytest.mark.parametrize("lanes", ["map", "shard"])
def test_a_lane_without_a_trial_is_not_computed(program, lanes):
    pack, values = Pack(compile_lanes(program, lanes, 2, jax.devices()[:2])), program.values()
    for lane in (0, 1):
        pack.load(lane, values, program.init(values))
    pack.step({1: _batch(program, 0)})
    (name,) = [i for i, n in enumerate(program.names) if n == "step"]
    assert [int(pack.leaves(lane)[name]) for lane in (0, 1)] == [0, 1]


@pytest.mark.parametrize("lanes", ["vmap", "map"])
def test_lanes_that_are_batched_forgo_the_kernels_of_attention(tiny, lanes, monkeypatch):
    allowed, choose = set(), AutoAttention.choose

    def recorded(self, *shapes, **terms):
        allowed.add(are_kernels_allowed())
        return choose(self, *shapes, **terms)

    monkeypatch.setattr(AutoAttention, "choose", recorded)
    program = programs.make(tiny(), jax.devices()[:1], PACK_HOIST)
    assert program.scalar_names  # traces the step of one trial
    allowed.clear()
    compile_lanes(program, lanes, 2, jax.devices()[:1])
    assert allowed == {lanes == "map"}


@pytest.mark.full
def test_what_is_compiled_is_shared_by_all_graphs_of_the_program(program, tiny):
    devices = jax.devices()[:1]
    packed = compile_lanes(program, "map", 2, devices)
    assert compile_lanes(program.of(tiny("seed=9")), "map", 2, devices) is packed
    assert compile_lanes(program, "map", 3, devices) is not packed
    assert packed.step_bytes > 0


def test_lanes_that_cannot_be_shared_out_are_refused(program):
    with pytest.raises(ValidationError) as caught:
        compile_lanes(program, "shard", 3, jax.devices()[:2])
    assert str(caught.value) == ("packing.num_lanes: 3 lanes cannot be split over 2 devices")


KINDS = {"vmap": (2, 4, 8), "map": (2, 4, 8)}


def _measured(table, asked):
    def measure(lanes, num_lanes):
        asked.append((lanes, num_lanes))
        seconds = table.get((lanes, num_lanes))
        return None if seconds is None else StepCost(seconds, 0.0)

    return measure


def test_the_fastest_lanes_are_chosen():
    asked = []
    table = {("vmap", 2): 0.8, ("vmap", 4): 0.5, ("vmap", 8): 0.6, ("map", 2): 0.9, ("map", 4): 0.4}
    choice = best(StepCost(1.0, 0.0), KINDS, 8, 10_000, _measured(table, asked))
    assert choice == PackingChoice("map", 4)
    assert asked == [("vmap", 2), ("vmap", 4), ("vmap", 8), ("map", 2), ("map", 4), ("map", 8)]


def test_a_kind_is_left_where_it_gets_slower_or_does_not_fit():
    asked = []
    table = {("vmap", 2): 1.1}
    assert best(StepCost(1.0, 0.0), KINDS, 8, 10_000, _measured(table, asked)) == PackingChoice(
        "single"
    )
    assert asked == [("vmap", 2), ("map", 2)]


@pytest.mark.parametrize(("seconds", "chosen"), [(0.96, "single"), (0.94, "vmap")])
def test_a_gain_of_less_than_five_percent_is_none(seconds, chosen):
    choice = best(
        StepCost(1.0, 0.0), {"vmap": (2,)}, 2, 10_000, _measured({("vmap", 2): seconds}, [])
    )
    assert choice.lanes == chosen


def test_nothing_is_measured_that_costs_more_than_a_small_part_of_the_trials():
    asked = []
    # 16 trials of 50 steps of 4 ms are over before a compile of 6 s pays.
    choice = best(StepCost(0.004, 3.0), KINDS, 16, 50, _measured({}, asked))
    assert (choice, asked) == (PackingChoice("single"), [])
    best(StepCost(0.004, 3.0), KINDS, 16, 5_000, _measured({}, asked))
    assert asked == [("vmap", 2), ("map", 2)]
    # Sixteen lanes, and a study of 2,000 trials: measured once, it pays for all of them.
    asked.clear()
    best(StepCost(0.004, 3.0), KINDS, 16, 50, _measured({}, asked), num_expected=2_000)
    assert asked == [("vmap", 2), ("map", 2)]


def test_one_trial_has_nobody_to_share_with():
    asked = []
    best(StepCost(1.0, 0.0), KINDS, 1, 10_000, _measured({}, asked))
    assert asked == []


def test_lanes_of_one_device_each_are_weighed_in_multiples_of_the_devices():
    asked = []
    table = {("shard", 2): 0.7, ("shard", 4): 0.5, ("vmap", 2): 0.9, ("vmap", 4): 0.95}
    counts = {"vmap": (2, 4), "shard": (2, 4, 8)}
    choice = best(StepCost(1.0, 0.0), counts, 6, 10_000, _measured(table, asked))
    assert choice == PackingChoice("shard", 4, num_devices=1)
    assert asked == [("vmap", 2), ("vmap", 4), ("shard", 2), ("shard", 4)]


def test_powers_of_two():
    assert [powers(most) for most in (0, 1, 2, 7, 8)] == [[], [], [2], [2, 4], [2, 4, 8]]
