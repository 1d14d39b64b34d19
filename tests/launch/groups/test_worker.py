"""Workers of real trials, on one process and on two, driven as a study drives them."""

import errno
import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest

from luthier import faults
from luthier.faults import Fault
from luthier.launch import Here, Slices, link, worker
from luthier.parallel import distributed
from luthier.study import Back, Faulted, Lost, Reported, TrialEnded, TrialWork, Work
from luthier.study.engines import Plans
from luthier.trainer import Watcher

REPOSITORY = pathlib.Path(__file__).parents[3]


def test_a_worker_whose_driver_is_gone_ends_in_peace(tmp_path):
    words = ["-m", "luthier.launch.worker", "--driver", str(tmp_path / "gone.json")]
    process = subprocess.run(
        [sys.executable, *words, "--slice", "0"], capture_output=True, text=True, timeout=100
    )
    assert (process.returncode, process.stdout) == (0, "")
    assert process.stderr == "luthier: no driver is running for this study\n"


def test_the_machine_is_taken_away_before_anything_runs(tmp_path):
    listening, address = link.listen("127.0.0.1")
    with listening:
        address.write(tmp_path / "driver.json")
        words = ["-m", "luthier.launch.worker", "--driver", str(tmp_path / "driver.json")]
        started = subprocess.Popen([sys.executable, *words, "--slice", "4"])
        connection, _ = listening.accept()  # nobody greets it: it waits
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 75
        connection.close()


def test_a_worker_whose_native_code_fails_leaves_its_stacks(tmp_path):
    listening, address = link.listen("127.0.0.1")
    with listening:
        address.write(tmp_path / "driver.json")
        words = ["-m", "luthier.launch.worker", "--driver", str(tmp_path / "driver.json")]
        command = [sys.executable, *words, "--slice", "4"]
        started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        connection, _ = listening.accept()
        started.send_signal(signal.SIGSEGV)
        errors = started.communicate(timeout=60)[1]
        connection.close()
    assert started.returncode == -signal.SIGSEGV
    assert errors.startswith("Fatal Python error: Segmentation fault\n")
    assert "luthier/launch/link.py" in errors


