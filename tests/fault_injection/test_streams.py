"""The stream of tokens is one, for any number of hosts and wherever it is taken up again."""

import hashlib
import random

import numpy as np
import pytest

from luthier.data import (
    Bytes,
    Concatenate,
    Deduplicate,
    Documents,
    Filtered,
    FirstFit,
    Length,
    Mixture,
    Packed,
    Stage,
)

HOSTS = (1, 2, 4, 8)
STEPS = 60
BATCH = 16
POINTS = 50


def documents(letter, count, seed):
    rng = random.Random(seed)
    words = [
        f"{letter}{rng.randrange(count)}" + f" {letter}" * rng.randrange(30) for _ in range(count)
    ]
    return Filtered(Documents(words), [Deduplicate(), Length(min_bytes=6)])


def mixed():
    """Return a mixture of filtered and packed text whose shares change."""
    packings = (Concatenate(), FirstFit(), Concatenate())
    components = {
        letter: Packed(documents(letter, 200, seed), Bytes(), 32, packings[seed], num_threads=0)
        for seed, letter in enumerate("abc")
    }
    stages = [Stage({"a": 0.6, "b": 0.3, "c": 0.1}), Stage({"a": 0.1, "c": 0.9}, start_step=25)]
    return Mixture(components, stages, num_threads=0)


def iterators(data, hosts):
    return [
        data.iterator(global_batch_size=BATCH, seed=3, process_index=i, process_count=hosts)
        for i in range(hosts)
    ]


def chain(hash_before, batches):
    """Return the hash of a stream with one more global batch: all entries of all hosts' rows."""
    state = hashlib.blake2b(hash_before, digest_size=16)
    for name in sorted(batches[0]):
        rows = np.concatenate([batch[name] for batch in batches])
        state.update(f"{name} {rows.dtype} {rows.shape}".encode() + rows.tobytes())
    return state.digest()


@pytest.fixture(scope="module")
def data():
    return mixed()


@pytest.fixture(scope="module")
def truth(data):
    """Return the hash of the stream up to every step, and the state of the iterator there."""
    (iterator,) = iterators(data, 1)
    hashes, states = [b""], [iterator.get_state()]
    for _ in range(STEPS):
        hashes.append(chain(hashes[-1], [next(iterator)]))
        states.append(iterator.get_state())
    assert len(set(hashes)) == STEPS + 1
    return hashes, states


@pytest.mark.parametrize("hosts", HOSTS)
def test_any_number_of_hosts_reads_one_stream(data, truth, hosts):
    hashes, states = truth
    running = iterators(data, hosts)
    found = b""
    for step in range(1, STEPS + 1):
        found = chain(found, [next(one) for one in running])
        assert found == hashes[step], f"step {step}"
        assert {str(one.get_state()) for one in running} == {str(states[step])}


@pytest.mark.full
def test_taken_up_at_fifty_points_by_any_number_of_hosts(data, truth):
    hashes, states = truth
    rng = random.Random()
    points = sorted(rng.sample(range(STEPS - 4), POINTS))
    for hosts in HOSTS:
        running = iterators(data, hosts)
        for point in points:
            for one in running:
                one.set_state(states[point])
            found = hashes[point]
            for step in range(point + 1, point + 4):
                found = chain(found, [next(one) for one in running])
                assert found == hashes[step], f"{hosts} hosts, from step {point} to {step}"


def test_the_hash_detects_rows_that_changed_places(data):
    (iterator,) = iterators(data, 1)
    batch = next(iterator)
    swapped = {name: rows[::-1] for name, rows in batch.items()}
    assert chain(b"", [batch]) != chain(b"", [swapped])
