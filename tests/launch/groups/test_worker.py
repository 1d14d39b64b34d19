"""Workers of real trials, on one process and on two, driven as a study drives them."""

import collections
import errno
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from luthier import faults
from luthier.faults import Fault
from luthier.launch import Here, Slices, link, worker
from luthier.parallel import distributed
from luthier.records import read_metrics
from luthier.study import Back, Faulted, Lost, Reported, TrialWork, Work
from luthier.study.engines import Inbox, MessageWriter, Plans, Refill, TrialWatcher
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


PEAK = "optimizer.learning_rate.peak"
HOIST = (PEAK, "seed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_hoist_and_pack_trials_as_one_process_does(
    engine, tiny, write_trial, tmp_path, monkeypatch
):
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    slices, (info,) = engine(2)
    assert (info.index, info.num_devices, info.device_kind) == (0, 2, "cpu")
    study, verdicts = tmp_path / "study", {}

    def trial(number, setting, fence=1):
        return write_trial(study, number, tiny(f"{PEAK}={setting}e-3", f"seed={setting}"), fence)

    def run(works, refills=()):
        """Run work, and return its trials' ends and their losses."""
        for work in works:
            slices.start(0, work)
        for one in refills:
            slices.refill(0, one)
        wanted, ends = sum(len(work.trials) for work in works) + len(refills), {}
        deadline = time.monotonic() + 200
        while len(ends) < wanted:
            assert time.monotonic() < deadline, ends
            for event in slices.events(1.0):
                assert not isinstance(event, Lost | Faulted), event
                if isinstance(event, Reported):
                    verdict = verdicts.get((event.trial, event.step), "continue")
                    slices.answer(0, event.trial, event.fence, verdict)
                else:
                    ends[event.trial] = event
        return ends, {number: losses(number) for number in ends}

    def losses(number):
        path = study / "trials" / f"{number:04d}" / "run" / "metrics.jsonl"
        return [row["loss"] for row in read_metrics(path)]

    # One after another, each by itself.
    alone, expected = run([Work((trial(n, n),), HOIST, asks=True) for n in (1, 2, 3, 4)])
    assert {end.outcome for end in alone.values()} == {"complete"}
    assert alone[1].result["mode"]["slice"]["devices"] == 2
    assert alone[1].result["mode"]["hoisted"] == list(HOIST)

    # In two lanes: one is pruned, one pauses, and the others get their places.
    verdicts |= {(12, 5): "prune", (13, 5): "pause"}
    first, second, *others = (trial(10 + n, n) for n in (1, 2, 3, 4))
    packed, found = run([Work((first, second), HOIST, lanes="vmap", asks=True)], others)
    outcomes = {n: getattr(end, "outcome", "paused") for n, end in packed.items()}
    assert outcomes == {11: "complete", 12: "pruned", 13: "paused", 14: "complete"}
    assert {packed[n].result["mode"]["lane"] for n in (11, 14)} <= {0, 1}
    for n in (1, 2, 3, 4):
        steps = 10 if n in (1, 4) else 5
        np.testing.assert_allclose(found[10 + n], expected[n][:steps], rtol=1e-5)

    # The one that paused resumes; which lanes are the fastest is measured, and agreed on.
    again = trial(13, 3, fence=2)
    work = Work((again, trial(21, 1)), HOIST, lanes="auto", asks=True, num_expected=10**6)
    measured, found = run([work])
    assert {end.outcome for end in measured.values()} == {"complete"}
    for number, setting in ((13, 3), (21, 1)):
        np.testing.assert_allclose(found[number], expected[setting], rtol=1e-5)

    for rank in (0, 1):
        log = (study / "launch" / "1" / "logs" / f"study-0-rank-{rank}.log").read_text()
        compiled = collections.Counter(re.findall(r"XLA compilation of jit\((\S+)\) in", log))
        # The step of a trial by itself, and that of two lanes by `vmap`; `map` was tried, too.
        once = ("init", "evaluate", "step", "<lambda>", "each")
        assert [compiled[name] for name in once] == [1] * len(once), compiled


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lanes", ["single", "vmap"])
def test_one_of_two_processes_is_killed_and_the_group_comes_back(
    engine,
    tiny,
    write_trial,
    tmp_path,
    lanes,
):
    slices, _ = engine(2)
    count = 1 if lanes == "single" else 2
    trials = [
        write_trial(tmp_path / "study", n, tiny("training.steps=100000", f"seed={n}"))
        for n in range(count)
    ]
    slices.start(0, Work(trials, HOIST, lanes=lanes))
    logs = [pathlib.Path(trial.directory, "run", "metrics.jsonl") for trial in trials]
    while not all(log.exists() and log.stat().st_size > 5000 for log in logs):
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


