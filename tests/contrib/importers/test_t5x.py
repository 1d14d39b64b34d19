"""Checkpoints of T5X give the logits of an independent implementation."""

import jax
import numpy as np
import pytest

from luthier.checkpoint import Restoration
from luthier.contrib.importers import T5X
from luthier.errors import CheckpointError
from luthier.recipes import encoders
from tests import foreign_checkpoints as foreign

SIZES = {
    "vocab_size": 61,
    "dim": 24,
    "num_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "hidden_dim": 32,
    "num_buckets": 12,
    "max_distance": 20,
}
RECIPES = {"t5": encoders.t5, "t5_gated": encoders.t5_gated}


@jax.jit
def _logits(model, arrays):
    source = model.encode(arrays["input_ids"], segments_BL=arrays["attention_mask"])
    return model.logits(model.decode_hidden(arrays["decoder_input_ids"], source))


def _read(path):
    return T5X(str(path)).read_arrays(path)[0]


def _golden(name):
    tensors, arrays = foreign.golden(f"models/goldens/{name}.npz")
    arrays.pop("config")
    return foreign.t5x_parameters(tensors), arrays


@pytest.mark.parametrize(("name", "form"), [("t5", "own"), ("t5_gated", "own"), ("t5", "orbax")])
def test_the_forward_pass_is_equal(name, form, tmp_path, restored):
    parameters, arrays = _golden(name)
    if form == "own":
        foreign.write_t5x(tmp_path / "checkpoint_7", parameters)
    else:
        state = {"target": foreign.nested(parameters), "state": {"step": np.int32(7)}}
        foreign.write_orbax(tmp_path / "checkpoint_7" / "state", state)
    model, table = restored(RECIPES[name](**SIZES), T5X(str(tmp_path)))
    np.testing.assert_allclose(_logits(model, arrays), arrays["logits"], rtol=1e-5, atol=1e-5)
    row = table["decoder.blocks.cross_attention.query.kernel"]
    assert row.source == "decoder/layers_{0,1}/encoder_decoder_attention/query/kernel"


def test_the_last_checkpoint_of_a_folder_is_read(tmp_path):
    parameters, _ = _golden("t5")
    for step in (9, 10):
        own = {"token_embedder/embedding": parameters["token_embedder/embedding"] + step}
        foreign.write_t5x(tmp_path / f"checkpoint_{step}", own)
    array = _read(tmp_path)["token_embedder/embedding"]
    part = (slice(3, 5), slice(0, 2))
    expected = parameters["token_embedder/embedding"][part] + 10
    np.testing.assert_array_equal(array.read(part), expected)
    assert (array.shape, array.dtype) == ((61, 24), "float32")


def test_a_missing_array_is_reported(tmp_path):
    parameters, _ = _golden("t5")
    folder = tmp_path / "checkpoint_7"
    foreign.write_t5x(folder, parameters)
    place = "target.decoder.layers_1.mlp.wo.kernel"
    (folder / place).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as raised:
        _read(folder)
    message = f"{folder} lacks the array of decoder/layers_1/mlp/wo/kernel: {place}; "
    assert str(raised.value) == message + "fetch the whole folder again"


def test_a_model_of_other_sizes_is_reported_with_both_names(tmp_path, restored):
    parameters, _ = _golden("t5")
    foreign.write_t5x(tmp_path / "checkpoint_7", parameters)
    with pytest.raises(CheckpointError) as raised:
        restored(encoders.t5(**{**SIZES, "num_layers": 3}), T5X(str(tmp_path)))
    message = "encoder/layers_2/attention/query/kernel [24, 32] is not in the files; it is "
    assert message + "encoder.blocks.2.attention.query.kernel [24, 4, 8]" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x81\xa1a\x01", b"\xc1"])
def test_what_is_no_checkpoint_is_one_line(tmp_path, content):
    with pytest.raises(CheckpointError, match="holds no checkpoint of T5X"):
        _read(tmp_path)
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        Restoration(T5X(str(tmp_path)), {}, {})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("part", "family"), [("wi_0", "t5x, gated"), ("wi", "t5x")])
def test_the_map_is_chosen_by_the_feed_forward_parts(part, family, tmp_path):
    folder = tmp_path / "checkpoint_1"
    foreign.write_t5x(folder, {f"encoder/layers_0/mlp/{part}/kernel": np.ones((2, 3), np.float32)})
    assert T5X(str(folder)).read_arrays(folder)[1].name == family
