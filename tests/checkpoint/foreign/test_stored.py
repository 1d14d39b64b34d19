import json

import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint.foreign import flat, newest, npz, orbax_tree
from luthier.errors import CheckpointError
from tests import foreign_checkpoints as foreign

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
PART = (slice(1, 3), slice(0, 2))


@pytest.mark.parametrize(
    "settings", [{}, {"use_zarr3": True}, {"use_ocdbt": False}, {"use_ocdbt": False, "is_old": 1}]
)
def test_orbax_trees_of_every_kind(settings, tmp_path):
    settings = dict(settings)
    is_old = settings.pop("is_old", False)
    tree = {"params": {"a": {"kernel": VALUES, "bias": VALUES[0]}}, "opt": [VALUES], "step": 3}
    folder = tmp_path / "tree"
    foreign.write_orbax(folder, tree, **settings)
    if is_old:
        _as_of_old(folder, tree)
    found = orbax_tree(folder, ("params",))
    assert sorted(found) == ["a/bias", "a/kernel"]
    array = found["a/kernel"]
    assert (array.shape, array.dtype) == ((3, 4), "float32")
    np.testing.assert_array_equal(array.read(PART), VALUES[PART])


def _as_of_old(folder, tree):
    """Replace the metadata by the msgpack that was there before it."""
    from flax import serialization

    (folder / "_METADATA").unlink()
    places = {k: f"PLACEHOLDER://params.a.{k}" for k in tree["params"]["a"]}
    content = {"params": {"a": places}, "opt": {"0": "PLACEHOLDER://opt.0"}, "step": 3}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def test_bfloat16_is_known_everywhere(tmp_path):
    narrow = VALUES.astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", **{"x/y": narrow})
    foreign.write_orbax(tmp_path / "tree", {"x": narrow})
    for array in (
        npz(tmp_path / "a.npz")["x/y"],
        orbax_tree(tmp_path / "tree", ())["x"],
    ):
        assert array.dtype == "bfloat16"
        np.testing.assert_array_equal(array.read(PART), narrow[PART])


def test_compressed_files_are_read_too(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=VALUES, y=np.asfortranarray(VALUES))
    found = npz(tmp_path / "a.npz")
    for name in ("x", "y"):
        np.testing.assert_array_equal(found[name].read(PART), VALUES[PART])


def test_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match=r"a\.npz cannot be read: x\.npy holds Python obj"):
        npz(tmp_path / "a.npz")


def test_a_tree_without_its_arrays_is_one_line(tmp_path):
    foreign.write_orbax(tmp_path / "tree", {"x": VALUES}, use_ocdbt=False)
    (tmp_path / "tree" / "x" / ".zarray").unlink()
    with pytest.raises(CheckpointError) as raised:
        orbax_tree(tmp_path / "tree", ())
    assert str(raised.value).startswith(f"{tmp_path / 'tree'} cannot be read: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"tree_metadata": {"a": {}}})])
def test_damaged_metadata_is_one_line(content, tmp_path):
    (tmp_path / "_METADATA").write_text(content)
    with pytest.raises(CheckpointError, match="_METADATA cannot be read"):
        orbax_tree(tmp_path, ())


def test_leaves_are_named_and_what_describes_an_array_is_one():
    spec = {"driver": "zarr", "kvstore": {"path": "x"}, "metadata": {}}
    tree = {"a": {"b": 1, "c": spec}, 3: {}}
    assert dict(flat(tree)) == {"a/b": 1, "a/c": spec}


def test_the_newest_folder_is_that_of_the_greatest_number(tmp_path):
    assert newest(tmp_path / "absent") is None
    for name in ("checkpoint_9", "checkpoint_10", "checkpoint_11.tmp-3", "12", "²"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint_99").write_text("")
    assert newest(tmp_path, "checkpoint_") == tmp_path / "checkpoint_10"
    assert newest(tmp_path) == tmp_path / "12"
