import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.parallel import Mesh, distributed, make_mesh
from luthier.train.feed import Feed
from luthier.train.processes import Agreed, Agreeing, Times

ROWS = 8


class Counting:
    """Batches that hold their own number."""

    def __init__(self, fail_at=None):
        self.index = 0
        self.fail_at = fail_at
        self.fetched = 0

    def __next__(self):
        if self.index == self.fail_at:
            raise OSError("the disk is gone")
        self.index += 1
        self.fetched += 1
        weights = np.ones((ROWS, 2), np.float32)
        weights[: self.index % ROWS] = 0
        return {"inputs": np.full((ROWS, 2), self.index, np.int32), "weights": weights}

    def get_state(self):
        return {"index": self.index}

    def set_state(self, state):
        self.index = state["index"]


def _feed(iterator, **options):
    sizes = Mesh(data=8).sizes(8)
    sharding = NamedSharding(make_mesh(sizes, jax.devices()[:8]), PartitionSpec("data"))
    spec = {"inputs": jax.ShapeDtypeStruct((ROWS, 2), np.int32, sharding=sharding)}
    count_tokens = lambda batch: (batch["weights"] != 0).sum()
    return Feed(lambda share: iterator, spec, count_tokens, **options)


def _number(fed):
    return int(fed.arrays["inputs"][0, 0])


def test_batches_come_in_order_on_the_devices_with_their_tokens():
    feed = _feed(Counting())
    for number in (1, 2, 3):
        fed = feed.next()
        assert _number(fed) == number
        assert fed.tokens == (ROWS - number) * 2
        assert len(fed.arrays["inputs"].sharding.device_set) == 8
        assert set(fed.arrays) == {"inputs"}
        assert fed.wait_seconds >= 0
    feed.close()


def test_the_state_is_that_of_the_batches_handed_out_not_of_those_fetched():
    iterator = Counting()
    feed = _feed(iterator, depth=4)
    assert feed.get_state() == {"index": 0}
    feed.next()
    while iterator.fetched < 4:
        threading.Event().wait(0.01)
    assert feed.get_state() == {"index": 1}
    feed.close()
    assert _number(feed.next()) == 2
    feed.close()


def test_set_state_goes_there():
    feed = _feed(Counting())
    feed.next()
    feed.set_state({"index": 10})
    assert _number(feed.next()) == 11
    feed.close()


def test_an_error_of_the_data_reaches_the_step_that_needed_it():
    feed = _feed(Counting(fail_at=2))
    assert [_number(feed.next()), _number(feed.next())] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        feed.next()
    feed.close()


def test_no_thread_is_left():
    feed = _feed(Counting())
    feed.next()
    feed.close()
    assert not [t for t in threading.enumerate() if t.name == "luthier-feed"]


def test_every_batch_brings_what_all_processes_agreed_on(monkeypatch, tmp_path):
    def exchange(self, mine, decide, give_up):
        return decide([mine, (3, "preempted", None)])

    agreeing = Agreeing(lambda: None, Times(tmp_path / "hosts.jsonl"))
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    feed = _feed(Counting(), agreeing=agreeing)
    fed = feed.next()
    assert fed.agreed == Agreed((ROWS - 1) * 2 + 3, 0.0, "preempted")
    assert fed.tokens == fed.agreed.tokens
    feed.close()


def test_closing_does_not_wait_for_processes_that_are_closing_too(monkeypatch, tmp_path):
    waiting = threading.Event()

    def exchange(self, mine, decide, give_up):
        if not waiting.is_set() and self._number == 0:
            self._number = 1
            return decide([mine])
        waiting.set()
        while not give_up():
            pass
        raise distributed.GaveUp

    agreeing = Agreeing(lambda: None, Times(tmp_path / "hosts.jsonl"))
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    feed = _feed(Counting(), agreeing=agreeing)
    assert _number(feed.next()) == 1
    assert waiting.wait(10)
    feed.close()
    assert feed.get_state() == {"index": 1}
