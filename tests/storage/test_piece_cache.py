import hashlib
import os
import subprocess
import sys

import pytest

from luthier.storage import PieceCache

NUM_WAYS = 16  # places that the key of a piece may take


def key(number):
    return hashlib.blake2b(f"{number}".encode(), digest_size=16).digest()


def content(number, size=500):
    return bytes([number % 251]) * (size + number % 7)


def test_pieces_survive_a_restart(tmp_path):
    cache = PieceCache(tmp_path, 1 << 20, 1024)
    assert cache.get(key(1)) is None
    for number in range(50):
        cache.put(key(number), content(number))
    assert all(cache.get(key(number)) == content(number) for number in range(50))
    again = PieceCache(tmp_path, 1 << 20, 1024)
    assert all(again.get(key(number)) == content(number) for number in range(50))
    assert key(49) in again
    assert key(50) not in again


@pytest.mark.parametrize("num_bytes", [0, 1023, 5_000, 40_000])
def test_the_file_is_never_larger_than_the_bound(tmp_path, num_bytes):
    cache = PieceCache(tmp_path, num_bytes, 1024)
    for number in range(100):
        cache.put(key(number), content(number, 1000))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= num_bytes
    kept = [number for number in range(100) if cache.get(key(number)) is not None]
    assert len(kept) <= cache.num_places == num_bytes // 1072 // NUM_WAYS * NUM_WAYS or (
        cache.num_places < NUM_WAYS
    )
    assert all(cache.get(key(number)) == content(number, 1000) for number in kept)
    assert bool(kept) == (num_bytes >= 1072)


def test_the_least_recently_used_piece_is_given_up(tmp_path):
    cache = PieceCache(tmp_path, 4 * 1072, 1024)  # one set of four places
    for number in range(4):
        cache.put(key(number), content(number))
    assert cache.get(key(0)) is not None
    cache.put(key(4), content(4))
    assert [number for number in range(5) if key(number) in cache] == [0, 2, 3, 4]
    cache.put(key(2), content(2))  # once more, in its own place
    assert [number for number in range(5) if key(number) in cache] == [0, 2, 3, 4]


def test_another_bound_replaces_the_file(tmp_path):
    PieceCache(tmp_path, 1 << 20, 1024).put(key(1), content(1))
    cache = PieceCache(tmp_path, 1 << 16, 1024)
    assert cache.get(key(1)) is None
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 1 << 16


def test_what_is_damaged_is_not_there(tmp_path):
    cache = PieceCache(tmp_path, 1 << 16, 1024)
    for number in range(40):
        cache.put(key(number), content(number))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    damaged = bytearray(whole)
    for at in range(0, len(damaged), 640):
        damaged[at] ^= 255
    for data in (bytes(damaged), whole[:30_000], whole[:100], b""):
        file.write_bytes(data)
        found = [cache.get(key(number)) for number in range(40)]
        assert None in found
        assert all(data in (None, content(number)) for number, data in enumerate(found))
    cache.put(key(3), content(3))
    assert cache.get(key(3)) == content(3)


def test_a_disk_that_refuses_costs_the_piece_alone(tmp_path, monkeypatch):
    cache = PieceCache(tmp_path, 1 << 16, 1024)
    write = os.pwrite

    def full(file, data, at):
        if len(data) > 100:
            raise OSError(28, "No space left on device")
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    cache.put(key(1), content(1))
    assert cache.get(key(1)) is None
    monkeypatch.undo()
    cache.put(key(1), content(1))
    assert cache.get(key(1)) == content(1)


HAMMER = """
import random, sys
from luthier.storage import PieceCache
from tests.storage.test_piece_cache import content, key
cache, draws = PieceCache(sys.argv[1], 16 * 1072, 1024), random.Random(sys.argv[2])
hits = 0
for _ in range(8000):
    number = draws.randrange(40)
    found = cache.get(key(number))
    assert found in (None, content(number)), number
    hits += found is not None
    if found is None:
        cache.put(key(number), content(number))
print(hits)
"""


@pytest.mark.full
def test_processes_share_it_without_ever_reading_the_piece_of_another_key(tmp_path):
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    started = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(2)
    ]
    outputs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert all(int(hits) > 1000 for hits in outputs)
