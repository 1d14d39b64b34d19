import dataclasses
import errno
import os
import subprocess
import sys
import threading
import time

import jax
import pytest

from luthier.checkpoint import require_space, store
from luthier.errors import (
    CheckpointError,
    DataError,
    ShardingError,
    TrainingStopped,
    ValidationError,
)
from luthier.program import program as programs
from luthier.records import JsonLines, events
from luthier.study import (
    Faulted,
    Reported,
    TrialEnded,
    TrialTrained,
    TrialWork,
    Work,
    hoisting,
    read_result,
    rerun,
)
from luthier.study.engines import (
    EXIT_ORPHANED,
    Answer,
    Close,
    Execution,
    Inbox,
    MessageWriter,
    Plans,
    Refill,
    Stop,
    TrialTask,
    TrialWatcher,
    execution,
    failed,
    summary,
    why_infeasible,
)
from luthier.study.gate import step_bytes
from luthier.study.protocol import NAME, TRACEBACK
from luthier.trainer.evaluate import Evaluator

PEAK = "optimizer.learning_rate.peak"


def _run(plans, work, trial):
    events = []
    made = Execution(0, plans, (), None, events.append)
    task = TrialTask(work, trial, made.watcher(trial, work.asks))
    made.run(work, trial, task.watcher)
    made.wait_until_closed()
    (ended,) = [event for event in events if isinstance(event, TrialEnded)]
    return ended


@pytest.mark.full
def test_trials_of_one_program_compile_once_and_train_with_their_own_values(
    tiny, write_trial, tmp_path, monkeypatch
):
    made = []
    make = execution.planner.make
    monkeypatch.setattr(execution.planner, "make", lambda *given: made.append(1) or make(*given))
    plans, results = Plans(jax.devices()[:1]), []
    for number, peak in enumerate((1e-4, 1e-2)):
        trial = write_trial(tmp_path, number, tiny(f"{PEAK}={peak}"))
        results.append(_run(plans, Work([trial], hoist=(PEAK,)), trial))
    assert made == [1]
    first, second = (ended.result["metrics"]["held_out/loss"] for ended in results)
    assert first - second > 0.05


@pytest.mark.full
@pytest.mark.parametrize("memory", [None, 1.5, 4.0])
def test_the_next_trial_trains_while_the_last_one_is_saved(
    tiny, write_trial, tmp_path, monkeypatch, memory
):
    """Where the memory holds both; else the save is waited for."""
    plans, trials = Plans(jax.devices()[:1]), [write_trial(tmp_path, n, tiny()) for n in (0, 1)]
    held = sum(p.bytes_per_device for p in plans.plan(tiny(), ()).program.placements.values())
    needed = step_bytes(plans.plan(tiny(), ()))
    limit = None if memory is None else int(needed + (memory - 1) * held)
    sent, may_save = [], threading.Event()
    save = store.Store.save

    def save_later(self, step, *given, **tier):
        if step == 10:
            sent.append("saving")
            may_save.wait(10 if limit is None or memory > 2 else 0.1)
        return save(self, step, *given, **tier)

    monkeypatch.setattr(store.Store, "save", save_later)
    made = Execution(0, plans, (), limit, sent.append)
    for trial in trials:
        made.run(Work([trial]), trial, made.watcher(trial, False))
    may_save.set()
    made.wait_until_closed()
    kinds = [(getattr(one, "trial", None), type(one)) for one in sent if one != "saving"]
    ends = [kinds.index((number, TrialEnded)) for number in (0, 1)]
    assert ends[0] < ends[1]
    assert kinds.index((0, TrialTrained)) < ends[0]
    begins = kinds.index((1, Reported))
    assert (ends[0] > begins) == (memory != 1.5)
    for trial in trials:
        assert read_result(trial.directory).outcome == "complete"