def test_what_is_to_be_done_is_done_also_when_it_comes_late():
    program = """
import os, signal, time
from luthier.launch.worker import Farewell
farewell = Farewell()
farewell.then(lambda: os.write(1, b"first "))
os.kill(os.getpid(), signal.SIGTERM)
while not farewell.is_heard:
    time.sleep(0.01)
time.sleep(0.1)
farewell.then(lambda: os.write(1, b"late"))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (process.stdout, process.stderr) == (b"first late", b"")
    assert worker.TAKEN_AWAY == "its machines were taken away"


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Return a function that opens one slice of several processes in a folder."""
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'framework'}")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    opened = []

    def open_slice(processes):
        found = Slices(Here(processes=processes, devices="cpu:1"), slices=1)
        (tmp_path / "study").mkdir()
        opened.append(found)
        return found, found.open(str(tmp_path / "study"))

    yield open_slice
    for found in opened:
        found.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_train_trials_one_after_another_and_one_is_pruned(
    engine,
    tiny,
    write_trial,
    until,
    tmp_path,
):
    slices, (info,) = engine(2)
    assert (info.index, info.num_devices, info.device_kind) == (0, 2, "cpu")
    works = [write_trial(tmp_path / "study", n, tiny(f"seed={n}"), fence=n) for n in (1, 2)]

    def on_event(event):
        if isinstance(event, Reported):
            slices.answer(0, event.trial, event.fence, event.trial == 1)

    for trial, outcome, steps in ((works[0], "complete", [5, 10]), (works[1], "pruned", [5])):
        slices.start(0, Work((trial,), asks=True))
        found = until(slices, 1, on_event=on_event)
        assert [event.step for event in found if isinstance(event, Reported)] == steps
        assert isinstance(found[-1], TrialEnded)
        assert (found[-1].trial, found[-1].outcome) == (trial.trial, outcome), found[-1].reason
        assert found[-1].result["mode"]["slice"]["devices"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_of_two_processes_is_killed_and_the_group_comes_back(
    engine,
    tiny,
    write_trial,
    tmp_path,
):
    slices, _ = engine(2)
    trial = write_trial(tmp_path / "study", 0, tiny("training.steps=100000"))
    slices.start(0, Work((trial,)))
    log = pathlib.Path(trial.directory, "run", "metrics.jsonl")
    while not (log.exists() and log.stat().st_size > 5000):
        slices.events(0.5)
    found = subprocess.run(["pgrep", "-f", f"{tmp_path}/study/launch"], capture_output=True)
    for pid in map(int, found.stdout.split()):
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"JAX_PROCESS_ID=1" in environment:
            os.kill(pid, signal.SIGKILL)
    events = []
    while not any(isinstance(event, Back) for event in events):
        events += [e for e in slices.events(1.0) if not isinstance(e, Reported)]
    assert isinstance(events[0], Lost)
    assert (events[0].counts, events[0].is_away) == (True, True)


class Answering(Watcher):
    """Answers every report alike."""

    requested = "interrupted"

    def __init__(self):
        self.evaluations = []

    def evaluated(self, step, metrics, last, fraction=1.0):
        """Take note, and end the trial."""
        self.evaluations.append((step, dict(metrics), last))
        return "pruned"


def test_alone_the_first_process_answers_itself():
    own = Answering()
    together = worker.Together(own, "0")
    assert together.requested == "interrupted"
    assert together.evaluated(4, {"loss": 1.0}, False) == "pruned"
    assert own.evaluations == [(4, {"loss": 1.0}, False)]


def test_another_process_gets_the_answer_and_reports_nothing(monkeypatch):
    def exchange(self, mine, decide, give_up=None):
        return "what the first one decided"

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    own = Answering()
    together = worker.Together(own, "0")
    assert together.evaluated(4, {"loss": 1.0}, False) == "what the first one decided"
    assert own.evaluations == []


def test_a_trial_is_described_for_the_others():
    trial = TrialWork(3, 7, "/studies/a/trials/0003", is_to_rung=True)
    work = Work((trial,), ("seed",), lanes="auto", asks=True)
    assert worker.described(worker.describe(work, trial)) == (
        Work((trial,), ("seed",), asks=True),
        trial,
    )


@pytest.mark.parametrize(
    ("error", "is_of_the_machine"),
    [(OSError(errno.ENOSPC, "No space left"), True), (ValueError("a\nb"), False)],
)
def test_a_process_that_fails_alone_ends_itself_and_blames_no_trial_for_its_machine(
    monkeypatch, capsys, tmp_path, error, is_of_the_machine
):
    def exchange(self, mine, decide, give_up):
        if give_up():
            raise distributed.GaveUp(1)
        return decide([mine])

    def leave(code):
        raise SystemExit(code)

    def fail(work):
        raise error

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    monkeypatch.setattr(worker, "APART_SECONDS", -1.0)
    monkeypatch.setattr(worker.os, "_exit", leave)
    assert worker._gathered(None, "0") == [None]
    sent = []
    execution = worker.GroupExecution(2, Plans(jax.devices()), (), None, sent.append)
    monkeypatch.setattr(execution, "read", fail)
    work = TrialWork(3, 7, str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        execution.run_together(Work((work,)), work, Answering(), "1")
    assert caught.value.code == worker.EXIT_APART
    line = " ".join(f"{type(error).__name__}: {error}".split())
    assert capsys.readouterr().err.endswith(f"luthier: this process failed alone: {line}\n")
    events = [Faulted(2, 3, 7, line), Lost(2, line, counts=False)]
    assert sent == (events if is_of_the_machine else [])


@pytest.mark.parametrize(
    ("error", "fault"), [(MemoryError("no room"), Fault.PLACE), (KeyError("a"), Fault.CODE)]
)
def test_an_error_of_another_process_keeps_its_kind(monkeypatch, error, fault):
    def exchange(self, mine, decide, give_up):
        return decide([None, mine])

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    theirs = worker._first_error(worker._gathered(error, "0"))
    assert str(theirs).startswith(f"process 1 of 2 reports: {type(error).__name__}: ")
    assert faults.classify(theirs) is fault
