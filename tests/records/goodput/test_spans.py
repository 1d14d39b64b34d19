from __future__ import annotations

import json
import os
import signal
import time

from luthier.records import Ended, Goodput, Header, Spans, Step, account_of, read_spans


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def _opened(path, clock, wall=1000.0):
    goodput = Goodput(clock)
    return goodput, Spans(path, goodput, wall=lambda: wall + clock.now, follow=False)


def test_a_process_writes_its_beginning_its_spans_and_its_end(tmp_path):
    clock, path = Clock(), tmp_path / "goodput.jsonl"
    goodput, spans = _opened(path, clock)
    clock.now = 5.0
    goodput.add("init", 5.0)
    assert not path.exists()
    spans.emit(Header("demo", step=20))
    with goodput.span("step"):
        clock.now += 2
        spans.emit(Step(21, {"loss": 1.0}))
        clock.now += 1
    clock.now += 0.5
    spans.emit(Ended("finished", 21))
    spans.close()
    began, init, steps, ended = read_spans(path)
    assert began["process"] == os.getpid()
    assert (began["kind"], began["time"], began["step"]) == ("began", 1000.0, 20)
    assert init == {
        "kind": "span", "start": 1000.0, "end": 1005.0, "first": 0, "last": 0,
        "seconds": {"init": 5.0},
    }  # fmt: skip
    assert steps == {
        "kind": "span", "start": 1005.0, "end": 1008.0, "first": 20, "last": 21,
        "seconds": {"step": 3.0},
    }  # fmt: skip
    assert ended == {"kind": "ended", "time": 1008.5, "step": 21, "status": "finished"}


def test_lines_are_appended_and_a_torn_one_is_cut_off(tmp_path):
    path = tmp_path / "goodput.jsonl"
    path.write_bytes(b'{"kind": "began", "time": 1.0, "step": 0}\n{"kind": "span", "st')
    _, spans = _opened(path, Clock())
    spans.emit(Header("demo", step=3))
    spans.close()
    assert path.read_bytes().startswith(
        b'{"kind": "began", "time": 1.0, "step": 0}\n{"kind": "began"'
    )
    assert [line["step"] for line in read_spans(path)] == [0, 3]


def test_what_is_no_line_is_left_out(tmp_path):
    path = tmp_path / "goodput.jsonl"
    lines = ["[1]", "null", '{"kind": "began"}', '{"kind": "span", "start": 1, "end": "2"}']
    lines += ['{"kind": "ended", "time": 1, "step": 2}', "[" * 100_000]
    span = {"kind": "span", "start": 1, "end": 2, "first": 0, "last": 1, "seconds": {"step": "a"}}
    path.write_text("\n".join([*lines, json.dumps(span)]))
    assert read_spans(path) == []
    assert read_spans(tmp_path / "none") == []


def test_trouble_is_reported_once(tmp_path):
    reports, goodput = [], Goodput()
    spans = Spans(tmp_path / "none" / "goodput.jsonl", goodput, reports.append, follow=False)
    spans.emit(Header("demo"))
    goodput.add("step", 1.0)
    spans.flush()
    spans.close()
    assert len(reports) == 1
    assert "cannot write" in reports[0]


def test_a_killed_process_leaves_nearly_all_of_its_time(tmp_path, start):
    code = """
import sys, time
from luthier.records import Header
from luthier.records import Goodput, Spans
goodput = Goodput()
spans = Spans(sys.argv[1], goodput)
spans.emit(Header("demo"))
with goodput.span("compile"):
    print("compiling", flush=True)
    time.sleep(60)
"""
    path = tmp_path / "goodput.jsonl"
    process = start(code, path)
    assert process.stdout.readline() == "compiling\n"
    before = time.time()
    while not any(line["kind"] == "span" for line in read_spans(path)):
        assert time.time() - before < 30
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    account = account_of(read_spans(path))
    assert account.lifetimes[0].status == "killed"
    assert account.seconds["compile"] >= 0.15