@pytest.mark.full
def test_a_disk_that_refuses_the_last_save_is_a_fault_of_the_machine(
    tiny, write_trial, tmp_path, monkeypatch
):
    def refuse(self, step, *given, **tier):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.Store, "save", refuse)
    trial, sent = write_trial(tmp_path, 0, tiny("checkpoints.every=Steps(100)")), []
    made = Execution(0, Plans(jax.devices()[:1]), (), None, sent.append)
    made.run(Work([trial]), trial, made.watcher(trial, False))
    made.wait_until_closed()
    assert [type(one) for one in sent[-2:]] == [TrialTrained, Faulted]
    assert read_result(trial.directory) is None


@pytest.mark.full
def test_a_result_that_was_lost_is_written_again_from_the_record(tiny, write_trial, tmp_path):
    plans = Plans(jax.devices()[:1])
    trial = write_trial(tmp_path, 0, tiny())
    before = _run(plans, Work([trial]), trial)
    (tmp_path / "trials" / "0000" / NAME).unlink()
    again = _run(plans, Work([trial]), trial)
    assert again == before


@pytest.mark.full
def test_a_run_to_a_rung_does_not_evaluate_whole_sets(tiny, write_trial, tmp_path, monkeypatch):
    asked, evaluate = [], Evaluator.__call__

    def count(self, values, leaves, num_batches=None):
        asked.append(num_batches)
        return evaluate(self, values, leaves, num_batches)

    monkeypatch.setattr(Evaluator, "__call__", count)
    devices = jax.devices()[:1]
    whole = write_trial(tmp_path, 0, tiny())
    to_rung = dataclasses.replace(write_trial(tmp_path, 1, tiny()), is_to_rung=True)
    found = [_run(Plans(devices), Work([trial]), trial) for trial in (whole, to_rung)]
    # At step 5, and at the end, at step 10.
    assert asked == [2, None, 2, 2]
    first, second = (ended.result["series"] for ended in found)
    assert first[0] == second[0]
    assert first[1] != second[1]
    again = rerun(to_rung.directory, tmp_path / "again" / "0001", devices=devices)
    assert again.result["series"] == second


def test_user_code_that_exits_fails_its_trial_and_not_the_worker(
    tiny, write_trial, tmp_path, monkeypatch
):
    def leave(graph, *given):
        sys.exit(75)  # the code by which a worker says that its devices were taken away

    monkeypatch.setattr(execution.planner, "make", leave)
    trial = write_trial(tmp_path, 0, tiny())
    ended = _run(Plans(jax.devices()[:1]), Work([trial]), trial)
    assert (ended.outcome, ended.reason) == ("failed", "SystemExit: 75")
    assert "sys.exit(75)" in (tmp_path / "trials" / "0000" / "traceback.txt").read_text()


@pytest.mark.full
def test_few_programs_are_kept(tiny, monkeypatch):
    monkeypatch.setattr(execution, "NUM_PLANS", 2)
    plans = Plans(jax.devices()[:1])
    graphs = [tiny(f"training.global_batch_size={n}") for n in (2, 4, 6)]
    first = plans.plan(graphs[0], ())
    assert plans.plan(graphs[0], ()).program.compiled is first.program.compiled
    for graph in graphs[1:]:
        plans.plan(graph, ())
    assert plans.plan(graphs[0], ()).program.compiled is not first.program.compiled


def test_a_program_whose_leaves_can_all_be_hoisted_is_traced_for_its_plan_only(tiny, monkeypatch):
    def never(*given):
        raise AssertionError("traced a second time")

    monkeypatch.setattr(hoisting, "_trace_problem", never)
    plans = Plans(jax.devices()[:1])
    plan = plans.plan(tiny(), ("seed", PEAK))
    assert plan.program.hoist == ("seed", PEAK)
    assert plans.plan(tiny(f"{PEAK}=0.5"), ("seed", PEAK)).program.compiled is plan.program.compiled


@pytest.mark.full
def test_a_leaf_that_only_an_evaluation_needs_as_a_constant_is_not_hoisted(tiny, monkeypatch):
    evaluate = programs.evaluate_step

    def evaluate_step(experiment, *rest):
        float(experiment.task.z_loss)
        return evaluate(experiment, *rest)

    for module in (programs, hoisting):
        monkeypatch.setattr(module, "evaluate_step", evaluate_step)
    plan = Plans(jax.devices()[:1]).plan(tiny(), (PEAK, "task.z_loss"))
    assert plan.program.hoist == (PEAK,)


