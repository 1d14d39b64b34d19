import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint import Init, Resize, Restoration, Safetensors, Skip, Take
from luthier.errors import CheckpointError

LIMITS = {"vocab": 7}


def _problems(restore, targets):
    with pytest.raises(CheckpointError) as caught:
        Restoration(restore, targets, LIMITS)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("unrolled", [False, True])
def test_tensors_are_split_stacked_and_padded(unrolled, toy, targets, tensors, write):
    wanted = targets(unrolled=unrolled)
    with Restoration(Safetensors(write(tensors), toy), wanted, LIMITS) as restoration:
        found = {name: np.asarray(array) for name, array in restoration.read().items()}
    np.testing.assert_array_equal(found["embedding.table"][:7], tensors["model.embed"])
    assert not found["embedding.table"][7:].any()
    for layer in range(2):
        key = found[f"blocks.{layer}.k"] if unrolled else found["blocks.k"][layer]
        expected = tensors[f"model.h.{layer}.qk"][:, 15:].reshape(4, 2, 5)
        np.testing.assert_array_equal(key, expected)


def test_a_foreign_vocabulary_is_not_resized(toy, targets, tensors, write):
    rules = (Resize("embedding"), Take())
    assert _problems(Safetensors(write(tensors), toy, rules), targets()) == [
        "restore: embedding.table cannot be resized: a source with names of its own is read whole; "
        "start a run from it, and resize that: Resize is for run:DIR"
    ]


def test_a_bare_model_lacks_the_prefix(toy, targets, tensors, write):
    bare = {name.removeprefix("model."): array for name, array in tensors.items()}
    with Restoration(Safetensors(write(bare), toy), targets(), LIMITS) as restoration:
        np.testing.assert_array_equal(restoration.read()["embedding.table"][:7], bare["embed"])


def test_bfloat16_is_widened_exactly(toy, targets, tensors, write):
    narrow = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    with Restoration(Safetensors(write(narrow), toy), targets(), LIMITS) as restoration:
        found = restoration.read()["embedding.table"]
        row = restoration.table[-1]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:7], narrow["model.embed"].astype(np.float32))
    assert row.dtype == "bfloat16 -> float32"


def test_missing_extra_and_misshapen_tensors_are_one_error_with_both_names(
    toy, targets, tensors, write
):
    del tensors["model.h.1.qk"]
    tensors["model.embed"] = tensors["model.embed"][:, :3].copy()
    tensors |= {"model.h.2.qk": np.ones((4, 25)), "other": np.ones(3)}
    lines = _problems(Safetensors(write(tensors), toy), targets())
    assert len(lines) == 4
    text = "\n".join(lines)
    assert "model.embed is [7, 3] in the files, and [7, 4] is needed for embedding.table" in text
    assert "model.h.1.qk [4, 25] is not in the files; it is blocks.1.q [4, 3, 5]" in text
    assert "model.h.2.qk [4, 25] of the files has no place" in text
    assert "the model has no blocks.2.q, blocks.2.k" in text
    assert "other [3] of the files has no place to go" in text


def test_a_parameter_that_the_family_does_not_have(toy, targets, tensors, write):
    more = targets() | {"scale": targets()["embedding.table"]}
    (line,) = _problems(Safetensors(write(tensors), toy), more)
    assert "scale [8, 4] has no tensor in the toy family" in line
    rules = (Init("^scale"), Take())
    with Restoration(Safetensors(write(tensors, "again"), toy, rules), more, LIMITS) as found:
        assert "scale" not in found.read()


def test_a_tied_head_may_be_there_if_it_is_equal(toy, targets, tensors, write):
    equal = tensors | {"head": tensors["model.embed"].copy()}
    with Restoration(Safetensors(write(equal), toy), targets(), LIMITS) as restoration:
        assert set(restoration.read()) == set(targets())
    other = tensors | {"head": tensors["model.embed"] + 1}
    folder = write(other, "other")
    (line,) = _problems(Safetensors(folder, toy), targets())
    assert "head differs from model.embed, and the model ties them" in line
    with Restoration(Safetensors(folder, toy, (Skip("^head$"), Take())), targets(), LIMITS):
        pass


