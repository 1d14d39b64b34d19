"""Vision transformers of big_vision give the logits of an independent implementation."""

import jax
import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint import Restoration, Skip, Take
from luthier.contrib.importers import BigVision
from luthier.errors import CheckpointError
from luthier.recipes import encoders
from tests import foreign_checkpoints as foreign

BLOCK = "Transformer/encoderblock"


@pytest.fixture(scope="module")
def golden():
    return foreign.golden("models/goldens/vit.npz")


def _recipe(**changed):
    sizes = {"dim": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 48, "num_classes": 7}
    recipe = encoders.vit(**sizes, image_size=(8, 12), patch_size=(4, 4), **changed)
    recipe.norm.epsilon = 1e-12
    return recipe


def _read(path):
    return BigVision(str(path)).read_arrays(path)[0]


def _check(model, arrays):
    images = arrays["pixel_values"].transpose(0, 2, 3, 1)
    logits = jax.jit(lambda model, images: model(images))(model, images)
    np.testing.assert_allclose(logits, arrays["logits"], rtol=1e-5, atol=1e-5)


def _zarr(folder, parameters):
    """Write a folder of arrays, as the newer programs do."""
    import tensorstore

    for name, value in parameters.items():
        place = folder / ("params/" + name).replace("/", "~")
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(place)}}
        metadata = {"shape": value.shape, "chunks": value.shape, "dtype": "<f4"}
        tensorstore.open({**spec, "metadata": metadata}, create=True).result().write(value).result()


@pytest.mark.parametrize("form", ["npz", "stacked", "bare and old", "in an optimizer", "folder"])
def test_the_forward_pass_is_equal(form, golden, tmp_path, restored):
    theirs, arrays = golden
    parameters = foreign.big_vision_parameters(theirs, is_old=form == "bare and old")
    if form == "stacked":
        parameters = foreign.stacked(parameters, BLOCK, 0)
    path = tmp_path / ("checkpoint.bv-000000010" if form == "folder" else "vit.npz")
    if form == "folder":
        _zarr(path, parameters)
    else:
        above = {"bare and old": "", "in an optimizer": "opt/target/"}.get(form, "params/")
        extra = {"opt/state/step": np.int32(3)} if above != "" else {}
        np.savez(path, **{above + name: value for name, value in parameters.items()}, **extra)
    model, table = restored(_recipe(), BigVision(str(path)))
    _check(model, arrays)
    source = table["blocks.mlp.up.kernel"].source
    layers = "Transformer/encoderblock/MlpBlock_0/Dense_0/kernel[{0,1}]"
    apart = "Transformer/encoderblock_{0,1}/MlpBlock_0/Dense_0/kernel"
    assert source == (layers if form == "stacked" else apart)


def test_part_of_a_model_of_two_towers_in_bfloat16(golden, tmp_path, restored):
    theirs, _ = golden
    parameters = foreign.big_vision_parameters(theirs)
    narrow = {f"params/img/{k}": v.astype(ml_dtypes.bfloat16) for k, v in parameters.items()}
    path = tmp_path / "two.npz"
    np.savez(path, **narrow, **{"params/t": np.ones(1)})
    model, table = restored(_recipe(), BigVision(f"{path}:img"))
    expected = narrow["params/img/head/kernel"].astype(np.float32)
    np.testing.assert_array_equal(model.head.kernel[...], expected)
    assert table["head.kernel"].dtype == "bfloat16 -> float32"
    with pytest.raises(CheckpointError) as raised:
        _read(path)
    message = f"{path} holds no vision transformer; name a part of it: {path}:img"
    assert str(raised.value) == message


def test_positions_without_one_for_the_class_token(golden):
    theirs, _ = golden
    assert theirs["vit.embeddings.position_embeddings"].shape == (1, 7, 32)
    parameters = foreign.big_vision_parameters(theirs)
    assert parameters["pos_embedding"].shape == (1, 6, 32)


def test_a_square_of_patches_and_one_more_has_the_class_token(tmp_path):
    for length in (10, 9):
        arrays = {"cls": np.ones((1, 1, 4)), "pos_embedding": np.ones((1, length, 4))}
        np.savez(tmp_path / "a.npz", **arrays, **{"Transformer/encoder_norm/scale": np.ones(4)})
        found = _read(tmp_path / "a.npz")["pos_embedding"]
        assert found.shape == (1, 10, 4)
        block = found.read((slice(0, 1), slice(0, 2), slice(1, 3)))
        np.testing.assert_array_equal(block, [[[length - 9] * 2, [1, 1]]])


def test_a_head_for_other_classes_is_left(golden, tmp_path):
    theirs, _ = golden
    np.savez(tmp_path / "vit.npz", **foreign.big_vision_parameters(theirs))
    source = BigVision(str(tmp_path / "vit.npz"), rules=(Skip(r"^head"), Take()))
    with pytest.raises(CheckpointError) as raised:
        Restoration(source, {}, {})
    problems = [str(problem) for problem in raised.value.problems]
    assert not any("head/" in line for line in problems)
    assert any("cls [1, 1, 32] of the files has no place to go" in line for line in problems)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"words"])
def test_a_damaged_file_is_one_line(content, tmp_path):
    (tmp_path / "vit.npz").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path / "vit.npz")
    assert str(raised.value).startswith(f"{tmp_path / 'vit.npz'} cannot be read: ")
    assert "\n" not in str(raised.value)