MODE = {"lanes": "vmap", "num_lanes": 2, "lane": 1, "slice": {"devices": 4, "kind": "cpu"}}


def _write(path):
    lines = JsonLines(path, print)
    for step in (1, 2, 3):
        lines.emit(events.Step(step, {"loss": 1.0, "step_seconds": [9.0, 1.0, 2.0][step - 1]}))
        if step > 1:
            lines.emit(events.Evaluation(step, "held_out", {"loss": 4.0 - step}))
            lines.emit(events.Evaluation(step, "other", {"loss": 0.5}))
    lines.close()


def test_a_run_is_summed_up_from_its_record(tmp_path):
    _write(tmp_path / "metrics.jsonl")
    found = summary(tmp_path / "metrics.jsonl", MODE)
    assert found["metrics"] == {"held_out/loss": 1.0, "other/loss": 0.5}
    assert found["series"] == [
        [2, {"held_out/loss": 2.0, "other/loss": 0.5}],
        [3, {"held_out/loss": 1.0, "other/loss": 0.5}],
    ]
    assert found["steps"] == 3
    assert found["facts"] == {"step_seconds": 2.0}
    assert found["mode"] == MODE


def test_a_run_that_never_began_has_an_empty_summary(tmp_path):
    found = summary(tmp_path / "metrics.jsonl", MODE)
    assert (found["metrics"], found["series"], found["steps"]) == ({}, [], 0)
    assert found["facts"] == {"step_seconds": None}


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ShardingError("9 rows\n over 2"), "infeasible", "9 rows over 2"),
        (ValidationError("width"), "infeasible", "width"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB"),
            "infeasible",
            "out of memory: JaxRuntimeError: RESOURCE_EXHAUSTED: 9 GiB",
        ),
        (DataError("no text"), "failed", "no text"),
        (TrainingStopped("diverged"), "failed", "diverged"),
        (ZeroDivisionError("of mine"), "failed", "ZeroDivisionError: of mine"),
    ],
)
def test_infeasible_trials_are_distinguished_from_failed_ones(error, outcome, reason, tmp_path):
    work = TrialWork(3, 2, str(tmp_path))
    ended = failed(1, work, MODE, error)
    assert (ended.slice, ended.trial, ended.fence) == (1, 3, 2)
    assert (ended.outcome, ended.reason) == (outcome, reason)
    assert (why_infeasible(error) is None) == (outcome == "failed")
    assert read_result(tmp_path) == ended
    assert dataclasses.asdict(ended)["result"]["mode"] == MODE
    assert (tmp_path / TRACEBACK).exists() == (outcome == "failed")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle"),
        (jax.errors.JaxRuntimeError("INTERNAL: uncorrectable ECC error"), "uncorrectable ECC"),
    ],
)
def test_a_fault_of_the_machine_is_no_result_of_the_trial(error, line, tmp_path):
    event = failed(1, TrialWork(3, 2, str(tmp_path)), MODE, error)
    assert isinstance(event, Faulted)
    assert (event.slice, event.trial, event.fence) == (1, 3, 2)
    assert line in event.reason
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_for_checkpoints_is_a_fault_of_the_machine(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        require_space(tmp_path, 2**62)
    assert isinstance(failed(1, TrialWork(3, 2, str(tmp_path)), MODE, caught.value), Faulted)


def test_the_traceback_of_a_failed_trial_says_where(tmp_path):
    def boom():
        raise ValueError("in the model")

    try:
        boom()
    except ValueError as error:
        ended = failed(1, TrialWork(3, 2, str(tmp_path)), MODE, error)
    text = (tmp_path / TRACEBACK).read_text()
    assert f'File "{__file__}"' in text
    assert "in boom" in text
    assert ended.result["fault"] == "code"


def _watcher(asks):
    sent = []
    return TrialWatcher(0, TrialWork(7, 3, "there"), asks, sent.append), sent


def test_a_report_waits_for_its_answer_where_the_work_asks():
    verdicts = {"continue": None, "prune": "pruned", "pause": "paused"}
    for answer, reason in verdicts.items():
        watcher, sent = _watcher(asks=True)
        threading.Timer(0.05, watcher.answer, [answer]).start()
        metrics = {"held_out/loss": 1.0}
        assert watcher.evaluated(5, metrics, last=False, fraction=0.5) == reason
        assert sent == [Reported(0, 7, 3, 5, metrics, fraction=0.5)]


def test_nobody_is_waited_for_where_nothing_can_change():
    assert _watcher(asks=False)[0].evaluated(5, {}, last=False) is None
    assert _watcher(asks=True)[0].evaluated(5, {}, last=True) is None
    stopped, sent = _watcher(asks=True)
    stopped.stop()
    assert stopped.evaluated(5, {}, last=False) is None
    assert stopped.requested == "interrupted"
    assert len(sent) == 1


def test_a_stop_ends_the_wait_for_an_answer():
    watcher, _ = _watcher(asks=True)
    threading.Timer(0.05, watcher.stop).start()
    assert watcher.evaluated(5, {}, last=False) is None
    assert watcher.requested == "interrupted"


TRIALS = [TrialWork(number, 1, f"trials/{number:04d}") for number in range(4)]


class Watcher:
    """Notes what it is told."""

    def __init__(self, trial, asks):
        self.trial, self.asks, self.answers, self.requested = trial, asks, [], None

    def answer(self, verdict):
        self.answers.append(verdict)

    def stop(self):
        self.requested = "interrupted"


@pytest.fixture
def pipe():
    """Return an inbox and the writer of its driver."""
    received, sent = os.pipe()
    writer = MessageWriter(os.fdopen(sent, "wb"))
    inbox = Inbox(os.fdopen(received, "rb"), Watcher)
    yield inbox, writer
    writer.send(Close())  # without it, the end of the driver ends this process too
    writer.close()
    inbox._thread.join()


def _wait(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_fault_that_shows_while_a_worker_waits_leaves_the_next_trial_to_another(pipe):
    """As where the devices fail while the last trial is saved beside nothing."""
    inbox, writer = pipe
    faults = iter([False, True])
    writer.send(Work(TRIALS[:1]))
    assert inbox.next(lambda: next(faults)) is None
    assert inbox.num_waiting == 1
    assert inbox.next(lambda: False).trial == TRIALS[0]


def test_trials_are_taken_in_order_and_those_that_do_not_fit_wait(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:2], asks=True))
    writer.send(Refill(TRIALS[2]))
    assert inbox.wait()
    _wait(lambda: inbox.num_waiting == 3)
    taken = inbox.take(lambda task: task.trial.trial == 2)
    assert (taken.trial, taken.watcher.asks) == (TRIALS[2], True)
    assert [inbox.take().trial.trial for _ in range(2)] == [0, 1]
    assert inbox.take() is None


def test_answers_and_stops_find_their_trial_by_number_and_fence(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:3]))
    for message in (Answer(0, 1, "prune"), Answer(0, 9, "continue"), Stop(1, 1), Stop(7, 1)):
        writer.send(message)
    writer.send(Refill(TRIALS[3]))
    _wait(lambda: inbox.num_waiting == 4)
    assert [inbox.take().trial.trial for _ in range(3)] == [0, 2, 3]  # 1 was stopped in time
    assert inbox._watchers[0, 1].answers == ["prune"]


def test_closing_stops_all_trials_and_ends_the_wait(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:1]))
    writer.send(Close())
    _wait(lambda: not inbox.wait())
    assert inbox._watchers[0, 1].requested == "interrupted"
    assert inbox.take() is None


@pytest.mark.full
def test_a_worker_ends_at_once_when_its_driver_is_gone():
    program = (
        "import sys, time; from luthier.study.engines.execution import Inbox; "
        "Inbox(sys.stdin.buffer, None); time.sleep(60)"
    )
    ended = subprocess.run([sys.executable, "-c", program], input=b"", timeout=60)
    assert ended.returncode == EXIT_ORPHANED
