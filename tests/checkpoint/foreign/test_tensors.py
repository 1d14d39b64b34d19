import json

import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint.foreign import Tensors, read_config
from luthier.errors import CheckpointError


@pytest.mark.parametrize("shards", [1, 3])
def test_blocks_of_tensors_are_read(shards, tmp_path, folder_of, random_tensors):
    written = random_tensors({"a": (4, 6), "b": (3,), "c": (2, 2, 2), "d": (5, 1)})
    with Tensors(folder_of(tmp_path / "w", written, shards=shards)) as tensors:
        assert {n: d.shape for n, d in tensors.described.items()} == {
            name: array.shape for name, array in written.items()
        }
        block = tensors.read("a", (slice(1, 3), slice(2, 6)))
        np.testing.assert_array_equal(block, written["a"][1:3, 2:6])
        assert tensors.read("a", (slice(1, 1), slice(0, 6))).shape == (0, 6)
        assert tensors.metadata["format"] == "pt"


def test_bfloat16_and_scalars(tmp_path, folder_of):
    array = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    written = {"a": array, "one": np.array(3.0, np.float32)}
    with Tensors(folder_of(tmp_path / "w", written)) as tensors:
        assert tensors.described["a"].dtype == "bfloat16"
        assert tensors.read("a", (slice(0, 2), slice(1, 2))).dtype == ml_dtypes.bfloat16
        assert tensors.read("one", ()) == 3.0


def test_one_file_can_be_named_and_one_alone_is_found(tmp_path, folder_of, random_tensors):
    folder = folder_of(tmp_path / "w", random_tensors({"a": (2,)}))
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    for path in (folder, folder / "other.safetensors"):
        with Tensors(path) as tensors:
            assert list(tensors.described) == ["a"]


def test_a_damaged_folder_is_reported_in_one_line(tmp_path, folder_of, random_tensors):
    folder = folder_of(tmp_path / "weights", random_tensors({"a": (2,), "b": (2,)}), shards=2)
    with pytest.raises(CheckpointError, match=r"wieghts does not exist; did you mean .*weights"):
        Tensors(tmp_path / "wieghts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no safetensors"):
        Tensors(tmp_path / "empty")
    (tmp_path / "empty" / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"PyTorch's \*\.bin"):
        Tensors(tmp_path / "empty")
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00001-of-00002\.safetensors is missing"):
        Tensors(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read"):
        Tensors(folder)


def test_a_damaged_file_is_reported_in_one_line(tmp_path, folder_of, random_tensors):
    folder = folder_of(tmp_path / "w", random_tensors({"a": (200,)}))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        Tensors(folder)
    assert len(caught.value.problems) == 1


def test_several_files_without_an_index(tmp_path, folder_of, random_tensors):
    folder = folder_of(tmp_path / "w", random_tensors({"a": (2,)}))
    (folder / "model.safetensors").rename(folder / "x.safetensors")
    (folder / "y.safetensors").write_bytes((folder / "x.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="2 files"):
        Tensors(folder)


def test_config(tmp_path):
    assert read_config(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert read_config(tmp_path) == {"model_type": "llama"}
    for text in ("[]", "{"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
            read_config(tmp_path)
