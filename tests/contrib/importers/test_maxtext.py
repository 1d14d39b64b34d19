"""Checkpoints of MaxText give the logits of an independent implementation."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.contrib.importers import MaxText
from luthier.errors import CheckpointError
from luthier.recipes.foreign import model_of
from tests import foreign_checkpoints as foreign

LAYERS = "decoder/layers"


def _golden(name):
    tensors, arrays = foreign.golden(f"recipes/goldens/{name}.npz")
    return tensors, arrays, json.loads(str(arrays["config"]))


def _read(path, **settings):
    return MaxText(str(path), **settings).read_arrays(path)[0]


@pytest.mark.parametrize(
    ("name", "is_interleaved", "form"),
    [
        ("mistral", False, "scanned"),
        ("llama", True, "scanned"),
        ("qwen3", False, "unrolled"),
        ("mistral", False, "files"),
    ],
)
def test_the_forward_pass_is_equal(name, is_interleaved, form, tmp_path, restored):
    theirs, arrays, config = _golden(name)
    heads = config["num_attention_heads"]
    theirs = {"lm_head.weight": theirs["model.embed_tokens.weight"], **theirs}
    parameters = foreign.maxtext_parameters(theirs, heads, is_interleaved)
    if config.get("tie_word_embeddings"):
        del parameters["decoder/logits_dense/kernel"]
    if form != "unrolled":
        parameters = foreign.stacked(parameters, LAYERS, 1)
        assert parameters["decoder/layers/self_attention/query/kernel"].shape[1] == 2
    foreign.write_maxtext(tmp_path / "checkpoints", parameters, 3, use_ocdbt=form != "files")
    model, table = restored(model_of(config), MaxText(str(tmp_path), interleaved=is_interleaved))
    inputs = jnp.asarray(arrays["inputs"])
    logits = jax.jit(lambda model, inputs: model(inputs))(model, inputs)
    np.testing.assert_allclose(logits, arrays["logits"], rtol=1e-5, atol=1e-5)
    expected = "decoder/layers/mlp/wi_0/kernel[{0,1}]"
    expected = "decoder/layers_{0,1}/mlp/wi_0/kernel" if form == "unrolled" else expected
    assert table["blocks.mlp.gate.kernel"].source == expected


def test_halves_and_neighbours_are_not_the_same(tmp_path):
    theirs, _, config = _golden("llama")
    parameters = foreign.maxtext_parameters(theirs, config["num_attention_heads"])
    foreign.write_maxtext(tmp_path, parameters)
    plain, other = _read(tmp_path), _read(tmp_path, interleaved=True)
    name = "decoder/layers_0/self_attention/key/kernel"
    index = tuple(slice(0, size) for size in plain[name].shape)
    expected = plain[name].read(index)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    np.testing.assert_array_equal(other[name].read(index), expected)
    part = (*index[:-1], slice(3, 6))
    np.testing.assert_array_equal(other[name].read(part), expected[..., 3:6])


def test_the_last_step_is_read_and_one_may_be_named(tmp_path):
    for step in (9, 10):
        own = {"decoder/decoder_norm/scale": np.full(4, step, np.float32)}
        foreign.write_maxtext(tmp_path, own, step)
    places = {tmp_path: 10, tmp_path / "9": 9, tmp_path / "9" / "items": 9}
    for place, step in places.items():
        array = _read(place)["decoder/decoder_norm/scale"]
        assert array.read((slice(0, 1),)) == [step]


def test_layers_along_another_dimension(tmp_path):
    own = {"decoder/layers/mlp/wo/kernel": np.arange(24.0).reshape(2, 3, 4)}
    foreign.write_maxtext(tmp_path, own)
    found = _read(tmp_path, scan_axis=0)
    assert found["decoder/layers/mlp/wo/kernel[1]"].shape == (3, 4)
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path, scan_axis=3)
    message = (
        "restore.scan_axis: decoder/layers/mlp/wo/kernel [2, 3, 4] has no dimension 3 of layers"
    )
    assert str(raised.value) == f"{message}; set it to 0"


def test_what_is_no_checkpoint_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint of MaxText; give the folder"):
        _read(tmp_path)
    (tmp_path / "_METADATA").write_text('{"tree_metadata": 3}')
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / '_METADATA'} cannot be read: ")
