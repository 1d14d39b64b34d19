import functools
import json
import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luthier.data import Bytes, Concatenate, Documents, FirstFit, Packed, shuffled_rows
from luthier.errors import DataError

WORDS = [f"document {number} " * (number % 9) for number in range(60)]
DATA = Packed(Documents(WORDS), Bytes(), 16, FirstFit(), num_threads=1, prefetch_batches=2)


def iterator(data=DATA, size=8, seed=5, index=0, count=1):
    return data.iterator(
        global_batch_size=size, seed=seed, process_index=index, process_count=count
    )


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_a_batch_is_a_function_of_its_step():
    stream = take(iterator(), 2 * DATA.num_rows // 8 + 2)
    for step, batch in enumerate(stream):
        rows = shuffled_rows(np.arange(step * 8, step * 8 + 8), DATA.num_rows, 5)
        assert_equal([DATA.rows.gather(rows)], [batch])


@pytest.mark.parametrize("count", [2, 4, 8])
def test_hosts_together_read_what_one_host_reads(count):
    single = take(iterator(), 25)
    hosts = [take(iterator(index=index, count=count), 25) for index in range(count)]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]
    assert_equal(single, joined)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
@settings(max_examples=10, deadline=None)
def test_any_rows_of_a_batch_can_be_read_by_their_numbers(numbers):
    rows = np.array(numbers)
    own = DATA.iterator(global_batch_size=8, seed=5, rows=rows)
    single = iterator()
    expected = [{name: array[rows] for name, array in batch.items()} for batch in take(single, 5)]
    assert_equal(take(own, 5), expected)
    assert own.get_state() == single.get_state()
    evaluated = list(DATA.batches(global_batch_size=8, rows=rows))
    whole = list(DATA.batches(global_batch_size=8))
    assert_equal(
        evaluated, [{name: array[rows] for name, array in batch.items()} for batch in whole]
    )


@pytest.mark.parametrize("rows", [[0, 8], [-1]])
def test_rows_outside_of_the_batch_are_refused(rows):
    for read in (functools.partial(DATA.iterator, seed=5), DATA.batches):
        with pytest.raises(DataError, match=r"rows \[(8|-1)\] are outside a batch of 8 rows"):
            read(global_batch_size=8, rows=np.array(rows))


@given(step=st.integers(0, 60), read=st.integers(0, 9), count=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=25, deadline=None)
def test_resuming_anywhere_on_any_number_of_hosts(step, read, count):
    stream = iterator()
    take(stream, step)
    state = json.loads(json.dumps(stream.get_state()))
    assert state == pickle.loads(pickle.dumps(stream.get_state()))
    after = take(stream, 3)
    for index in range(count):
        resumed = iterator(index=index, count=count)
        take(resumed, read)
        resumed.set_state(state)
        assert resumed.get_state() == state
        rows = slice(index * 8 // count, (index + 1) * 8 // count)
        expected = [{name: array[rows] for name, array in batch.items()} for batch in after]
        assert_equal(take(resumed, 3), expected)


def test_the_state_counts_rows_of_all_hosts():
    stream = iterator(index=1, count=2)
    take(stream, 7)
    assert stream.get_state() == {"rows": 56, "seed": 5, "data": DATA.rows.digest}


def test_far_into_training():
    stream = iterator()
    stream.set_state({**stream.get_state(), "rows": 8 * 10**15})
    rows = shuffled_rows(np.arange(8) + 8 * 10**15, DATA.num_rows, 5)
    assert_equal([DATA.rows.gather(rows)], take(stream, 1))


def test_another_batch_size_continues_where_it_fits():
    stream = iterator()
    take(stream, 6)
    other = iterator(size=16)
    other.set_state(stream.get_state())
    first, second = take(stream, 2)
    joined = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert_equal([joined], take(other, 1))
    state = {**iterator().get_state(), "rows": 48}
    with pytest.raises(DataError, match="48 rows consumed are not a whole number of batches of 9"):
        iterator(size=9).set_state(state)


def test_a_state_of_other_data_is_refused():
    state = iterator().get_state()
    changed = Packed(Documents([*WORDS, "more"]), Bytes(), 16, FirstFit())
    repacked = Packed(Documents(WORDS), Bytes(), 16, Concatenate())
    for data in (changed, repacked):
        with pytest.raises(DataError, match="not what it was at the checkpoint"):
            iterator(data).set_state(state)
    with pytest.raises(DataError, match="shuffled with seed 5, not 6"):
        iterator(seed=6).set_state(state)


def test_orbax_saves_and_restores_it_with_arrays(tmp_path):
    from orbax.checkpoint import v1 as ocp

    stream = iterator()
    take(stream, 11)
    path = tmp_path / "checkpoint"
    ocp.save_checkpointables(path, {"data": stream, "model": {"w": np.arange(3.0)}})
    after = take(stream, 5)
    for count in (1, 2):
        resumed = [iterator(index=index, count=count) for index in range(count)]
        parts = []
        for one in resumed:
            loaded = ocp.load_checkpointables(path, {"data": one})
            assert loaded["data"] is one
            parts.append(take(one, 5))
        joined = [
            {name: np.concatenate([p[name] for p in step]) for name in step[0]}
            for step in zip(*parts, strict=True)
        ]
        assert_equal(joined, after)


def test_orbax_reports_a_state_that_does_not_fit(tmp_path):
    from orbax.checkpoint import v1 as ocp

    path = tmp_path / "checkpoint"
    ocp.save_checkpointables(path, {"data": iterator()})
    with pytest.raises(KeyError) as error:
        ocp.load_checkpointables(path, {"data": iterator(seed=6)})
    assert isinstance(error.value.__cause__, DataError)
    assert "seed 5, not 6" in str(error.value.__cause__)
    for file in (path / "data").glob("process_*"):
        file.unlink()
    with pytest.raises(KeyError) as error:
        ocp.load_checkpointables(path, {"data": iterator()})
    assert isinstance(error.value.__cause__, DataError)
    assert "no state of the data iterator" in str(error.value.__cause__)


def test_a_closed_iterator_ends_its_threads():
    before = threading.active_count()
    stream = iterator()
    next(stream)
    stream.close()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_an_evaluation_counts_every_target_once_and_pads_its_last_batch():
    size = DATA.num_rows - 1  # the second batch holds one row
    first, second = DATA.batches(global_batch_size=size)
    assert second["weights"][0].any()
    assert not any(entry[1:].any() for entry in second.values())
    counted = first["weights"].sum() + second["weights"].sum()
    assert counted == DATA.rows.num_targets
