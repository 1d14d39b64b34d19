import dataclasses
import gc
import json
import os
import pathlib
import signal
import threading
import time

import injections
import pytest
from short_worker import ShortSlices

from luthier.errors import BadInput, RunError
from luthier.launch import Here, Job, Slices, Standing, link
from luthier.launch import slices as module
from luthier.study import Back, Lost, SliceInfo, TrialWork, Work
from luthier.study.engines import Answer, Close, MessageWriter, Refill, Stop, read_messages


@dataclasses.dataclass(frozen=True)
class Hall(Here):
    """An engine in whose queue all jobs but the first stay, or end in some state at once.

    Args:
      state: That of the first job.
      others: That of the other jobs, where the first one runs.
    """

    state: str = "running"
    others: str = "waiting"

    def submit(self, groups, directory):
        """Start the first group, if any."""
        first = super().submit(groups[:1], directory) if self.state == "running" else []
        return [*first, *(Job("local", "0", g.name, directory) for g in groups[len(first) :])]

    def standings(self, jobs):
        """Tell that jobs that were not started wait, or are over."""
        state = self.others if self.state == "running" else self.state
        real = [job for job in jobs if job.id != "0"]
        standings = super().standings(real)
        return [*standings, *([Standing(state, "as told")] * (len(jobs) - len(real)))]

    def cancel(self, jobs):
        """Cancel what was started."""
        super().cancel([job for job in jobs if job.id != "0"])


@pytest.mark.full
@pytest.mark.timeout(300)
def test_killed_workers_lose_no_trial(toys):
    outcome, kills = injections.drive(toys, Here(), slices=2, trials=12, kills=3)
    losses = injections.check_nothing_lost(toys, outcome, 12)
    assert sum(number * times for number, times in losses.items()) <= kills
    (launched,) = (toys / "toy" / "launch").iterdir()
    assert {path.name for path in launched.iterdir()} >= {"job.sh", "jobs.json", "logs", "closed"}
    assert not (launched / "driver.json").exists()  # the secret is not kept
    assert [(launched / f"toy-{index}.exit").read_text() for index in (0, 1)] == ["0\n", "0\n"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_short_trials_on_four_workers_survive_random_kills(toys):
    outcome, kills = injections.drive(toys, Here(), slices=4, trials=200, kills=40, seed=5)
    losses = injections.check_nothing_lost(toys, outcome, 200)
    assert kills >= 10
    assert 0 < sum(number * times for number, times in losses.items()) <= kills


@pytest.mark.timeout(300)
def test_slices_whose_jobs_wait_are_away_and_the_others_do_the_work(toys):
    engine = ShortSlices(Hall(), slices=3)
    (toys / "study").mkdir()
    infos = engine.open(str(toys / "study"))
    try:
        assert [info.index for info in infos] == [0, 1, 2]
        assert [info.num_devices for info in infos] == [1, 1, 1]
        assert list(engine.events(0.0)) == [
            Lost(index, "it has no worker yet", counts=False, is_away=True) for index in (1, 2)
        ]
        engine.start(1, Work(()))  # to nobody: nothing happens
        assert list(engine.events(0.1)) == []
    finally:
        engine.close()


class HalfBroken(ShortSlices):
    """The workers of slice 1 end before they are ready."""

    def _group(self, index, place):
        group = super()._group(index, place)
        words = ["--devices", "broken"] if index == 1 else []
        return dataclasses.replace(group, command=[*group.command, *words])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "on", "why"),
    [
        (ShortSlices, Hall(others="failed"), "no worker is left: job 0 is over: as told"),
        (
            HalfBroken,
            Here(),
            "the worker of slice study-1 does not start: there are no such devices",
        ),
    ],
)
def test_a_slice_without_a_worker_is_lost_for_good_and_reported_once(
    toys, monkeypatch, make, on, why
):
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)
    engine = make(on, slices=2)
    (toys / "study").mkdir()
    engine.open(str(toys / "study"))
    gone = Lost(1, why, counts=False, is_away=True, is_gone=True)
    found, deadline = [], time.monotonic() + 60
    try:
        while gone not in found and time.monotonic() < deadline:
            found += engine.events(0.2)
        found += engine.events(0.5)
        assert [event for event in found if isinstance(event, Lost) and event.is_gone] == [gone]
        assert engine._seats[0].line is not None
    finally:
        engine.close()


class Unmade(ShortSlices):
    """Process groups that cannot be made."""

    def _group(self, index, place):
        raise RunError("there is no such place")


def test_an_engine_that_cannot_be_opened_keeps_no_port_and_no_secret(toys):
    (toys / "study").mkdir()
    with pytest.raises(RunError, match="no such place"):
        Unmade(Here(), slices=1).open(str(toys / "study"))
    (launched,) = (toys / "study" / "launch").iterdir()
    assert not (launched / "driver.json").exists()
    gc.collect()  # a socket that is still open warns here, which is an error


@pytest.mark.timeout(300)
def test_a_worker_that_is_sent_away_is_no_loss_that_counts(toys, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 10.0)  # a failure is to be quick too
    engine = ShortSlices(Here(), slices=1)
    (toys / "study").mkdir()
    engine.open(str(toys / "study"))
    try:
        (pid,) = pathlib.Path(toys, "study", "launch", "1").glob("worker-0.pid")
        os.kill(int(pid.read_text()), signal.SIGTERM)
        found = []
        deadline = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < deadline:
            found += engine.events(1.0)
        assert found == [Lost(0, "taken away", counts=False, is_away=True), Back(0)]
    finally:
        engine.close()


