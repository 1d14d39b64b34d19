from __future__ import annotations

import math
import time

import pytest

from luthier.errors import RunError
from luthier.records import (
    Ended,
    Evaluation,
    Header,
    Saved,
    Status,
    StatusFile,
    Step,
    read_status,
    write_status,
)


def wait_for(path, wanted):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        status = read_status(path)
        if wanted(status):
            return status
        time.sleep(0.01)
    raise AssertionError(read_status(path))


def test_a_missing_file_is_a_run_that_never_started(tmp_path):
    assert read_status(tmp_path / "status.json") == Status()


def test_a_status_reads_back(tmp_path):
    status = Status("finished", 10, 10, 10, 5.5, 1000, 2, 1.0, 2.0, "done", {"loss": 1.0})
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path / "status.json") == status


def test_fields_of_a_later_version_are_passed_over(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "running", "new": 1}')
    assert read_status(tmp_path / "status.json").status == "running"


def test_damage_is_one_line(tmp_path):
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        read_status(tmp_path / "status.json")


def test_the_file_follows_the_events(tmp_path):
    path = tmp_path / "status.json"
    sink = StatusFile(path)
    sink.emit(Header("demo", total_steps=20))
    status = wait_for(path, lambda status: status.status == "running")
    assert (status.step, status.total_steps, status.restarts) == (0, 20, 0)
    sink.emit(Step(9, {"loss": 2.0}))
    sink.emit(Step(10, {"loss": math.nan, "tokens": 640, "seconds": 1.5}))
    sink.emit(Evaluation(10, "held_out", {"nats_per_byte": 1.8}))
    sink.emit(Saved(10))
    status = wait_for(path, lambda status: status.saved_step == 10)
    assert (status.step, status.tokens, status.seconds) == (10, 640, 1.5)
    assert status.metrics["loss"] == "NaN"
    assert status.evaluations == {"held_out": {"nats_per_byte": 1.8}}
    sink.emit(Ended("interrupted", 10, message="to resume: ..."))
    sink.close()
    status = read_status(path)
    assert (status.status, status.message) == ("interrupted", "to resume: ...")
    assert status.updated >= status.started > 0


def test_a_restart_counts_and_keeps_what_came_before(tmp_path):
    path = tmp_path / "status.json"
    for number, ended in enumerate(("interrupted", "finished")):
        sink = StatusFile(path)
        sink.emit(Header("demo", step=10 * number))
        sink.emit(Step(10 * number + 10, {"loss": math.inf}))
        sink.emit(Evaluation(10, f"set {number}", {"loss": 1.0}))
        sink.emit(Ended(ended, 10 * number + 10))
        sink.close()
    status = read_status(path)
    assert (status.status, status.step, status.restarts) == ("finished", 20, 1)
    assert set(status.evaluations) == {"set 0", "set 1"}


def test_steps_are_written_now_and_then(tmp_path):
    path = tmp_path / "status.json"
    sink = StatusFile(path, every_seconds=0.02)
    sink.emit(Step(3, {"loss": 1.0}))
    assert wait_for(path, lambda status: status.step == 3).metrics == {"loss": 1.0}
    sink.close()


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path):
    reports = []
    sink = StatusFile(tmp_path / "none" / "status.json", reports.append, every_seconds=0.01)
    for step in range(1, 6):
        sink.emit(Step(step, {"loss": 1.0}))
        time.sleep(0.02)
    sink.close()
    assert len(reports) == 1
    assert "cannot write" in reports[0]


def test_nothing_is_written_when_nothing_happened(tmp_path):
    StatusFile(tmp_path / "status.json").close()
    assert not (tmp_path / "status.json").exists()
