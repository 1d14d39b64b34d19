from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from luthier.errors import RunError
from luthier.records import (
    Console,
    Ended,
    Evaluation,
    Header,
    Notice,
    Recorder,
    Records,
    Saved,
    Step,
    Wandb,
    read_events,
    read_metrics,
)


class Memory:
    """A sink that remembers, and fails where it is told to."""

    def __init__(self, name="memory", essential=False, fails=(), log=None):
        self.name, self.essential, self.fails = name, essential, fails
        self.events = []
        self.log = [] if log is None else log

    def _do(self, verb):
        self.log.append((self.name, verb))
        if verb in self.fails:
            raise RunError("no space left") if self.essential else ValueError("what a day\n")

    def emit(self, event):
        self.events.append(event)
        self._do("emit")

    def flush(self):
        self._do("flush")

    def close(self):
        self._do("close")


def test_every_sink_gets_every_event_in_order():
    sinks = [Memory(), Memory()]
    events = [Header("demo"), Step(1, {"loss": 1.0}), Ended("finished", 1)]
    with Recorder(sinks) as recorder:
        for event in events:
            recorder.emit(event)
    assert [sink.events for sink in sinks] == [events, events]


@pytest.mark.parametrize("verb", ["emit", "flush"])
def test_a_failing_sink_is_dropped_and_reported_once(verb):
    good, bad = Memory("good"), Memory("bad", fails=[verb])
    recorder = Recorder([bad, good])
    for step in range(1, 4):
        recorder.emit(Step(step, {}))
        recorder.flush()
    recorder.close()
    notices = [event.text for event in good.events if isinstance(event, Notice)]
    assert notices == ["Memory stopped recording: what a day; training continues"]
    assert [event.step for event in good.events if isinstance(event, Step)] == [1, 2, 3]
    assert ("bad", "close") not in bad.log


@pytest.mark.parametrize("verb", ["emit", "flush"])
def test_an_essential_sinks_failure_stops_the_run_after_the_others_had_their_turn(verb):
    other = Memory("other")
    recorder = Recorder([Memory("record", essential=True, fails=[verb]), other])
    with pytest.raises(RunError, match="no space left"):
        getattr(recorder, verb)(*([Step(1, {})] if verb == "emit" else []))
    assert other.log == [("other", verb)]
    recorder.close()


def test_sinks_are_closed_in_order_and_hear_of_failures_in_closing():
    log = []
    sinks = [
        Memory("record", essential=True, fails=["close"], log=log),
        Memory("mirror", fails=["close"], log=log),
        Memory("console", log=log),
    ]
    recorder = Recorder(sinks)
    with pytest.raises(RunError, match="no space left"):
        recorder.close()
    recorder.close()
    assert log == [
        ("record", "close"),
        ("mirror", "close"),
        ("console", "emit"),
        ("console", "close"),
    ]
    assert "what a day" in sinks[2].events[0].text


def test_reports_from_threads_become_notices_at_the_next_opportunity():
    sink = Memory()
    recorder = Recorder([sink])
    recorder.report("one")
    assert sink.events == []
    recorder.flush()
    recorder.report("two")
    recorder.notice("three")
    assert [event.text for event in sink.events] == ["one", "three", "two"]
    recorder.close()


def test_the_stopwatch_is_part_of_the_summary():
    sink = Memory()
    with Recorder([sink]) as recorder:
        recorder.goodput.add("step", 3.0)
        recorder.goodput.add("save", 1.0)
        recorder.emit(Ended("finished", 1, {"loss": 2.0}))
    assert sink.events[0].summary == {
        "loss": 2.0,
        "goodput/step_seconds": 3.0,
        "goodput/save_seconds": 1.0,
        "goodput/fraction": 0.75,
    }


def test_a_recorder_without_sinks_records_nothing():
    with Recorder() as recorder:
        recorder.emit(Step(1, {}))
        recorder.flush()


def test_a_run_is_recorded(run, capsys):
    records = Records(console=Console())
    with run.lock(), records.open(run) as recorder:
        recorder.emit(Header("demo", str(run.path), total_steps=3))
        for step in (1, 2, 3):
            recorder.emit(Step(step, {"loss": 1 / step}))
        recorder.emit(Evaluation(3, "held_out", {"loss": 0.5}))
        recorder.flush()
        recorder.emit(Saved(3))
        recorder.emit(Ended("finished", 3))
    assert [row["loss"] for row in read_metrics(run.metrics_path)] == [1.0, 1 / 2, 1 / 3]
    status = run.read_status()
    assert (status.status, status.step, status.saved_step) == ("finished", 3, 3)
    output = capsys.readouterr().out
    assert "eval held_out at step 3: loss 0.5000" in output
    assert "finished at step 3" in output
    assert not (run.path / "wandb").exists()


def test_showing_without_recording(capsys):
    with Records(wandb=Wandb()).open(None) as recorder:
        recorder.emit(Evaluation(3, "held_out", {"loss": 0.5}))
    assert "held_out" in capsys.readouterr().out


def test_recording_without_showing(run, capsys):
    with Records(console=None, wandb=Wandb(mode="off")).open(run) as recorder:
        recorder.emit(Step(1, {}))
    assert capsys.readouterr().out == ""
    assert len(list(read_events(run.metrics_path))) == 1
    assert not (run.path / "wandb").exists()


def test_a_console_that_breaks_does_not_break_the_run(run, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Broken())
    with Records().open(run) as recorder:
        for step in range(1, 30):
            recorder.emit(Step(step, {"loss": 1.0}))
    events = [recorded.event for recorded in read_events(run.metrics_path)]
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == ["ConsoleSink stopped recording: [Errno 32] Broken pipe; training continues"]
    assert len(events) == 30


FORGETS_TO_CLOSE = """
import sys
from luthier.records import Records, RunDirectory, Step

recorder = Records(console=None).open(RunDirectory(sys.argv[1]))
for step in range(1, 501):
    recorder.emit(Step(step, {"loss": 1.0}))
raise ValueError
"""


def test_a_process_that_forgets_to_close_still_writes_everything(run, start):
    process = start(FORGETS_TO_CLOSE, run.path, stderr=subprocess.DEVNULL)
    assert process.wait(60) == 1
    assert len(read_metrics(run.metrics_path)) == 500


def test_importing_the_room_is_cheap():
    code = (
        "import sys, json; before = set(sys.modules); import luthier.records; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    heavy = {"jax", "wandb", "rich", "numpy", "IPython", "fiddle"}
    assert not heavy & {name.split(".")[0] for name in json.loads(done.stdout)}