@pytest.fixture
def inbox_of():
    """Return a function from messages of a driver to the inbox that they arrive in."""
    opened = []

    def open_inbox(*messages):
        received, sent = os.pipe()
        inbox = Inbox(
            os.fdopen(received, "rb"), lambda trial, asks: TrialWatcher(0, trial, asks, print)
        )
        writer = MessageWriter(os.fdopen(sent, "wb"))
        opened.append((inbox, writer))
        for message in messages:
            writer.send(message)
        while inbox.num_waiting < len(messages):
            time.sleep(0.01)
        return inbox

    yield open_inbox
    for inbox, writer in opened:
        inbox.close()  # before its stream ends, which would end this process
        writer.close()


def test_all_processes_of_a_group_take_the_trials_of_the_first_one(monkeypatch, inbox_of):
    """Each exchange is recorded in the first process, and answers those of another one."""
    trials = [TrialWork(n, 7 + n, f"/studies/a/trials/{n:04d}", is_to_rung=n > 0) for n in (0, 1)]
    work = Work((trials[0],), ("seed",), "vmap", asks=True, spare_lanes=3, num_expected=9)
    answers = []

    def first(self, mine, decide, give_up=None):
        answers.append(json.loads(json.dumps(decide([mine, False]))))
        return answers[-1]

    inbox = inbox_of(work, Refill(trials[1]))
    monkeypatch.setattr(distributed.Rounds, "exchange", first)
    stays, leaves = types.SimpleNamespace(is_heard=False), types.SimpleNamespace(is_heard=True)
    tasks = worker.GroupTasks(inbox, None, stays)
    own = [
        tasks.next(lambda: False),
        tasks.take(lambda task: False),
        tasks.take(lambda task: True),
        tasks.next(lambda: True),
    ]
    assert [task and task.trial for task in own] == [trials[0], None, trials[1], None]

    asked = []

    def other(self, mine, decide, give_up=None):
        asked.append(mine)
        return answers[len(asked) - 1]

    monkeypatch.setattr(distributed.Rounds, "exchange", other)
    watcher = Answering()
    tasks = worker.GroupTasks(None, watcher, leaves)
    theirs = [tasks.next(None), tasks.take(None), tasks.take(None), tasks.next(None)]
    assert [task and (task.work, task.trial) for task in theirs] == [
        (work, trials[0]),
        None,
        (work, trials[1]),
        None,
    ]
    assert theirs[0].watcher is watcher
    # That its machine is taken away is what it says with each request.
    assert asked == [True] * 4


def test_a_group_of_which_one_machine_is_taken_away_begins_no_more_trials(monkeypatch, inbox_of):
    def exchange(self, mine, decide, give_up=None):
        return decide([mine, True])

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    inbox = inbox_of(Work((TrialWork(0, 1, "/studies/a/trials/0000"),)))
    farewell = types.SimpleNamespace(is_heard=False)
    assert worker.GroupTasks(inbox, None, farewell).next(lambda: False) is None
    assert farewell.is_heard


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
        execution.run(Work((work,)), work, Answering())
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
