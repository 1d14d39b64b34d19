import dataclasses
import errno
import threading

import jax
import pytest

from luthier.checkpoint.directory import require_space
from luthier.errors import (
    CheckpointError,
    DataError,
    ShardingError,
    TrainingStopped,
    ValidationError,
)
from luthier.records import events
from luthier.records.metrics_file import JsonLines
from luthier.study.engines.execution import TrialWatcher, failed, summary, why_infeasible
from luthier.study.protocol import TRACEBACK, Faulted, Reported, TrialWork, read_result

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
    for go_on, verdict in ((True, None), (False, "pruned")):
        watcher, sent = _watcher(asks=True)
        threading.Timer(0.05, watcher.answer, [go_on]).start()
        assert watcher.evaluated(5, {"held_out/loss": 1.0}, last=False) == verdict
        assert sent == [Reported(0, 7, 3, 5, {"held_out/loss": 1.0})]


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
