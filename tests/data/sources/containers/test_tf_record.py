import gzip
import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Filtered, Skip, TFRecord
from luthier.data.sources import containers
from luthier.data.sources.containers import crc32c, masked_crc32c
from luthier.errors import DataError

DOCUMENTS = [f"record {number} ".encode() * (number % 5) for number in range(12)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luthier" / "tfrecord"


def framed(document):
    header = struct.pack("<Q", len(document))
    crcs = [struct.pack("<I", masked_crc32c(part)) for part in (header, document)]
    return header + crcs[0] + document + crcs[1]


def write(path, documents=DOCUMENTS):
    path.write_bytes(b"".join(map(framed, documents)))
    return path


def test_reading(tmp_path):
    write(tmp_path / "b.tfrecord", DOCUMENTS[7:])
    write(tmp_path / "a.tfrecord", DOCUMENTS[:7])
    source = TFRecord(f"{tmp_path}/*.tfrecord")
    assert len(source) == 12
    for index in np.random.default_rng(0).permutation(12):
        assert source[index] == DOCUMENTS[index]
    assert source.name(8).endswith("b.tfrecord: record 1")


def test_the_index_is_built_once(tmp_path, cache, monkeypatch):
    path = write(tmp_path / "x.tfrecord")
    assert len(TFRecord(str(path))) == 12
    (kept,) = cache.glob("*.npy")
    walks = []
    monkeypatch.setattr(containers, "_walk", lambda *a: walks.append(a) or np.zeros(1, np.int64))
    assert TFRecord(str(path))[11] == DOCUMENTS[11]
    assert not walks
    kept.write_bytes(b"not an array")
    assert len(TFRecord(str(path))) == 1
    assert len(walks) == 1
    write(path, DOCUMENTS[:3])
    os.utime(path, ns=(1, 1))
    len(TFRecord(str(path)))
    assert len(walks) == 2


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    path = write(tmp_path / "x.tfrecord")
    (tmp_path / "file").write_text("")
    assert len(TFRecord(str(path), cache=str(tmp_path / "file" / "below"))) == 12


@pytest.mark.full
def test_every_flipped_byte_is_found_and_named(tmp_path):
    path = write(tmp_path / "x.tfrecord")
    whole = path.read_bytes()
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        path.write_bytes(bytes(content))
        os.utime(path, ns=(position, position))
        with pytest.raises(DataError, match=r"x\.tfrecord: record \d+ is damaged"):
            TFRecord(str(path)).read(0, 12)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_file_that_is_cut_off(tmp_path, cut):
    path = write(tmp_path / "x.tfrecord")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"x\.tfrecord: record 11 is damaged: the file is cut off"):
        len(TFRecord(str(path)))


def test_skipping_what_is_damaged(tmp_path):
    path = write(tmp_path / "x.tfrecord")
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(bytes(content))
    source = Filtered(TFRecord(str(path)), corrupt=Skip())
    assert list(source.read(0, len(source))) == DOCUMENTS[:11]


def test_compressed_files_are_refused(tmp_path):
    path = write(tmp_path / "x.tfrecord")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match="compressed with gzip; unpack it with `gunzip`"):
        len(TFRecord(str(path)))


def test_an_empty_file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        len(TFRecord(str(tmp_path / "x")))


# The checksum of the format.


def bitwise(data):
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


# RFC 3720, appendix B.4.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected


@pytest.mark.parametrize("size", [511, 512, 513, 1000, 1024, 4097, 20_000])
def test_long_data(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert crc32c(data) == bitwise(data) == crc32c(memoryview(data))


@given(st.binary(min_size=500, max_size=700))
def test_around_the_change_of_method(data):
    assert crc32c(data) == bitwise(data)


def test_the_mask():
    crc = crc32c(b"abc")
    rotated = (crc >> 15) | (crc & 0x7FFF) << 17
    assert masked_crc32c(b"abc") == (rotated + 0xA282EAD8) % 2**32
