import threading

from luthier.parallel import distributed
from luthier.train.processes import Agreed, Agreeing


def test_alone_it_says_what_it_knows():
    agreeing = Agreeing(lambda: "interrupted")
    agreeing.seconds = 2.5
    assert agreeing(7, lambda: False) == Agreed(7, 2.5, "interrupted")


def test_tokens_are_added_the_clock_is_the_primarys_and_any_process_may_stop(monkeypatch):
    def exchange(self, mine, decide, give_up):
        assert not give_up()
        return decide([mine, (5, None), (6, "preempted"), (7, "interrupted")])

    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    agreeing = Agreeing(lambda: None)
    agreeing.seconds = 1.5
    assert agreeing(4, threading.Event().is_set) == Agreed(22, 1.5, "preempted")
