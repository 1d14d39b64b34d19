import json
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import BadInput, StoreUnavailable
from luthier.parallel import Mesh, Share, distributed, make_mesh
from luthier.trainer import Agreed, Agreeing, Feed, KeptBatches, Times

ROWS = 8


class Counting:
    """Batches that hold their own number."""

    def __init__(self, start=0, fail_at=None):
        self.index = start
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
    return Feed(iterator, Share.of(spec), spec, count_tokens, **options)


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


def test_batches_may_stay_on_the_host_for_a_step_that_places_several_together():
    feed, placed = _feed(Counting(), on_host=True), _feed(Counting())
    for _ in range(3):
        own, other = feed.next(), placed.next()
        assert type(own.arrays["inputs"]) is np.ndarray
        assert set(own.arrays) == set(other.arrays)
        np.testing.assert_array_equal(own.arrays["inputs"], other.arrays["inputs"])
        assert own.tokens == other.tokens
    for one in (feed, placed):
        one.close()


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


@pytest.mark.parametrize(("start", "wrong"), [(14, 16), (-2, -1)])
def test_a_token_outside_the_vocabulary_is_refused_with_its_row(start, wrong):
    feed = _feed(Counting(start), vocab_size=16)
    if start > 0:
        assert _number(feed.next()) == 15
    message = f"row 0 of a batch, position 0, holds the token {wrong} in inputs"
    with pytest.raises(BadInput, match=message):
        feed.next()
    feed.close()


def test_set_state_goes_there():
    feed = _feed(Counting())
    feed.next()
    feed.set_state({"index": 10})
    assert _number(feed.next()) == 11
    feed.close()


def test_batches_are_kept_for_other_runs_which_read_where_they_end():
    kept = KeptBatches({"index": 0}, max_bytes=3 * 4096)  # three small arrays

    def numbers(feed, count):
        found = []
        for _ in range(count):
            fed = feed.next()
            number = _number(fed)
            assert fed.tokens == (ROWS - number) * 2
            assert feed.get_state() == {"index": number}
            found.append(number)
        feed.close()
        return found

    assert numbers(_feed(Counting(), kept=kept), 5) == [1, 2, 3, 4, 5]
    second = Counting()
    feed = _feed(second, kept=kept)
    assert numbers(feed, 3) == [1, 2, 3]
    assert second.fetched <= 3  # what comes after them, ahead of time
    assert numbers(feed, 2) == [4, 5]
    feed.set_state({"index": 2})  # a resume, within the kept ones and beyond them
    assert numbers(feed, 3) == [3, 4, 5]
    feed.set_state({"index": 5})
    assert numbers(feed, 1) == [6]
    other = _feed(Counting(1), kept=kept)
    assert numbers(other, 3) == [2, 3, 4]


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
        return decide([mine, (3, "preempted", None, "")])

    agreeing = Agreeing(lambda: None, Times(tmp_path / "hosts.jsonl"))
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    feed = _feed(Counting(), agreeing=agreeing)
    fed = feed.next()
    assert fed.agreed == Agreed((ROWS - 1) * 2 + 3, 0.0, "preempted")
    assert fed.tokens == fed.agreed.tokens
    feed.close()


@pytest.mark.parametrize("is_mine", [True, False])
def test_where_one_process_cannot_read_its_rows_all_leave_at_that_batch(
    monkeypatch, tmp_path, is_mine
):
    class Away(Counting):
        def __next__(self):
            if is_mine and self.index == 2:
                raise StoreUnavailable("gs://lab/corpus: no answer")
            return super().__next__()

    rounds = []

    def exchange(self, mine, decide, give_up):
        rounds.append(mine)
        is_missing = len(rounds) == 3 and not is_mine
        return decide([mine, (3, None, None, "gs://lab/corpus: no answer" if is_missing else "")])

    agreeing = Agreeing(lambda: None, Times(tmp_path / "hosts.jsonl"))
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    feed = _feed(Away(), agreeing=agreeing)
    assert [_number(feed.next()), _number(feed.next())] == [1, 2]
    with pytest.raises(StoreUnavailable, match="gs://lab/corpus: no answer"):
        feed.next()
    assert rounds[2][-1] == ("gs://lab/corpus: no answer" if is_mine else "")
    assert len(rounds) == 3
    feed.close()


@pytest.mark.full
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


INTERLEAVED = """
import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier.data import Bytes, Concatenate, Documents, Packed
from luthier.parallel import Share
from luthier.trainer import Feed

address, index = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(address, 2, index)
# Two devices of the first process, two of the second, and again: as the chips of TPU hosts lie.
devices = np.array(jax.devices()).reshape(2, 2, 2).transpose(1, 0, 2).reshape(2, 4)
assert [device.process_index for device in devices[1]] == [0, 0, 1, 1]
mesh = Mesh(devices, ("data", "fsdp"))
text = [f"document {n} " * (n % 9) for n in range(60)]
data = Packed(Documents(text), Bytes(), 16, Concatenate())
sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
spec = {
    name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    for name, (shape, dtype) in data.batch_spec(16).items()
}
tokens = lambda batch: (batch["weights"] != 0).sum()


class Old:
    # Data of a user's own that knows nothing of rows.
    def iterator(self, *, global_batch_size, seed, process_index=0, process_count=1):
        assert (process_index, process_count) == (0, 1)
        return data.iterator(global_batch_size=global_batch_size, seed=seed)


def same(arrays, whole):
    for name, array in arrays.items():
        assert len(array.addressable_shards) == 4
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[name][shard.index])


seen = {}
for kind, node in (("own", data), ("old", Old())):
    share = Share.of(spec, node.iterator)
    iterator = node.iterator(global_batch_size=16, seed=5, **share.arguments)
    feed = Feed(iterator, share, spec, tokens)
    alone = data.iterator(global_batch_size=16, seed=5)
    counts = []
    for _ in range(3):
        whole, fed = next(alone), feed.next()
        same(fed.arrays, whole)
        counts.append([fed.tokens, int(tokens(whole))])
    assert feed.get_state() == alone.get_state()
    feed.close()
    seen[kind] = [share.rows.tolist(), counts]
share = Share.of(spec, data.batches)
parts = list(data.batches(global_batch_size=16, **share.arguments))
wholes = list(data.batches(global_batch_size=16))
assert data.num_rows % 16 and len(parts) == len(wholes)
for rows, whole in zip(parts, wholes):
    assert len(rows["weights"]) == 8
    same(share.global_batch(rows, spec), whole)
print(json.dumps(seen))
"""


@pytest.mark.full
def test_processes_whose_rows_interleave_read_their_own_and_feed_what_one_process_feeds():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", INTERLEAVED, address, str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    ends = [child.communicate(timeout=300) for child in children]
    assert [child.returncode for child in children] == [0, 0], ends
    found = [json.loads(out) for out, _ in ends]
    rows = [one["own"][0] for one in found]
    assert rows == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert [one["old"][0] for one in found] == [list(range(16))] * 2
    for kind in ("own", "old"):
        for first, second in zip(*(one[kind][1] for one in found), strict=True):
            assert first[0] + second[0] == first[1] == second[1]
            assert min(first[0], second[0]) > 0
