import numpy as np
import pytest

from luthier.data import Synthetic
from luthier.errors import DataError


def node(**settings):
    return Synthetic(
        **{"vocab_size": 37, "length": 11, "num_rows": 50, "num_threads": 0, **settings}
    )


def all_of(data, size, count=1):
    """Return every row once, as one array for each entry."""
    hosts = [
        list(data.batches(global_batch_size=size, process_index=i, process_count=count))
        for i in range(count)
    ]
    parts = [host[step] for step in range(len(hosts[0])) for host in hosts]
    return {name: np.concatenate([part[name] for part in parts]) for name in data.batch_spec(1)}


def test_batches_are_what_the_spec_says():
    data = node()
    expected = data.batch_spec(8)
    assert expected["inputs"] == ((8, 11), np.dtype(np.int32))
    batch = next(data.iterator(global_batch_size=8, seed=0))
    assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_is_one_document_whose_targets_are_the_next_tokens(count):
    whole = all_of(node(), 8, count)
    np.testing.assert_array_equal(whole["inputs"][:, 1:], whole["targets"][:, :-1])
    np.testing.assert_array_equal(whole["documents"][:50, 0], np.arange(1, 51))
    np.testing.assert_array_equal(whole["positions"][3], np.arange(11))
    for name in ("segments", "weights", "target_bytes"):
        assert (whole[name][:50] == 1).all(), name
    for name, entry in whole.items():
        assert len(entry) == 56
        assert not entry[50:].any(), f"{name}: padding is zero"


def test_tokens_are_drawn_evenly_from_the_whole_vocabulary():
    tokens = all_of(node(num_rows=4000), 500)["targets"]
    counts = np.bincount(tokens.reshape(-1), minlength=37)
    assert len(counts) == 37
    expected = tokens.size / 37
    assert np.abs(counts - expected).max() < 5 * expected**0.5


def test_rows_are_the_same_in_any_batch_and_differ_by_their_seed():
    rows = node().rows
    several = rows.gather(np.array([7, 3, 49]))
    np.testing.assert_array_equal(several["inputs"][1:2], rows.gather(np.array([3]))["inputs"])
    assert (several["inputs"][0] != several["inputs"][1]).any()
    other = node(seed=1).rows
    assert (several["inputs"][:1] != other.gather(np.array([7]))["inputs"]).any()
    assert rows.digest != other.digest
    assert rows.digest == node().rows.digest


def test_it_goes_on_for_ever_and_needs_no_more_memory():
    data = Synthetic(vocab_size=9, length=4, num_threads=0)
    assert data.num_rows == 2**20
    iterator = data.iterator(global_batch_size=4, seed=0)
    state = iterator.get_state()
    first = next(iterator)
    next(iterator)
    iterator.set_state(state)
    np.testing.assert_array_equal(next(iterator)["inputs"], first["inputs"])


def test_it_is_described():
    assert str(node()) == "50 synthetic rows of 11 tokens"
    assert node().describe() == {"rows": 50, "length": 11, "vocab_size": 37}
    assert node().tokens_per_row == 11


def test_a_batch_of_more_rows_than_there_are_is_refused():
    message = "50 synthetic rows of 11 tokens, too few for a batch of 64 rows"
    with pytest.raises(DataError, match=message):
        node().iterator(global_batch_size=64, seed=0)
