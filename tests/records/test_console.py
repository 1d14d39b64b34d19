from __future__ import annotations

import io
import math
import sys
import time
import types

import pytest

from luthier.records import (
    Console,
    Ended,
    Evaluation,
    Header,
    Notice,
    Recorder,
    Records,
    Sample,
    Saved,
    Step,
    format_count,
    format_seconds,
    header_rows,
    read_events,
)
from luthier.terminal import printable

HEADER = Header(
    experiment="quickstart",
    run_directory="runs/quickstart/1a2b3c4d",
    total_steps=2000,
    parameters=1_234_567,
    mesh={"data": 1, "fsdp": 4, "tensor": 2},
    devices="8 x cpu",
    memory_bytes_per_device=12_345_678,
    flops_per_step=3.21e10,
    data={"documents": 38, "bytes": 5_000_000, "unigram_entropy": 3.31, "bigram_entropy": 2.45},
    evaluations={"held_out": {"unigram_entropy": 3.3, "bigram_entropy": 2.4, "rows": 120}},
    notes={"state": "12 MiB", "plan": "12 MiB held", "checkpoints": "saved at its end only"},
)

PLAIN = """\
quickstart
  run                      runs/quickstart/1a2b3c4d
  steps                    2,000
  parameters               1,234,567
  devices                  8 x cpu
  mesh                     fsdp=4 tensor=2
  memory per device        11.8 MiB (state and gradients)
  FLOPs per step           32.1G
  data                     training  held_out
    documents                    38
    bytes                   4.8 MiB
    unigram nats per byte    3.3100    3.3000
    bigram nats per byte     2.4500    2.4000
    rows                                  120
  checkpoints              saved at its end only
step 1/2,000  loss 5.0000  lr 3.0e-04  12.3k tok/s  MFU 41.2%
step 500/2,000  loss 2.5010  lr 3.0e-04  12.3k tok/s  MFU 41.2%  0:03:07 left
eval held_out at step 500: nats_per_byte 2.1000 (unigram 3.3000, bigram 2.4000)  accuracy 0.4000
step 1,000/2,000  loss 2.5005  lr 3.0e-04  12.3k tok/s  MFU 41.2%  0:02:05 left
eval held_out at step 1,000: nats_per_byte 1.9000 (unigram 3.3000, bigram 2.4000) best  accuracy 0.3000
note: W&B: offline
step 1,500/2,000  loss 2.5003  lr 3.0e-04  12.3k tok/s  MFU 41.2%  0:01:02 left
eval held_out at step 1,500: nats_per_byte 2.0000 (unigram 3.3000, bigram 2.4000)  accuracy 0.5000 best
step 2,000/2,000  loss 2.5002  lr 3.0e-04  12.3k tok/s  MFU 41.2%  0:00:00 left
sample at step 2,000:
  | To be
  | or not
finished at step 2,000
to extend: luthier train quickstart
to sample: luthier generate 1a2b3c4d
"""  # noqa: E501


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def step(number, **more):
    values = {
        "loss": 2.5 + 0.5 / number * (5 if number == 1 else 1),
        "learning_rate": 3e-4,
        "tokens_per_second": 12345.6,
        "mfu": 0.412,
    }
    return Step(number, values | more)


def play(sink, clock):
    sink.emit(HEADER)
    values = {500: (2.1, 0.4), 1000: (1.9, 0.3), 1500: (2.0, 0.5)}
    better = {"nats_per_byte": "lower", "accuracy": "higher"}
    for number in range(1, 2001):
        clock.now += 0.125
        sink.emit(step(number))
        if number in values:
            nats, accuracy = values[number]
            metrics = {"nats_per_byte": nats, "accuracy": accuracy}
            sink.emit(Evaluation(number, "held_out", metrics, better))
        if number == 1000:
            sink.emit(Saved(1000))
            sink.emit(Notice("W&B: offline"))
    sink.emit(Sample(2000, "To be\nor not"))
    message = "to extend: luthier train quickstart\nto sample: luthier generate 1a2b3c4d"
    sink.emit(Ended("finished", 2000, message=message))
    sink.flush()
    sink.close()


def test_a_pipe_gets_plain_lines():
    stream, clock = io.StringIO(), Clock()
    play(Console(plain_every_steps=500).open(stream, clock), clock)
    assert stream.getvalue() == PLAIN


def test_a_pipe_gets_a_line_every_few_seconds_however_fast_the_steps_are():
    stream, clock = io.StringIO(), Clock()
    sink = Console(plain_every_seconds=15.0).open(stream, clock)
    for number in range(1, 1001):
        clock.now += 0.125
        sink.emit(step(number))
    sink.close()
    shown = [int(line.split()[1]) for line in stream.getvalue().splitlines()]
    assert shown == list(range(1, 1001, 120))


