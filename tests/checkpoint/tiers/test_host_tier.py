"""The tier on the machines of the processes, in one process; several are in test_bucket_pods.py."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier.checkpoint import Checkpoints, DeviceCopy, HostCopy, HostTier, open_checkpoints
from luthier.durations import Steps
from luthier.errors import CheckpointError, Problem, StoreUnavailable

SHAPES = {
    "split": ((8, 8), jnp.float32, PartitionSpec("data", "model")),
    "rows": ((8, 6), jnp.bfloat16, PartitionSpec("data")),
    "whole": ((3,), jnp.uint32, PartitionSpec()),
    "eight_bits": ((4,), jnp.float8_e4m3fn, PartitionSpec("model")),
    "flags": ((8,), jnp.bool_, PartitionSpec("model")),
    "scalar": ((), jnp.int32, PartitionSpec()),
    "none": ((0, 4), jnp.float32, PartitionSpec()),
}


class Counter:
    """A data iterator that counts."""

    def __init__(self, at=0):
        self.at = at

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def state(data=4, model=2):
    devices = np.array(jax.devices()[: data * model]).reshape(data, model)
    mesh = Mesh(devices, ("data", "model"))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for name, (shape, dtype, spec) in SHAPES.items()
    }


def arrays(abstract, seed):
    rng = np.random.default_rng(seed)
    made = {}
    for name, array in abstract.items():
        content = jnp.asarray(rng.integers(0, 100, array.shape)).astype(array.dtype)
        made[name] = jax.device_put(content, array.sharding)
    return made


@pytest.fixture
def opened(tmp_path):
    """Open both tiers of one run, as a start of it does."""
    made = []

    def open_both(abstract, copying=HostCopy()):
        tier = HostTier(str(tmp_path / "fast"), Steps(5))
        policy = Checkpoints(fast=tier, copying=copying)
        made.append(open_checkpoints(tmp_path / "checkpoints", policy, state=abstract))
        return made[-1]

    yield open_both
    for tiers in made:
        tiers.close()


@pytest.mark.parametrize("copying", [HostCopy(), DeviceCopy()], ids=["host", "device"])
def test_every_type_and_sharding_comes_back_as_it_was(opened, copying):
    abstract = state()
    before = arrays(abstract, 1)
    tiers = opened(abstract, copying)
    tiers.save(5, before, Counter(7), {"note": "kept"}, durable=False)
    tiers.close()
    tiers = opened(abstract)
    assert tiers.newest_whole() == (5, [])
    assert tiers.latest() is None, "it is not durable"
    assert tiers.read_extra(5) == {"note": "kept"}
    iterator = Counter()
    after = tiers.restore(5, abstract, iterator)
    assert iterator.at == 7
    for name, array in after.items():
        assert array.sharding == abstract[name].sharding
        assert array.dtype == before[name].dtype
        np.testing.assert_array_equal(np.asarray(array), np.asarray(before[name]), err_msg=name)


def test_the_newer_of_both_tiers_is_restored_and_old_ones_go(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    for step in (5, 10, 15):
        tiers.save(step, arrays(abstract, step), Counter(step), {}, durable=step == 10)
    tiers.save(20, arrays(abstract, 20), Counter(20), {}, durable=False)
    tiers.save(25, arrays(abstract, 25), Counter(25), {}, durable=False)
    tiers.close()
    (folder,) = (tmp_path / "fast").glob("run-*/process-0")
    assert sorted(path.name for path in folder.iterdir()) == ["20", "25"]
    tiers = opened(abstract)
    assert tiers.newest_whole()[0] == 25
    tiers.cut_back(20)
    assert [path.name for path in folder.iterdir()] == ["20"]
    # The run is over: what no durable checkpoint has stays.
    tiers.discard_fast()
    assert folder.exists()
    tiers.save(30, arrays(abstract, 30), Counter(30), {})
    tiers.wait()
    tiers.discard_fast()
    assert not folder.parent.exists()


def test_what_is_damaged_or_of_another_mesh_does_not_count(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    for step in (5, 10):
        tiers.save(step, arrays(abstract, step), Counter(step), {}, durable=False)
    tiers.close()
    assert opened(state(data=2, model=4)).newest_whole() == (None, [])
    assert opened(state(data=8, model=1)).newest_whole() == (None, [])
    (file,) = (tmp_path / "fast").glob("run-*/process-0/10/own.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    tiers = opened(abstract)
    assert tiers.newest_whole() == (5, [])
    expected = arrays(abstract, 5)
    for name, array in tiers.restore(5, abstract).items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[name]), err_msg=name)


def test_a_disk_that_refuses_is_one_line(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    (folder,) = (tmp_path / "fast").glob("run-*")
    (folder / "process-0").write_text("not a folder")
    tiers.save(5, arrays(abstract, 5), Counter(5), {}, durable=False)
    with pytest.raises(CheckpointError, match=r"step 5 was not saved: .*choose another") as caught:
        tiers.wait()
    assert "checkpoints.fast.directory" in str(caught.value)
    (folder / "process-0").unlink()
    tiers.save(10, arrays(abstract, 10), Counter(10), {}, durable=False)
    tiers.wait()


def test_another_run_of_the_same_name_finds_nothing(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    tiers.save(5, arrays(abstract, 5), Counter(5), {}, durable=False)
    tiers.close()
    (tmp_path / "checkpoints" / "fast_tier.json").unlink()
    assert opened(abstract).newest_whole() == (None, [])


def save(tiers, abstract, *steps):
    for step in steps:
        tiers.save(step, arrays(abstract, step), Counter(step), {}, durable=False)
    tiers.wait()


def test_what_a_machine_brings_back_of_an_abandoned_history_does_not_count(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    save(tiers, abstract, 5, 10)
    (folder,) = (tmp_path / "fast").glob("run-*/process-0")
    shutil.copytree(folder / "10", tmp_path / "away")
    tiers.close()
    tiers = opened(abstract)
    tiers.cut_back(5)  # the machine was missing, and the run resumed from step 5
    tiers.close()
    shutil.copytree(tmp_path / "away", folder / "10")
    tiers = opened(abstract)
    assert tiers.newest_whole() == (5, [])
    tiers.cut_back(5)
    save(tiers, abstract, 10)
    tiers.close()
    assert opened(abstract).newest_whole() == (10, [])


def test_a_run_that_goes_on_without_the_tier_forgets_it(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    save(tiers, abstract, 5)
    tiers.close()
    with open_checkpoints(tmp_path / "checkpoints", Checkpoints()) as store:
        store.save(3, arrays(abstract, 3))
    assert opened(abstract).newest_whole() == (3, [])


def test_a_step_that_vanishes_before_it_is_restored_is_one_line(opened, tmp_path):
    abstract = state()
    tiers = opened(abstract)
    save(tiers, abstract, 5)
    tiers.close()
    tiers = opened(abstract)
    (folder,) = (tmp_path / "fast").glob("run-*/process-0")
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="had step 5 a moment ago, and does not have it now"):
        tiers.restore(5, abstract)


def test_a_store_that_is_away_leaves_out_a_step_and_not_the_run(opened):
    abstract = state()
    tiers = opened(abstract)
    refusals = [StoreUnavailable(Problem("it does not respond"))]

    def upload():
        if refusals:
            raise refusals.pop()

    tiers._fast.before_commit = upload
    save(tiers, abstract, 5, 10)
    tiers.close()
    assert not refusals
    tiers = opened(abstract)
    assert tiers.newest_whole() == (10, [])
    assert tiers._fast.latest() == 10
