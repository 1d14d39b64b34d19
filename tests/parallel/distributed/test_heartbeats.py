import json
import threading
import time
import types

import jax
import pytest

from luthier.parallel.distributed import Heartbeats, Liveness, heartbeats, messages
from luthier.parallel.distributed.heartbeats import SILENT_SECONDS, Judge


def heartbeat(number, *at):
    return json.dumps({"number": number, "at": at})


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_whose_pulse_does_not_move_is_silent_by_the_clock_of_the_judge():
    clock = Clock()
    judge = Judge(3, clock)
    assert judge.judge({0: heartbeat(1, 5), 1: heartbeat(1, 5)}).silent == ()
    clock.now = SILENT_SECONDS + 1
    standing = judge.judge({0: heartbeat(2, 5), 1: heartbeat(1, 5)})
    assert standing == Liveness({0: [5], 1: [5]}, (1, 2)), "process 2 never had a heartbeat"
    assert standing.behind == (1, 2)
    standing = judge.judge({0: heartbeat(3, 5), 1: heartbeat(2, 5), 2: heartbeat(1, 5)})
    assert standing.silent == (), "a heartbeat that moves again is one"


def test_who_is_less_far_is_behind():
    assert Liveness().behind == ()
    assert Liveness({0: [7, 3], 1: [7, 3]}).behind == ()
    assert Liveness({0: [7, 3], 1: [6, 3], 2: [7, 3], 3: [6, 9]}).behind == (1, 3)
    assert Liveness({0: [7, 3], 1: [6, 3]}, silent=(2,)).behind == (2,)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeats, "SILENT_SECONDS", 0.3)


def member(monkeypatch, service, index, at):
    state = types.SimpleNamespace(client=service, process_id=index, num_processes=2)
    with monkeypatch.context() as patch:
        for module in (messages, heartbeats):
            patch.setattr(module, "_state", lambda: state)
        return Heartbeats(at)


def wait(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_processes_learn_how_far_each_is_and_who_falls_silent(monkeypatch, service, quick):
    steps = [3, 4]
    members = [member(monkeypatch, service, i, lambda i=i: [steps[i]]) for i in range(2)]
    for one in members:
        one.start()
    wait(lambda: all(m.standing().progress == {0: [3], 1: [4]} for m in members))
    assert [m.standing().behind for m in members] == [(0,), (0,)]
    steps[0] = 4
    wait(lambda: all(m.standing().behind == () for m in members))
    members[1].stop()
    wait(lambda: members[0].standing().silent == (1,))
    members[0].stop()


def test_a_coordinator_that_does_not_answer_is_silent(monkeypatch, service, quick):
    one = member(monkeypatch, service, 1, lambda: [1])
    asked = threading.Event()

    def refuse(*unused, **named):
        asked.set()
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: Failed to send RPC")

    monkeypatch.setattr(service, "key_value_set", refuse)
    one.start()
    assert one.standing().silent == ()
    wait(lambda: one.standing().silent == (0,))
    assert asked.is_set()
    one.stop()
