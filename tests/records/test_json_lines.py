from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time

import pytest

from luthier.errors import RunError
from luthier.records import (
    Header,
    JsonLines,
    Notice,
    Sample,
    Step,
    cut_back,
    read_events,
    read_metrics,
)


def steps(path):
    return [row["step"] for row in read_metrics(path)]


def test_events_stand_in_the_order_in_which_they_came(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl")
    events = [
        Header("demo"),
        *(Step(n, {"loss": 1 / n}) for n in range(1, 2001)),
        Sample(2000, "a"),
    ]
    for event in events:
        sink.emit(event)
    sink.close()
    assert [recorded.event for recorded in read_events(tmp_path / "m.jsonl")] == events


def test_flush_makes_everything_durable(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), fsync(fd)))
    sink = JsonLines(tmp_path / "m.jsonl", sync_seconds=1000.0)
    sink.emit(Step(1, {"loss": 1.0}))
    sink.flush()
    assert steps(tmp_path / "m.jsonl") == [1]
    assert synced[-1] == (tmp_path / "m.jsonl").stat().st_size
    sink.close()


def test_lines_are_written_and_synced_without_being_asked(tmp_path, monkeypatch):
    synced = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), synced.set()))
    sink = JsonLines(tmp_path / "m.jsonl", sync_seconds=0.05)
    sink.emit(Step(1, {"loss": 1.0}))
    assert synced.wait(5.0)
    assert steps(tmp_path / "m.jsonl") == [1]
    sink.close()


