import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint.foreign import (
    Stacked,
    Tensors,
    families,
    foreign_tensors,
    plain_tensors,
    write,
)
from luthier.errors import CheckpointError

NOTHING = {"config": None, "metadata": {}}


def _arrays(**shapes):
    rng = np.random.default_rng(0)
    return {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}


def _read(folder):
    with Tensors(folder) as tensors:
        return {
            name: tensors.read(name, tuple(slice(0, size) for size in described.shape))
            for name, described in tensors.described.items()
        }


@pytest.mark.parametrize("shard_bytes", [10**9, 200, 1])
def test_what_is_written_is_read(shard_bytes, tmp_path):
    arrays = _arrays(a=(4, 6), b=(3,), c=(20,)) | {"d": np.ones(3, ml_dtypes.bfloat16)}
    files = write(
        tmp_path / "out",
        plain_tensors(arrays),
        config={"model_type": "toy"},
        metadata={"format": "luthier"},
        shard_bytes=shard_bytes,
    )
    assert all(path.is_file() for path in files)
    found = _read(tmp_path / "out")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "toy"}


def test_shards_are_no_larger_than_they_may_be(tmp_path):
    arrays = _arrays(a=(10,), b=(10,), c=(10,))
    files = write(tmp_path / "out", plain_tensors(arrays), config=None, metadata={}, shard_bytes=80)
    names = [path.name for path in files]
    assert names[:2] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 120
    assert set(index["weight_map"]) == {"a", "b", "c"}


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CheckpointError, match="not empty"):
        write(tmp_path / "out", plain_tensors(_arrays(a=(2,))), config=None, metadata={})
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_what_fails_leaves_nothing_behind(tmp_path):
    def broken():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        write(tmp_path / "out", {"a": ((2,), "float32", broken)}, config=None, metadata={})
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_a_file_is_one_line(tmp_path):
    def gone():
        (building,) = tmp_path.glob(".out.*")
        shutil.rmtree(building)
        return np.zeros(2, np.float32)

    with pytest.raises(CheckpointError) as caught:
        write(tmp_path / "out", {"a": ((2,), "float32", gone)}, config=None, metadata={})
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 'out'} cannot be written: ")
    assert "No such file" in line
    assert line.endswith("; choose a place with room")
    assert not list(tmp_path.iterdir())


def test_folders_of_other_writers_with_this_process_id_are_left_alone(tmp_path):
    other = tmp_path / f".out.{os.getpid()}.tmp"
    other.mkdir()
    (other / "model.safetensors").touch()
    inner = []

    def by_another():
        inner.append(write(tmp_path / "out", plain_tensors(_arrays(a=(2,))), **NOTHING))
        return np.zeros(2, np.float32)

    # The second begins and ends while the first writes: it wins, and the first is refused.
    with pytest.raises(CheckpointError, match="out cannot be written: "):
        write(tmp_path / "out", {"a": ((2,), "float32", by_another)}, **NOTHING)
    assert inner == [[tmp_path / "out" / "model.safetensors"]]
    assert set(_read(tmp_path / "out")) == {"a"}
    assert [path.name for path in other.iterdir()] == ["model.safetensors"]


def test_parameters_of_another_family_are_all_reported():
    arrays = _arrays(**{"blocks.query.kernel": (2, 3), "embedding.table": (8, 4), "head": (2,)})
    stacked = {name: Stacked(array.shape, "blocks" in name) for name, array in arrays.items()}
    with pytest.raises(CheckpointError) as caught:
        foreign_tensors(families.named("llama"), arrays, stacked, {})
    lines = [str(problem) for problem in caught.value.problems]
    assert len(lines) == 4
    for name in ("blocks.0.query.kernel", "blocks.1.query.kernel", "head"):
        assert any(line.startswith(name) for line in lines)


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    arrays = _arrays(a=(2,))
    write(tmp_path / "out", plain_tensors(arrays), **NOTHING)
    np.testing.assert_array_equal(_read(tmp_path / "out")["a"], arrays["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("folder", [".", "../here"])
def test_the_working_directory_is_never_replaced(folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(CheckpointError) as refused:
        write(folder, plain_tensors(_arrays(a=(2,))), **NOTHING)
    remedy = "name a folder in it with --output"
    assert str(refused.value) == f"{folder} is the working directory; {remedy}"
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]
