from __future__ import annotations

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from luthier.checkpoint import arrays as arrays_lib
from luthier.errors import CheckpointError, DataError

NAMES = {
    "parameters/blocks.attention.query.kernel": jnp.arange(12.0).reshape(3, 4),
    "parameters/a.b": jnp.zeros(2),
    "parameters/a/b": jnp.ones(2),
    "parameters/ä [0] %": jnp.ones(3, jnp.bfloat16),
    "optimizer/empty": jnp.zeros((0, 3), jnp.float16),
    "guard/flags": jnp.array([True, False]),
    "step": jnp.int32(7),
}


def abstract(arrays, shardings=None):
    return {
        name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=(shardings or {}).get(name))
        for name, a in arrays.items()
    }


def mesh(*shape):
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, ("data", "fsdp"), (AxisType.Auto,) * 2, devices=devices)


def test_any_name_dtype_and_shape_comes_back_bit_for_bit(tmp_path):
    arrays_lib.save(tmp_path / "1", NAMES).result()
    arrays = arrays_lib.load(tmp_path / "1", abstract(NAMES))
    assert set(arrays) == set(NAMES)
    for name, array in NAMES.items():
        assert (arrays[name].shape, arrays[name].dtype) == (array.shape, array.dtype)
        assert np.asarray(arrays[name]).tobytes() == np.asarray(array).tobytes()


def test_only_what_is_asked_for_is_read(tmp_path):
    arrays_lib.save(tmp_path / "1", NAMES).result()
    asked = {name: NAMES[name] for name in ("parameters/a.b", "optimizer/empty")}
    assert set(arrays_lib.load(tmp_path / "1", abstract(asked))) == set(asked)
    assert arrays_lib.load(tmp_path / "1", {}) == {}


@pytest.mark.parametrize("target", [(8, 1), (1, 4), (2, 2), (1, 1)])
def test_restores_onto_any_mesh(tmp_path, target):
    value = jax.random.normal(jax.random.key(0), (16, 8))
    source = NamedSharding(mesh(2, 4), P("data", "fsdp"))
    replicated = NamedSharding(mesh(2, 4), P())
    arrays = {"a": jax.device_put(value, source), "b": jax.device_put(value, replicated)}
    arrays_lib.save(tmp_path / "1", arrays).result()
    shardings = {
        "a": NamedSharding(mesh(*target), P("fsdp", "data")),
        "b": NamedSharding(mesh(*target), P(None, "data")),
    }
    restored = arrays_lib.load(tmp_path / "1", abstract(arrays, shardings))
    for name in arrays:
        assert restored[name].sharding == shardings[name]
        np.testing.assert_array_equal(restored[name], value)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_donated_updates_do_not_reach_what_is_being_saved(tmp_path, num_devices):
    # On a CPU the save holds views of the very buffers that the next step donates.
    shardings = {
        name: NamedSharding(mesh(num_devices, 1), spec)
        for name, spec in {"sharded": P("data"), "replicated": P()}.items()
    }

    def init():
        value = jax.random.normal(jax.random.key(0), (512, 1024))
        return dict.fromkeys(shardings, value)

    state = jax.jit(init, out_shardings=shardings)()
    update = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    update = update.lower(state).compile()
    for step in range(3):
        expected = {name: np.array(array, copy=True) for name, array in state.items()}
        pending = arrays_lib.save(tmp_path / str(step), state)
        for _ in range(5):
            state = update(state)
        jax.block_until_ready(state)
        pending.result()
        restored = arrays_lib.load(tmp_path / str(step), abstract(state, shardings))
        for name in shardings:
            np.testing.assert_array_equal(restored[name], expected[name])


def grain_iterator():
    return iter(grain.MapDataset.range(1000).shuffle(seed=1).repeat().to_iter_dataset())


class Counter:
    def __init__(self):
        self.count = 0

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        if state["count"] == 13:
            raise DataError("13 rows do not fit")
        self.count = state["count"]


def test_a_grain_iterator_continues_where_it_was(tmp_path):
    iterator = grain_iterator()
    for _ in range(5):
        next(iterator)
    pending = arrays_lib.save(tmp_path / "1", NAMES, iterator)
    expected = [next(iterator) for _ in range(5)]
    pending.result()
    restored = grain_iterator()
    arrays_lib.load_iterator(tmp_path / "1", restored)
    assert [next(restored) for _ in range(5)] == expected


def test_an_iterator_that_only_has_a_state_is_saved_too(tmp_path):
    counter = Counter()
    counter.count = 5
    pending = arrays_lib.save(tmp_path / "1", NAMES, counter)
    counter.count = 6
    pending.result()
    arrays_lib.load_iterator(tmp_path / "1", counter)
    assert counter.count == 5


def test_what_the_iterator_says_against_its_state_is_the_error(tmp_path):
    counter = Counter()
    counter.count = 13
    arrays_lib.save(tmp_path / "1", NAMES, counter).result()
    with pytest.raises(DataError, match="13 rows do not fit"):
        arrays_lib.load_iterator(tmp_path / "1", counter)


def test_an_iterator_that_cannot_read_its_state_is_a_clear_error(tmp_path):
    arrays_lib.save(tmp_path / "1", NAMES, Counter()).result()
    with pytest.raises(CheckpointError, match="does not take its state"):
        arrays_lib.load_iterator(tmp_path / "1", grain_iterator())


def test_every_mismatch_is_listed():
    saved = {"a": ((2,), "float32"), "b": ((2,), "float32"), "old": ((), "int32")}
    wanted = {
        "a": jax.ShapeDtypeStruct((3,), jnp.float32),
        "b": jax.ShapeDtypeStruct((2,), jnp.bfloat16),
        "new": jax.ShapeDtypeStruct((1, 2), jnp.float32),
    }
    lines = [problem.what for problem in arrays_lib.compare(saved, wanted, partial=False)]
    assert lines == [
        "a is float32[2] in the checkpoint, not float32[3]",
        "b is float32[2] in the checkpoint, not bfloat16[2]",
        "new float32[1, 2] is not in the checkpoint",
        "old int32[] of the checkpoint has no place to go",
    ]
    assert len(arrays_lib.compare(saved, wanted, partial=True)) == 3


def test_orbax_logs_nothing_while_it_is_hushed(caplog):
    from absl import logging as absl_logging

    def shout(path):
        code = "logging.error('loud')"
        exec(compile(code, path, "exec"), {"logging": absl_logging})

    with arrays_lib.without_logs():
        shout("site/orbax/checkpoint/future.py")
        shout("elsewhere.py")
    shout("site/orbax/checkpoint/future.py")
    assert [record.message for record in caplog.records] == ["loud"] * 2
