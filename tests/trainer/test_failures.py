"""What a run that fails leaves behind: in-process, and in real processes that are ended."""

import dataclasses
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from luthier import graph as graphs
from luthier import planner, trainer
from luthier.cli import main
from luthier.data import Source, TextFiles
from luthier.records import Notice, RunDirectory, crash, read_events
from luthier.trainer import CompiledStep, failures
from tests.trainer.conftest import TINY

STEP = CompiledStep.__call__
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Faulty(Source):
    """Text files that cannot be opened.

    Args:
      pattern: The files.
    """

    fault: ClassVar[str] = ""
    steps: ClassVar[list[int]] = []

    pattern: str

    def __len__(self):
        if self.fault == "open":
            raise RuntimeError("no such corpus any more")
        return len(TextFiles(self.pattern))

    def __getitem__(self, index):
        return TextFiles(self.pattern)[index]

    def name(self, index):
        return TextFiles(self.pattern).name(index)


def break_step(self, state, batch):
    """Take a step like `CompiledStep`, but for the fifth."""
    if Faulty.fault == "step" and (steps := Faulty.steps.append(0) or len(Faulty.steps)) == 5:
        raise RuntimeError(f"step {steps} is broken")
    return STEP(self, state, batch)


def failing(graph, fault, message):
    Faulty.fault, Faulty.steps = fault, []
    try:
        with pytest.raises(RuntimeError, match=message) as caught:
            trainer.run(graph, packages=["tests"])
    finally:
        Faulty.fault = ""
    return caught.value


def test_a_new_run_that_cannot_be_planned_is_recorded_once_for_all_processes(
    tiny, tmp_path, monkeypatch
):
    def fail(*given):
        raise RuntimeError("no plan")

    monkeypatch.setattr(planner, "make", fail)
    for process in (0, 1, 2):
        monkeypatch.setattr(failures.distributed, "process_index", lambda rank=process: rank)
        with pytest.raises(RuntimeError, match="no plan"):
            trainer.run(tiny(tmp_path), new=True)
    (path,) = tmp_path.glob("quickstart/*")
    assert RunDirectory(path).read_status().message == "RuntimeError: no plan"


@pytest.mark.full
def test_the_traceback_of_every_failure_stays_with_the_run(
    tiny, corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(CompiledStep, "__call__", break_step)
    source = f"data.source:=tests.trainer.test_failures.Faulty({corpus!r})"
    graph = tiny(tmp_path, source, "checkpoints.every.count=2")
    graph = graphs.apply(graph, ["evaluations:={}"])
    seen = set()

    def look(error, step, phase, raised_in):
        (path,) = tmp_path.glob("quickstart/*")
        status = RunDirectory(path).read_status()
        assert (status.status, status.message) == ("failed", f"RuntimeError: {error}")
        assert (status.step > 0) == step
        text = (path / status.crash).read_text()
        assert text not in seen
        seen.add(text)
        assert f"RuntimeError: {error}\n" in text
        assert f"phase: {phase}\n" in text
        assert ("in the graph: data.source\n" in text) == (raised_in == "__len__")
        assert f", in {raised_in}\n" in text.partition("raised in: ")[2].partition("process: ")[0]
        return path, status

    # A new run that cannot open its data, the same one in the middle, and when it is resumed.
    failing(graph, "open", "no such corpus")
    look("no such corpus any more", False, "opening the data", "__len__")
    error = failing(graph, "step", "is broken")
    path, status = look("step 5 is broken", True, "step", "break_step")
    assert status.saved_step
    assert crash.path_of(error) == path / status.crash
    failing(graph, "open", "no such corpus")
    look("no such corpus any more", True, "opening the data", "__len__")

    assert main(["runs", str(path)]) == 0
    shown = RunDirectory(path).read_status().crash
    assert ["traceback", str(path / shown)] in map(str.split, capsys.readouterr().out.splitlines())
    result = trainer.run(graph, packages=["tests"])
    assert result.status == "finished"
    assert RunDirectory(path).read_status().crash == ""
    assert failing_when_finished(graph) == "finished", "of which nothing was lost"


def failing_when_finished(graph):
    failing(graph, "open", "no such corpus")
    records = Path(trainer.run(graph, packages=["tests"]).directory)
    return RunDirectory(records).read_status().status


@pytest.mark.full
def test_a_sample_is_never_a_reason_to_fail_a_run(tiny, tmp_path, monkeypatch):
    def fails(*arguments, **options):
        raise AttributeError("'GatedBlock' object has no attribute 'init_cache'")

    short = ("training.steps=2", "evaluations:={}", "checkpoints=None")
    with monkeypatch.context() as patch:
        patch.setattr("luthier.trainer.trained.generate", fails)
        result = trainer.run(tiny(tmp_path, *short))
    assert (result.status, result.sample) == ("finished", "")
    directory = RunDirectory(result.directory)
    assert directory.read_status().status == "finished"
    (notice,) = [
        event.event.text
        for event in read_events(directory.metrics_path)
        if isinstance(event.event, Notice) and event.event.text.startswith("no sample: ")
    ]
    path = crash.newest(directory.path)
    assert notice.endswith(f"no attribute 'init_cache'; traceback: {path}")
    assert "phase: sampling\n" in path.read_text()
    monkeypatch.setattr("luthier.trainer.trained.generate", fails)
    assert trainer.run(tiny(tmp_path, *short, "records.samples=None")).sample == ""


WATCHED = """
import faulthandler, pathlib, re, sys, time
from luthier import environment
from luthier.records import Watchdog
from luthier.records import Status, write_status
from luthier.trainer import Watch

environment.report_native_crashes()
run = pathlib.Path(sys.argv[1])
write_status(run / "status.json", Status("running", step=7, updated=time.time()))
with Watch(Watchdog(seconds=1.0, start_seconds=1.0), "luthier train tiny") as watch:
    watch.opened(run, "luthier train tiny")
    time.sleep(0.5)  # the watchdog's thread runs once at least
    if sys.argv[2] == "crash":
        faulthandler._sigsegv()
    re.match(r"(a+)+$", "a" * 60 + "b")  # for ever, and nothing else of Python's runs
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "number", "cause"),
    [
        ("crash", signal.SIGSEGV, "Segmentation fault"),
        ("hang", signal.SIGKILL, "it hung, and could not even run its watchdog"),
    ],
)
def test_where_no_python_runs_any_more_the_stacks_stay_with_the_run(tmp_path, how, number, cause):
    command = [sys.executable, "-c", WATCHED, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -number
    path = tmp_path / "crash" / "native-process-0.txt"
    stacks = path.read_text()
    assert 'File "<string>", line ' in stacks
    assert "luthier-watchdog" in stacks or "watchdog.py" in stacks, "of all threads"
    status = RunDirectory(tmp_path).read_status()
    assert (status.status, status.message) == (
        "interrupted",
        f"the process ended: {cause}; stacks: {path}",
    )
    assert status.crash == "crash/native-process-0.txt"
    line = (
        f"luthier: the process has hung for 1 s, start; stacks: {path}; "
        "to resume: luthier train tiny\n"
    )
    assert done.stderr == (line if how == "hang" else "")


@pytest.mark.full
def test_a_process_that_is_stopped_for_long_is_no_process_that_hangs(tmp_path):
    script = WATCHED.replace('re.match(r"(a+)+$", "a" * 60 + "b")', "time.sleep(0.2)")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "stop"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait(lambda: (tmp_path / "crash").is_dir())
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    assert not (tmp_path / "crash").exists(), "nothing was to be written"


def wait(is_so, seconds=120):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start(folder, *overrides, before=(), **options):
    """Start a small run in a process of its own."""
    small = [override for override in TINY if not override.startswith("records.")]
    command = [sys.executable, *before, "-m", "luthier", "train", "configs.lm.quickstart", *small]
    command += ["--wandb", "off", "--devices", "cpu:1", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, **options)


TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def stuck(tmp_path):
    """Return overrides for data that nobody can open: a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "stuck.txt")
    return (
        "data.source:=luthier.data.TextFiles('stuck.txt')",
        "evaluations:={}",
        "records.watchdog:=luthier.records.Watchdog(start_seconds=3.0)",
    )


