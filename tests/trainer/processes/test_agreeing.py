import threading

import pytest

from luthier.parallel import distributed
from luthier.trainer.processes import Agreed, Agreeing, Times


@pytest.fixture
def times(tmp_path):
    return Times(tmp_path / "hosts.jsonl")


def test_alone_it_says_what_it_knows(times):
    agreeing = Agreeing(lambda: "interrupted", times)
    agreeing.seconds = 2.5
    assert agreeing(7, lambda: False) == Agreed(7, 2.5, "interrupted")
    assert agreeing.batches == 1


def test_tokens_are_added_the_clock_is_the_primarys_and_any_process_may_stop(monkeypatch, times):
    def exchange(self, mine, decide, give_up):
        assert not give_up()
        others = [(5, None, None), (6, "preempted", None), (7, "interrupted", None)]
        return decide([mine, *others])

    agreeing = Agreeing(lambda: None, times)
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    agreeing.seconds = 1.5
    assert agreeing(4, threading.Event().is_set) == Agreed(22, 1.5, "preempted")


def test_times_travel_with_the_batches(monkeypatch, times):
    def exchange(self, mine, decide, give_up):
        return decide([mine, (5, None, None if mine[2] is None else {"process": 1})])

    taken = []
    agreeing = Agreeing(lambda: None, times)
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    monkeypatch.setattr(times, "mine", lambda seconds: {"took": seconds} if seconds else None)
    monkeypatch.setattr(times, "take_in", taken.append)
    for seconds in (0.0, 0.25, 0.0):
        agreeing(4, lambda: False, seconds)
    assert taken == [[{"took": 0.25}, {"process": 1}]]
