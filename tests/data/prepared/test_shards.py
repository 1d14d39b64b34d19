import numpy as np
import pytest

from luthier.data import Bytes, Documents, plan_layout, prepare, survey, verify
from luthier.data.entropy import ByteCounts
from luthier.data.packing import tokenize
from luthier.data.prepared.shards import load, read_manifest, read_shard, write_shard
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