def screen(text, width):
    """What stands on a terminal after `text`: enough of one for a line that is redrawn."""
    lines, row, column = [""], 0, 0
    position = 0
    while position < len(text):
        character = text[position]
        if text.startswith("\x1b[", position):
            end = position + 2
            while not text[end].isalpha():
                end += 1
            code, argument = text[end], text[position + 2 : end]
            if code == "K":
                lines[row] = "" if argument == "2" else lines[row][:column]
            elif code == "A":
                row -= int(argument or 1)
            position = end + 1
            continue
        position += 1
        if character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character == "\r":
            column = 0
        else:
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    assert max(map(len, lines)) <= width or width == 0
    return [line.rstrip() for line in lines]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_terminal_of_any_width_shows_one_live_line(terminal, width):
    clock = Clock()
    sink = Console(width=width).open(terminal, clock)
    sink.emit(Header("x", total_steps=2000))
    for number in range(1, 500):
        clock.now += 0.125
        sink.emit(step(number))
    sink._next_at = -math.inf  # drawing takes its own time off, by the real clock
    clock.now += 0.125
    sink.emit(step(500))
    live = screen(terminal.getvalue(), 0)[-1]
    assert len(live) < width
    assert live.startswith("step 500/2,000")
    assert "loss 2.5010" in live
    assert ("━" in live) == (width >= 80)
    assert ("lr 3.0e-04" in live) == (width >= 200)
    if width >= 80:
        assert "12.3k tok/s  MFU 41.2%  0:03:07 left" in live
    sink.close()


def test_lines_stand_above_the_live_line(terminal):
    clock = Clock()
    sink = Console(width=100).open(terminal, clock)
    play(sink, clock)
    lines = screen(terminal.getvalue(), 0)
    assert "quickstart" in lines[0]
    assert any("fsdp=4 tensor=2" in line for line in lines)
    evaluations = [i for i, line in enumerate(lines) if line.startswith("eval held_out at")]
    assert len(evaluations) == 3
    tables = [[line.split() for line in lines[i + 1 : i + 3]] for i in evaluations]
    assert tables == [
        [["nats_per_byte", "2.1000", "best", "2.1000"], ["accuracy", "0.4000", "best", "0.4000"]],
        [["nats_per_byte", "1.9000", "best", "1.9000"], ["accuracy", "0.3000", "best", "0.4000"]],
        [["nats_per_byte", "2.0000", "best", "1.9000"], ["accuracy", "0.5000", "best", "0.5000"]],
    ]
    starts = {line.index("best ") for i in evaluations for line in lines[i + 1 : i + 3]}
    assert len(starts) == 1, "the columns are aligned"
    assert sum(line.startswith("step ") for line in lines) == 1, "only the last one stays"
    assert lines.index("finished at step 2,000") > lines.index("sample at step 2,000:")
    assert "\x1b[?25h" in terminal.getvalue(), "the cursor is back"


def test_what_others_print_does_not_tear_the_live_line(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal)
    clock = Clock()
    sink = Console(width=80).open(None, clock)
    sink.emit(Header("x", total_steps=10))
    sink.emit(step(1))
    assert sys.stdout is not terminal
    print("somebody's line")
    clock.now += 1
    sink.emit(step(2))
    lines = screen(terminal.getvalue(), 0)
    assert "somebody's line" in lines
    assert lines[-1].startswith("step 2/10")
    sink.close()
    assert sys.stdout is terminal


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    sink = Console().open(terminal, Clock())
    sink.emit(step(1))
    sink.close()
    assert "\x1b" not in terminal.getvalue()


