"""Settings of Orbax reach the disk, or the reading, as files and metadata show."""

from __future__ import annotations

import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import type_handlers

from luthier.checkpoint import Checkpoints, Storage, Store
from luthier.errors import CheckpointError


@pytest.fixture(scope="module")
def mesh():
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=types)


@pytest.fixture(scope="module")
def state(mesh):
    draw = np.random.default_rng(0)
    shared_out = jax.NamedSharding(mesh, jax.P("fsdp"))
    repeated = jax.NamedSharding(mesh, jax.P())
    return {
        "w": jax.device_put(draw.standard_normal((1024, 64), np.float32), shared_out),
        "r": jax.device_put(draw.standard_normal((512, 256), np.float32), repeated),
    }


def abstract(state):
    return {
        k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding) for k, v in state.items()
    }


def saved(path, state, storage):
    with Store(path, Checkpoints(storage=storage)) as store:
        store.save(1, state)
        store.wait()
        assert store.check(1) == []
    return path / "1" / "arrays"


def written_shapes(path):
    text = (path / "array_metadatas" / "process_0").read_text()
    entries = [entry["array_metadata"] for entry in json.loads(text)["array_metadatas"]]
    return {entry["param_name"]: entry["write_shape"] for entry in entries}


def test_data_files_have_the_size_that_was_set(tmp_path, state):
    def sizes(path):
        return [p.stat().st_size for p in path.rglob("d/*") if p.is_file()]

    usual = sizes(saved(tmp_path / "usual", state, Storage()))
    small = sizes(saved(tmp_path / "small", state, Storage(file_bytes=1 << 16)))
    assert max(usual) > 500_000
    assert len(small) > 3 * len(usual)
    assert max(small) < 3 << 16
    with Store(tmp_path / "small") as store:
        loaded = store.restore(1, abstract(state))
    for name, array in state.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_a_save_is_shared_out_among_replicas(tmp_path, state):
    alone = written_shapes(saved(tmp_path / "alone", state, Storage(saving_replicas=1)))
    shared = written_shapes(saved(tmp_path / "shared", state, Storage()))
    two = written_shapes(saved(tmp_path / "two", state, Storage(saving_replicas=2)))
    assert alone == {"w": [256, 64], "r": [512, 256]}
    assert shared == {"w": [128, 64], "r": [64, 256]}
    assert two == {"w": [128, 64], "r": [256, 256]}


@pytest.mark.parametrize(("axis", "calls"), [("data", 1), (None, 0)])
def test_a_checkpoint_is_read_once_and_broadcast(tmp_path, state, axis, calls):
    saved(tmp_path / "a", state, Storage())
    handler = type_handlers.SingleReplicaArrayHandler
    with (
        mock.patch.object(
            handler, "deserialize", autospec=True, side_effect=handler.deserialize
        ) as broadcast,
        Store(tmp_path / "a", Checkpoints(storage=Storage(broadcast_axis=axis))) as store,
    ):
        loaded = store.restore(1, abstract(state))
    assert broadcast.call_count == calls
    for name, array in state.items():
        assert loaded[name].sharding == array.sharding
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        ("fsdp", "w is split over 'fsdp'; choose an axis that only repeats parameters"),
        ("expert", "w is on a mesh of data, fsdp, without 'expert'"),
    ],
)
def test_an_axis_that_cannot_be_broadcast_over(tmp_path, state, axis, text):
    saved(tmp_path / "a", state, Storage())
    policy = Checkpoints(storage=Storage(broadcast_axis=axis))
    with Store(tmp_path / "a", policy) as store, pytest.raises(CheckpointError) as caught:
        store.restore(1, abstract(state))
    assert f"checkpoints.storage.broadcast_axis: {text}" in str(caught.value)


def test_one_replica_has_nothing_to_broadcast(tmp_path, state):
    types = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 8), ("data", "fsdp"), axis_types=types)
    path = saved(tmp_path / "a", state, Storage())
    assert path.exists()
    where = jax.NamedSharding(mesh, jax.P("fsdp"))
    wanted = {k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=where) for k, v in state.items()}
    with Store(tmp_path / "a", Checkpoints(storage=Storage(broadcast_axis="data"))) as store:
        loaded = store.restore(1, wanted)
    np.testing.assert_array_equal(loaded["r"], state["r"])
    assert jnp.all(loaded["w"] == state["w"])