def test_a_head_of_its_own_is_read_from_tied_files_only(toy, targets, tensors, write):
    own = tensors | {"head": tensors["model.embed"] + 1}
    wanted = targets(head=True)
    with Restoration(Safetensors(write(own), toy), wanted, LIMITS) as restoration:
        np.testing.assert_array_equal(restoration.read()["head.kernel"][:, :7], own["head"].T)
    folder = write(tensors, "tied")
    (line,) = _problems(Safetensors(folder, toy), wanted)
    assert "head [7, 4] is not in the files" in line
    config = {"model_type": "toy", "tie_word_embeddings": True}
    (Path(folder) / "config.json").write_text(json.dumps(config))
    with Restoration(Safetensors(folder, toy), wanted, LIMITS) as restoration:
        kernel = restoration.read()["head.kernel"]
    np.testing.assert_array_equal(kernel[:, :7], tensors["model.embed"].T)


def test_skipped_parameters_leave_their_tensors_unread(toy, targets, tensors, write):
    tensors["model.embed"] = np.ones((2, 2), np.float32)
    restore = Safetensors(write(tensors), toy, (Skip("^embedding"), Take()))
    with Restoration(restore, targets(), LIMITS) as restoration:
        assert set(restoration.read()) == {"blocks.q", "blocks.k"}


def test_names_of_luthier_need_no_config(targets, write):
    wanted = targets()
    arrays = {n: np.ones(target.shape, np.float32) for n, target in wanted.items()}
    folder = write(arrays, metadata={"format": "luthier"})
    with Restoration(Safetensors(folder), wanted, LIMITS) as restoration:
        assert set(restoration.read()) == set(wanted)
    other = write(arrays, "other")
    with Restoration(Safetensors(other, "luthier"), wanted, LIMITS):
        pass
    (line,) = _problems(Safetensors(other), wanted)
    assert "has no config.json that names the family" in line


def test_families_that_do_not_exist(toy, targets, tensors, write):
    folder = write(tensors)
    (line,) = _problems(Safetensors(folder, "lama"), targets())
    assert "no family 'lama'; did you mean llama" in line
    (Path(folder) / "config.json").write_text('{"model_type": "lama"}')
    (line,) = _problems(Safetensors(folder), targets())
    assert "model_type 'lama', which belongs to no known family" in line


def test_quantized_tensors_and_numbers_that_are_none_are_refused_by_name(
    toy, targets, tensors, write
):
    cast = tensors | {"model.h.1.qk": tensors["model.h.1.qk"].astype(np.int8)}
    (line,) = _problems(Safetensors(write(cast), toy), targets())
    assert "model.h.1.qk is of dtype int8" in line
    assert "quantized weights are not read" in line
    for dtype in (np.float32, ml_dtypes.bfloat16):
        bad = {name: array.astype(dtype) for name, array in tensors.items()}
        bad["model.h.0.qk"][1, 3] = np.nan
        folder = write(bad, f"bad_{np.dtype(dtype).name}")
        with (
            Restoration(Safetensors(folder, toy), targets(), LIMITS) as restoration,
            pytest.raises(CheckpointError, match=r"h\.0\.qk holds 1 numbers that are NaN"),
        ):
            restoration.read()


def test_a_tied_head_of_another_size_is_refused(toy, targets, tensors, write):
    other = tensors | {"head": tensors["model.embed"][:5].copy()}
    lines = _problems(Safetensors(write(other), toy), targets())
    assert any("head differs from model.embed, and the model ties them" in line for line in lines)


def test_files_without_a_config_describe_no_model(toy, targets, tensors, write):
    folder = write(tensors)
    with Restoration(Safetensors(folder, toy), targets(), LIMITS) as restoration:
        assert restoration.described is None
    config = {"model_type": "toy", "vocab_size": 7}
    (Path(folder) / "config.json").write_text(json.dumps(config))
    with Restoration(Safetensors(folder, toy), targets(), LIMITS) as restoration:
        assert restoration.described.config == config
