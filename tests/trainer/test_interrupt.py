import os
import signal
import threading
import time

import pytest

from luthier.trainer import INTERRUPTED, PREEMPTED, StopSignals, Watcher


def test_the_first_interrupt_is_only_noted_and_the_second_raises():
    with StopSignals() as signals:
        assert signals.requested is None
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.requested == INTERRUPTED
        os.kill(os.getpid(), signal.SIGINT)  # of the same press: nothing is raised
        time.sleep(0.51)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_termination_is_a_preemption():
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.requested == PREEMPTED


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_leaves_the_handlers_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def look():
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.full
def test_a_plain_watcher_hears_no_signals_and_ends_nothing():
    before = signal.getsignal(signal.SIGINT)
    with Watcher() as watcher:
        assert signal.getsignal(signal.SIGINT) is before
        assert watcher.evaluated(5, {"held_out/loss": 1.0}, last=False) is None
    assert watcher.requested is None
    assert (Watcher.samples, StopSignals.samples) == (False, True)