@pytest.mark.full
def test_data_that_cannot_be_opened_trips_the_watchdog_and_sigterm_is_a_requeue(tmp_path, stuck):
    def text():
        return (tmp_path / "log").read_text()

    with open(tmp_path / "log", "w") as log:
        process = start(tmp_path, *stuck, stderr=log)
        assert process.wait(timeout=200) == 1
        assert "luthier: nothing has happened for 3 s, opening the data; to resume: " in text()
        assert "documents.py" in text(), "the stacks: there is no run yet"
        process = start(tmp_path, *stuck[:2], stderr=log)
        ends = []
        wait(lambda: ends.append(_write_end(tmp_path / "stuck.txt")) or ends[-1] is not None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 75
        os.close(ends[-1])
    assert "luthier: preempted before the first step; nothing is lost; again: luthier" in text()
    assert not list(tmp_path.glob("runs/*/*")), "nothing of it was begun"


@pytest.mark.full
def test_sigterm_before_the_first_step_of_two_processes_is_a_requeue(tmp_path, stuck):
    with open(tmp_path / "log", "w") as log:
        two = ("--processes", "2", "--devices", "cpu:2")
        process = start(tmp_path, *stuck[:2], *two, stderr=log)
        ends = []
        wait(
            lambda: (
                ends.append(_write_end(tmp_path / "stuck.txt"))
                or ends[-1] is not None
                or process.poll() is not None
            )
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 75, (tmp_path / "log").read_text()
        os.close(ends[-1])
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert not list(tmp_path.glob("runs/*/*")), "nothing of it was begun"


def _write_end(path):
    """Return the end to write to of a pipe that somebody reads, or None: the reader waits on."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@pytest.mark.slow
def test_a_terminal_that_is_closed_saves_and_ends_the_run_as_sigterm_does(tmp_path):
    (tmp_path / "a.txt").write_text("To be, or not to be, that is the question.\n" * 40)
    terminal, end = pty.openpty()
    data = ("data.source:=luthier.data.TextFiles('a.txt')", "evaluations:={}")
    steps = ("training.steps=100000", "checkpoints.every=None")
    process = start(
        tmp_path,
        *data,
        *steps,
        before=["-c", TERMINAL, sys.executable],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    wait(
        lambda: any(
            b'"kind": "step"' in p.read_bytes() or b'"step": 3' in p.read_bytes()
            for p in tmp_path.glob("runs/*/*/metrics.jsonl")
        )
    )
    os.close(terminal)  # the kernel sends SIGHUP, and writing to the terminal is an error
    assert process.wait(timeout=100) == 75
    (run,) = tmp_path.glob("runs/*/*")
    status = RunDirectory(run).read_status()
    assert status.status == "preempted"
    assert status.saved_step == status.step > 0
