import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import (
    ByteCounts,
    Bytes,
    Documents,
    plan_layout,
    prepare,
    survey,
    tokenize,
    verify,
)
from luthier.data.prepared.shards import (
    ShardedStream,
    ShardedTokens,
    load,
    read_manifest,
    read_shard,
    write_shard,
)
from luthier.errors import DataError


def corpus(directory, count=9, shards=3):
    source = Documents([f"document {number}" for number in range(count)])
    layout = plan_layout(source, Bytes(), survey(source, Bytes()), shards)
    return prepare(source, Bytes(), str(directory), layout)


def test_a_shard_is_written_whole(tmp_path):
    counts = ByteCounts()
    stream = tokenize(Documents(["abc", "de"]), Bytes(), counts.add)
    assert read_shard(str(tmp_path), "s") is None
    entry = write_shard(str(tmp_path), "s", stream, counts)
    assert read_shard(str(tmp_path), "s") == entry
    assert {name: entry[name] for name in ("documents", "tokens", "bytes")} == {
        "documents": 2,
        "tokens": 9,
        "bytes": 5,
    }
    np.testing.assert_array_equal(load(str(tmp_path), "s", "tokens"), stream.tokens)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_verify_finds_every_flipped_byte(tmp_path):
    manifest = corpus(tmp_path)
    assert verify(str(tmp_path)) == manifest
    for shard, file in (("shard-00000", "tokens"), ("shard-00002", "targets")):
        path = tmp_path / shard / f"{file}.npy"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    with pytest.raises(DataError) as error:
        verify(str(tmp_path))
    assert ["shard-00000" in str(error.value.problems[0]), len(error.value.problems)] == [True, 2]


def test_files_that_are_cut_off(tmp_path):
    corpus(tmp_path)
    path = tmp_path / "shard-00001" / "tokens.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"shard-00001.tokens\.npy: cannot be read"):
        verify(str(tmp_path))


def test_a_folder_that_is_not_prepared(tmp_path):
    with pytest.raises(DataError, match="not a prepared corpus"):
        read_manifest(str(tmp_path))
    corpus(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "shard-00001" / "shard.json").unlink()
    with pytest.raises(DataError, match="only 2 of 3 shards are prepared"):
        read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        read_manifest(str(tmp_path))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_it_is_the_concatenation(sizes, data):
    parts = np.split(np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)[:-1])
    tokens = ShardedTokens(parts, sum(sizes), "corpus")
    assert tokens.shape == (len(tokens),) == (sum(sizes),)
    assert tokens.dtype == np.uint16
    positions = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1))), np.int64)
    np.testing.assert_array_equal(tokens[positions], positions)


def test_a_token_that_is_none_of_the_vocabulary_is_refused():
    tokens = ShardedTokens([np.array([1, 2, 700], np.uint16)], 258, "corpus")
    np.testing.assert_array_equal(tokens[np.array([0, 1])], [1, 2])
    with pytest.raises(DataError, match="corpus: holds tokens that are not in its vocabulary"):
        tokens[np.array([1, 2])]


def test_a_stream_reads_its_documents_when_they_are_asked_for():
    read = []

    def read_targets():
        read.append("once")
        return np.array([1, 1], np.int64)

    tokens = ShardedTokens([np.arange(4, dtype=np.uint16)], 258, "corpus")
    stream = ShardedStream(tokens, read_targets, 7)
    assert (stream.tokens, stream.num_bytes) == (tokens, 7)
    assert not read
    np.testing.assert_array_equal(stream.num_targets, [1, 1])
    assert len(read) == 1