@pytest.mark.timeout(120)
def test_a_worker_that_comes_while_the_study_ends_is_ended_too(toys, monkeypatch):
    monkeypatch.setattr(module, "END_SECONDS", 1e6)  # nobody is waited for in vain
    engine = ShortSlices(Here(), slices=1)
    (toys / "study").mkdir()
    engine.open(str(toys / "study"))
    launched = toys / "study" / "launch" / "1"
    try:
        os.kill(int((launched / "worker-0.pid").read_text()), signal.SIGKILL)
        while not any(isinstance(s, module._Received) and s.message for s in engine._inbox.queue):
            time.sleep(0.05)  # until the one in its place has said a word that nobody took
    finally:
        engine.close()
    assert (launched / "study-0.exit").read_text() == "0\n"


def test_jobs_that_are_over_leave_no_worker(toys, monkeypatch):
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)
    (toys / "study").mkdir()
    engine = Slices(Hall(state="cancelled"), slices=2)
    with pytest.raises(RunError) as caught:
        engine.open(str(toys / "study"))
    assert str(caught.value) == (
        f"engine: no worker is left: job 0 is over: as told; see {toys}/study/launch/1/logs"
    )


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_worker_that_cannot_begin_is_reported(toys, monkeypatch):
    (toys / "study").mkdir()
    engine = ShortSlices(Here(devices="broken"), slices=1)
    with pytest.raises(RunError) as caught:
        engine.open(str(toys / "study"))
    assert str(caught.value) == (
        "engine: the worker of slice study-0 does not start: there are no such devices; "
        f"see {toys}/study/launch/1/logs"
    )


def test_no_slices_at_all():
    with pytest.raises(BadInput, match=r"^engine\.slices: slices is less than 1$"):
        Slices(Here(), slices=0)


@dataclasses.dataclass(frozen=True)
class Idle(Here):
    """An engine that starts no process: the test connects in the place of workers."""

    def submit(self, groups, directory):
        """Write down the commands of the groups."""
        commands = [list(group.command) for group in groups]
        pathlib.Path(directory, "commands.json").write_text(json.dumps(commands))
        return [Job("local", "1", group.name, directory) for group in groups]

    def standings(self, jobs):
        """Have all jobs run until the study is closed."""
        is_closed = pathlib.Path(jobs[0].directory, module.CLOSED).exists()
        return [Standing("finished" if is_closed else "running")] * len(jobs)

    def cancel(self, jobs):
        """Do nothing."""


class Worker(threading.Thread):
    """Connects to the driver of a folder, and takes its messages until the last one."""

    def __init__(self, launched, ends=True):
        super().__init__()
        self._launched, self._ends = launched, ends
        self.received, self.is_cut = [], False
        self.start()

    def run(self):
        """Be a worker of slice 0."""
        driver = self._launched / module.DRIVER
        while not driver.exists():
            time.sleep(0.01)
        line = link.connect(driver, {"slice": 0}, 10.0)
        MessageWriter(line.sent).send(SliceInfo(0, "one", 1))
        for message in read_messages(line.received):
            self.received.append(message)
            if self._ends and isinstance(message, Close):
                break
        else:
            self.is_cut = True
        line.cut()


@pytest.fixture
def launched(toys):
    (toys / "study").mkdir()
    return toys / "study" / "launch" / "1"


def test_whatever_concerns_a_trial_reaches_its_worker_in_order(toys, launched):
    worker = Worker(launched)
    engine = Slices(Idle(devices="cpu:1"), memory_bytes=1 << 30)
    engine.open(str(toys / "study"))
    first, second = TrialWork(1, 7, "/trials/0001"), TrialWork(2, 8, "/trials/0002")
    try:
        engine.start(0, Work((first,), asks=True))
        engine.refill(0, second)
        engine.answer(0, 1, 7, True)
        engine.stop(0, 2, 8)
    finally:
        engine.close()
    worker.join(10)
    assert worker.received == [
        Work((first,), asks=True),
        Refill(second),
        Answer(1, 7, True),
        Stop(2, 8),
        Close(),
    ]
    ((*words,),) = json.loads((launched / "commands.json").read_text())
    assert " --devices cpu:1 --memory-bytes 1073741824" in " ".join(words)


def test_a_worker_that_comes_in_the_place_of_one_whose_end_was_not_seen_is_the_worker(
    toys, launched
):
    first = Worker(launched)
    engine = Slices(Idle())
    engine.open(str(toys / "study"))
    try:
        second = Worker(launched)
        found = []
        deadline = time.monotonic() + 10
        while len(found) < 2 and time.monotonic() < deadline:
            found += engine.events(0.2)
        why = "another worker came in its place"
        assert found == [Lost(0, why, is_away=True), Back(0)]
        first.join(10)
        assert (first.received, first.is_cut) == ([], True)
        engine.stop(0, 1, 7)
    finally:
        engine.close()
    second.join(10)
    assert second.received == [Stop(1, 7), Close()]


def test_a_worker_that_does_not_end_with_the_study_is_not_waited_for_forever(
    toys, launched, monkeypatch
):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.0)
    worker = Worker(launched, ends=False)
    engine = Slices(Idle())
    engine.open(str(toys / "study"))
    engine.close()
    worker.join(10)
    assert (worker.received, worker.is_cut) == ([Close()], True)
    assert not (launched / module.DRIVER).exists()