def test_a_step_costs_less_than_a_tenth_of_a_millisecond(terminal):
    costs = []
    for _ in range(3):
        sink = Console(width=80).open(terminal)
        sink.emit(HEADER)
        begin = time.process_time()
        for number in range(1, 5001):
            sink.emit(step(number))
        costs.append((time.process_time() - begin) / 5000)
        sink.close()
    assert min(costs) < 1e-4


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython that remembers what is displayed."""
    shown = []

    class Handle:
        def __init__(self, index):
            self.index = index

        def update(self, content, raw=False):
            shown[self.index] = content

    def display(content, raw=False, display_id=False, **_):
        shown.append(content)
        return Handle(len(shown) - 1) if display_id else None

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.display = display
    package.display = module
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return shown


def test_a_notebook_shows_one_output_that_is_updated(notebook):
    stdout, clock = sys.stdout, Clock()
    sink = Console(width=80).open(None, clock)
    sink.emit(HEADER)
    for number in range(1, 101):
        clock.now += 1
        sink.emit(step(number))
    lines = [entry for entry in notebook if isinstance(entry, dict) and "text/plain" in entry]
    live = [entry["text/plain"] for entry in lines if entry["text/plain"].startswith("step")]
    assert len(live) == 1
    assert live[0].startswith("step 100/2,000")
    sink.close()
    assert sys.stdout is stdout, "nothing global stays changed"


def test_what_is_not_known_is_left_out():
    assert header_rows(Header("x")) == []
    rows = dict(header_rows(Header("x", step=5, total_steps=10, devices="1 x cpu")))
    assert rows == {"steps": "10", "resumed at step": "5", "devices": "1 x cpu"}


def test_the_project_is_below_the_run():
    notes = {"note": "new", "project": "/a, from its pyproject.toml"}
    header = Header("x", run_directory="/a/runs/x/1", devices="1 x cpu", notes=notes)
    assert [label for label, _ in header_rows(header)] == ["run", "project", "devices", "note"]


def test_many_data_sets_are_beside_each_other_in_lines_that_are_not_too_long():
    sets = {f"set {number}": {"documents": number, "mixture": {"a": 1}} for number in range(6)}
    rows = header_rows(Header("x", data={"documents": 9_999}, evaluations=sets))
    heads = [text.split("  ") for label, text in rows if label == "data"]
    assert [len(head) for head in heads] == [4, 3]
    documents = [text.split() for label, text in rows if label == "  documents"]
    assert documents == [["10.0k", "0", "1", "2"], ["3", "4", "5"]]
    assert {label for label, _ in rows} == {"data", "  documents"}


def test_facts_that_only_some_data_sets_have_are_left_blank_for_the_others():
    text = {"rows": 64, "unigram_entropy": 3.25}
    rows = dict(header_rows(Header("x", data=text, evaluations={"held_out": {"rows": 8}})))
    assert rows["data"].split() == ["training", "held_out"]
    assert rows["  rows"].split() == ["64", "8"]
    assert rows["  unigram nats per byte"].split() == ["3.2500"]


def test_a_defect_of_the_console_is_not_silent(capsys):
    with Recorder([Console().open()]) as recorder:
        recorder.emit(Step(1, {"loss": "no number"}))
        recorder.emit(Ended("finished", 1))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "luthier: cannot show the run any more" in printed.err
    assert "it is recorded as before" in printed.err


def test_the_best_of_a_run_is_that_of_all_its_starts(run):
    for number, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.95)):
        with Records(console=None).open(run) as recorder:
            recorder.emit(Evaluation(number, "e", {"accuracy": accuracy}, {"accuracy": "higher"}))
    lines = [x for x in run.console_path.read_text().splitlines() if x.startswith("eval e")]
    assert [line.endswith(" best") for line in lines] == [False, True, False, True]


def test_strange_numbers_are_shown():
    stream = io.StringIO()
    sink = Console(plain_every_steps=1).open(stream)
    for number, loss in enumerate([math.nan, math.inf, 1e9, 1e-9, 0.0], start=1):
        sink.emit(Step(number, {"loss": loss}))
    sink.emit(Evaluation(5, "e", {"loss": math.nan}, {"loss": "lower"}))
    sink.close()
    shown = [line.split("  ")[1] for line in stream.getvalue().splitlines()[:5]]
    assert shown == ["loss nan", "loss inf", "loss 1e+09", "loss 1e-09", "loss 0.0000"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (950, "950"), (1000, "1.00k"), (12345, "12.3k"), (999_900, "1.00M"),
     (1.24e9, "1.24B"), (0.5, "0.50"), (1e15, "1.00P")],
)  # fmt: skip
def test_counts(value, shown):
    assert format_count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(42, "0:00:42"), (43384, "12:03:04"), (183845, "2d 03:04:05"), (-1, "0:00:00")],
)
def test_spans(value, shown):
    assert format_seconds(value) == shown


def test_what_a_model_writes_does_not_move_the_terminal():
    assert printable("to be\tor\nné 木") == "to be\tor\nné 木"
    assert printable("a\x1b[2Jb\rc\x9b\x7f\x00") == "a\\x1b[2Jb\\x0dc\\x9b\\x7f\\x00"
    stream = io.StringIO()
    sink = Console(width=80).open(stream)
    sink.emit(Sample(3, "\x1b]0;title\x07x\x0by"))
    sink.close()
    assert stream.getvalue() == "sample at step 3:\n  | \\x1b]0;title\\x07x\\x0by\n"


def test_what_is_shown_is_kept_in_a_file_over_all_starts(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for start in (1, 2):
        with Records(console=None).open(run) as recorder:
            recorder.emit(HEADER)
            recorder.emit(step(start))
            recorder.notice("\x1b[31mhello")
            recorder.emit(Ended("interrupted", start))
    text = run.console_path.read_text()
    assert text.replace("\n", "").isprintable()
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("interrupted")] == [
        "interrupted at step 1",
        "interrupted at step 2",
    ]
    assert sum(line == "note: \\x1b[31mhello" for line in lines) == 2
    assert any(line.startswith("step 1/2,000  loss ") for line in lines)


def test_a_log_that_cannot_be_written_is_one_notice(run):
    run.console_path.mkdir()
    with Records(console=None).open(run) as recorder:
        recorder.emit(step(1))
    (notice,) = [at.event.text for at in read_events(run.metrics_path) if at.event != step(1)]
    assert "console.log" in notice
