import os
import subprocess
import sys
import time

import pytest

from luthier.study.engines.execution import EXIT_ORPHANED, Inbox
from luthier.study.engines.messages import Answer, Close, MessageWriter, Refill, Stop
from luthier.study.protocol import TrialWork, Work

TRIALS = [TrialWork(number, 1, f"trials/{number:04d}") for number in range(4)]


class Watcher:
    """Notes what it is told."""

    def __init__(self, trial, asks):
        self.trial, self.asks, self.answers, self.requested = trial, asks, [], None

    def answer(self, go_on):
        self.answers.append(go_on)

    def stop(self):
        self.requested = "interrupted"


@pytest.fixture
def pipe():
    """Return an inbox and the writer of its driver."""
    received, sent = os.pipe()
    writer = MessageWriter(os.fdopen(sent, "wb"))
    inbox = Inbox(os.fdopen(received, "rb"), Watcher)
    yield inbox, writer
    writer.send(Close())  # without it, the end of the driver ends this process too
    writer.close()
    inbox._thread.join()


def _wait(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_trials_are_taken_in_order_and_those_that_do_not_fit_wait(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:2], asks=True))
    writer.send(Refill(TRIALS[2]))
    assert inbox.wait()
    _wait(lambda: inbox.num_waiting == 3)
    taken = inbox.take(lambda task: task.trial.trial == 2)
    assert (taken.trial, taken.watcher.asks) == (TRIALS[2], True)
    assert [inbox.take().trial.trial for _ in range(2)] == [0, 1]
    assert inbox.take() is None


def test_answers_and_stops_find_their_trial_by_number_and_fence(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:3]))
    for message in (Answer(0, 1, False), Answer(0, 9, True), Stop(1, 1), Stop(7, 1)):
        writer.send(message)
    writer.send(Refill(TRIALS[3]))
    _wait(lambda: inbox.num_waiting == 4)
    assert [inbox.take().trial.trial for _ in range(3)] == [0, 2, 3]  # 1 was stopped in time
    assert inbox._watchers[0, 1].answers == [False]


def test_closing_stops_all_trials_and_ends_the_wait(pipe):
    inbox, writer = pipe
    writer.send(Work(TRIALS[:1]))
    writer.send(Close())
    _wait(lambda: not inbox.wait())
    assert inbox._watchers[0, 1].requested == "interrupted"
    assert inbox.take() is None


@pytest.mark.full
def test_a_worker_ends_at_once_when_its_driver_is_gone():
    program = (
        "import sys, time; from luthier.study.engines.execution import Inbox; "
        "Inbox(sys.stdin.buffer, None); time.sleep(60)"
    )
    ended = subprocess.run([sys.executable, "-c", program], input=b"", timeout=60)
    assert ended.returncode == EXIT_ORPHANED