def test_a_notice_stands_at_the_step_at_which_it_was_emitted(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl")
    for event in (Header("demo", step=3), Notice("a"), Step(4, {}), Notice("b")):
        sink.emit(event)
    sink.close()
    assert [recorded.step for recorded in read_events(tmp_path / "m.jsonl")] == [3, 3, 4, 4]
    cut_back(tmp_path / "m.jsonl", 3)
    assert len(list(read_events(tmp_path / "m.jsonl"))) == 2


def test_a_bad_value_is_refused_where_it_is_emitted(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl")
    with pytest.raises(TypeError, match="a recorded value is a number"):
        sink.emit(Step(1, {"loss": "low"}))
    sink.emit(Step(1, {"loss": 1.0}))
    sink.close()
    assert steps(tmp_path / "m.jsonl") == [1]


def test_a_torn_last_line_is_not_glued_to_the_next(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonLines(path)
    sink.emit(Step(1, {}))
    sink.close()
    with open(path, "ab") as file:
        file.write(b'{"kind": "st' + b"x" * 100_000)
    sink = JsonLines(path)
    sink.emit(Step(2, {}))
    sink.close()
    assert steps(path) == [1, 2]


def test_a_closed_sink_takes_no_more(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl")
    sink.close()
    sink.close()
    sink.flush()
    with pytest.raises(RunError, match="is closed"):
        sink.emit(Step(1, {}))


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*: No such file"):
        JsonLines(tmp_path / "none" / "m.jsonl")
    with pytest.raises(RunError, match=r"records\.directory=PATH"):
        JsonLines("/sys/m.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_reported_once_and_stops_the_save(tmp_path):
    path = tmp_path / "m.jsonl"
    path.symlink_to("/dev/full")
    reports = []
    sink = JsonLines(path, reports.append, retry_seconds=0.01, capacity=50)
    for step in range(1, 21):
        sink.emit(Step(step, {"loss": 1.0}))
    for _ in range(3):
        with pytest.raises(RunError, match=r"cannot write .*: No space left on device; free space"):
            sink.flush()
    time.sleep(0.1)
    assert len(reports) == 1, reports
    assert "No space left on device" in reports[0]
    for step in range(21, 51):
        sink.emit(Step(step, {"loss": 1.0}))
    with pytest.raises(RunError, match="No space left on device"):
        sink.emit(Step(51, {"loss": 1.0}))  # more than may wait in memory
    with pytest.raises(RunError, match="No space left on device"):
        sink.close()


SMALL_FILES = """
import resource, sys
from luthier.errors import RunError
from luthier.records import Step
from luthier.records import JsonLines

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
reports = []
sink = JsonLines(sys.argv[1], reports.append, retry_seconds=0.01)
for step in range(1, 101):
    sink.emit(Step(step, {"loss": 1 / step}))
try:
    sink.flush()
except RunError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
sink.flush()
sink.close()
print(len(reports), reports[-1])
"""


def test_when_there_is_room_again_nothing_is_lost_and_nothing_twice(tmp_path, start):
    """The disk is full in the middle of a line: the limit on file sizes cuts a write short."""
    process = start(SMALL_FILES, tmp_path / "m.jsonl")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    first, last = output.splitlines()
    assert "File too large" in first
    assert last.startswith("2 ")
    assert "nothing is lost" in last
    assert steps(tmp_path / "m.jsonl") == list(range(1, 101))


def test_what_the_disk_loses_at_a_sync_is_written_again(tmp_path, monkeypatch):
    """After a failed write-back the pages are dropped, and the next fsync knows nothing of it."""
    path, reports, failures = tmp_path / "m.jsonl", [], []
    fsync = os.fsync

    def failing(descriptor):
        size = os.fstat(descriptor).st_size
        if len(failures) < 2 and size > durable[0]:
            failures.append(size)
            os.ftruncate(descriptor, durable[0])
            os.ftruncate(descriptor, size)  # zeros where the lines were
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        fsync(descriptor)
        durable[0] = size

    durable = [0]
    monkeypatch.setattr(os, "fsync", failing)
    sink = JsonLines(path, reports.append, sync_seconds=60.0, retry_seconds=0.01)
    failures += [0, 0]
    sink.emit(Step(1, {"loss": 1.0}))
    sink.flush()
    failures.clear()
    for step in range(2, 5):
        sink.emit(Step(step, {"loss": 1.0}))
    with pytest.raises(RunError, match="quota"):
        sink.flush()
    sink.emit(Step(5, {"loss": 1.0}))
    while len(failures) < 2 or len(reports) < 2:
        time.sleep(0.01)
    sink.flush()
    assert steps(path) == [1, 2, 3, 4, 5]
    sink.close()
    assert [("quota" in line, "nothing is lost" in line) for line in reports] == [
        (True, False),
        (False, True),
    ]
    assert steps(path) == [1, 2, 3, 4, 5]


def test_a_slow_disk_makes_the_emitter_wait_and_loses_nothing(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: (time.sleep(0.01), write(fd, data))[1])
    sink = JsonLines(tmp_path / "m.jsonl", capacity=10)
    for step in range(1, 101):
        sink.emit(Step(step, {}))
        assert len(sink._pending) <= 10
    sink.close()
    assert steps(tmp_path / "m.jsonl") == list(range(1, 101))


def test_a_defect_in_the_thread_is_not_silent(tmp_path, monkeypatch):
    sink = JsonLines(tmp_path / "m.jsonl")
    monkeypatch.setattr(sink, "_append", lambda batch: 1 / 0)
    sink.emit(Step(1, {}))
    with pytest.raises(RuntimeError, match="has died") as caught:
        sink.flush()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


TRAINING = """
import os
import sys
from luthier.records import Step
from luthier.records import JsonLines
from luthier.records import cut_back

path, saved_path = sys.argv[1:]
try:
    saved = int(open(saved_path).read() or 0)
except FileNotFoundError:
    saved = 0
cut_back(path, saved)
sink = JsonLines(path, sync_seconds=0.05)
print("ready", flush=True)
step = saved
while True:
    step += 1
    sink.emit(Step(step, {"loss": 1 / step, "padding": 1 / 3}))
    if step % 50 == 0:
        sink.flush()
        with open(saved_path + ".part", "w") as file:
            file.write(str(step))
        os.replace(saved_path + ".part", saved_path)
"""


@pytest.mark.full
def test_killed_runs_hold_every_step_exactly_once(tmp_path, start):
    """Kill a writer that saves now and then, restart it from its last save, and again."""
    path, saved_path = tmp_path / "m.jsonl", tmp_path / "saved"
    chance = random.Random(0)
    saved = 0
    for _ in range(4):
        process = start(TRAINING, path, saved_path)
        assert process.stdout.readline() == "ready\n"
        before, deadline = saved, time.monotonic() + 60
        while saved == before and time.monotonic() < deadline:
            time.sleep(0.001)
            saved = int(saved_path.read_text()) if saved_path.exists() else 0
        assert saved > before, "it saves"
        time.sleep(chance.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    saved = int(saved_path.read_text())
    assert steps(path)[:saved] == list(range(1, saved + 1)), (
        "what was flushed before a save is whole"
    )
    cut_back(path, saved)
    assert steps(path) == list(range(1, saved + 1))
    rows = read_metrics(path)
    assert [row["loss"] for row in rows] == [1 / row["step"] for row in rows]
