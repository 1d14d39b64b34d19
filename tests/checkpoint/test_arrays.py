from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import hashlib
import json
import pathlib
import subprocess
import sys

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint._src.serialization import tensorstore_utils as orbax
from orbax.checkpoint._src.serialization import types

from luthier.checkpoint import Checkpoints, Store
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


@pytest.mark.full
def test_saves_may_begin_in_several_threads(tmp_path):
    """The last save of a trial begins beside the first one of the next."""
    places = [tmp_path / str(number) for number in range(24)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: arrays_lib.save(path, NAMES).result(), places))
    for path in places:
        found = arrays_lib.load(path, abstract(NAMES))
        assert all(np.array_equal(found[name], NAMES[name]) for name in NAMES)


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


# How much memory a restore takes beside the state itself.


PEAK_SCRIPT = pathlib.Path(__file__).with_name("peak_of_restore.py")
MEBIBYTES, NUM_ARRAYS = 256, 32
CONSTANT = 16  # MiB: threads, and what Python itself takes


def _peak(*arguments):
    command = [sys.executable, str(PEAK_SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peak") / "checkpoints"
    _peak("save", folder, MEBIBYTES, NUM_ARRAYS)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["resume", "warm", "warm_bf16"])
def test_a_restore_takes_the_state_once(saved, mode):
    state, peak = _peak(mode, saved, MEBIBYTES, NUM_ARRAYS)
    assert state == (MEBIBYTES if mode != "warm_bf16" else MEBIBYTES / 2)
    assert 0.9 * state < peak <= 1.15 * state + CONSTANT


def _array(*shape, sharding=None):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape, np.dtype("float32"), sharding=sharding or here)


def test_a_sixteenth_is_on_the_way_and_any_array_of_its_own():
    assert arrays_lib.on_the_way([_array(8)] * 64) == 8 * 64 * 4 // 16 + 1
    assert arrays_lib.on_the_way([_array(8), _array(256)]) == 256 * 4 + 1


def test_what_other_processes_hold_does_not_count():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",))
    spec = jax.sharding.PartitionSpec
    shared = jax.sharding.NamedSharding(mesh, spec("a"))
    repeated = jax.sharding.NamedSharding(mesh, spec())
    assert arrays_lib.on_the_way([_array(8, sharding=shared)] * 64) == 8 * 64 * 4 // 16 + 1
    assert arrays_lib.on_the_way([_array(8, sharding=repeated)] * 64) == 2 * 8 * 64 * 4 // 16 + 1


# In a process of its own: what others left free in this one would be filled first.
FREED = """
import pathlib
import numpy as np
from luthier.checkpoint import arrays as arrays_lib
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
with arrays_lib.returned():
    before = resident()
    buffers = [np.ones(1 << 20, np.uint8) for _ in range(64)]
    print(resident() - before)
    del buffers[1::2]
    print(resident() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone keeps them")
def test_freed_buffers_go_back_to_the_system_at_once():
    command = [sys.executable, "-c", FREED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, left = map(int, done.stdout.split())
    assert held > 60
    assert left < 40


def test_an_error_inside_goes_through():
    with pytest.raises(KeyError), arrays_lib.returned():
        raise KeyError


# Saves leave nothing in memory, and write what they would write anyway.


GROWTH_SCRIPT = pathlib.Path(__file__).with_name("growth_of_saves.py")
FEW, MANY = 4, 32


def _growth(folder, num_arrays, saves, *words):
    command = [sys.executable, GROWTH_SCRIPT, folder, num_arrays, saves, *words]
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(word) for word in done.stdout.split()]


def _left_by(call, calls=200):
    """Return how many blocks Python has more after each call."""
    call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(calls):
        call()
    gc.collect()
    return (sys.getallocatedblocks() - before) / calls


def _plain_spec():
    return ts.KvStore.Spec({"driver": "file", "path": "/checkpoints/7/"}).to_json()


@pytest.mark.full
def test_saves_leave_nothing(tmp_path):
    blocks, *_ = _growth(tmp_path / "checkpoints", MANY, 24)
    assert blocks < 16  # without the view 4 for each array, and 60


@pytest.mark.slow
def test_resident_memory_is_flat_over_saves(tmp_path):
    blocks, malloced, resident = _growth(tmp_path / "checkpoints", MANY, 80)
    assert blocks < 4
    assert malloced < 64 * 2**10  # 4 MiB over all: buffers come and go
    assert resident < 64 * 2**10


@pytest.mark.slow
def test_without_the_view_each_array_of_each_save_leaves_four_objects(tmp_path):
    """What the tests above would see, so that they can fail; and whether the view is needed."""
    if _left_by(_plain_spec) < 1:
        pytest.skip("this TensorStore frees its JSON: the view can go")
    few, *_ = _growth(tmp_path / "few", FEW, 24, "bare")
    many, *_ = _growth(tmp_path / "many", MANY, 24, "bare")
    assert (many - few) / (MANY - FEW) == pytest.approx(4, abs=1.5)


@pytest.mark.parametrize(
    "path",
    ["/a/", "/a b/", "/ü/7/arrays/", "/%20/", "/a?b#c/", "/a:b|c/", "/x'\"/", "/ocdbt.process_0/"],
)
def test_the_spec_of_a_local_folder_is_what_tensorstore_says(path):
    given = {"driver": "file", "path": path}
    view = arrays_lib._TensorStore(ts)
    spec_json = view.KvStore.Spec(given).to_json()
    assert spec_json == ts.KvStore.Spec(given).to_json()
    assert spec_json is not given


@pytest.mark.parametrize(
    "spec",
    [
        {"driver": "file", "path": "/back\\slash/"},
        {"driver": "memory", "path": "a/"},
        {"driver": "file", "path": "/a/", "file_io_locking": {"mode": "non_atomic"}},
        {"driver": "ocdbt", "base": {"driver": "file", "path": "/a/"}},
        "file:///a/b/",
    ],
)
def test_any_other_spec_is_tensorstores_own(spec):
    view = arrays_lib._TensorStore(ts)
    assert view.KvStore.Spec(spec).to_json() == ts.KvStore.Spec(spec).to_json()


def test_a_bad_spec_is_refused_as_before():
    view = arrays_lib._TensorStore(ts)
    with pytest.raises(ValueError, match="Invalid file path"):
        view.KvStore.Spec({"driver": "file", "path": "/a//b/"})


def test_a_view_opens_what_it_made(tmp_path):
    view = arrays_lib._TensorStore(ts)
    spec = view.KvStore.Spec({"driver": "file", "path": f"{tmp_path}/"})
    store = view.KvStore.open(spec, context=view.Context()).result()
    store.write("key", b"value").result()
    assert (tmp_path / "key").read_bytes() == b"value"
    assert spec.url == spec.own.url


@pytest.mark.full
def test_local_specs_and_sums_leave_nothing(tmp_path):
    arrays_lib.spare()
    build = lambda: orbax.build_kvstore_tspec(str(tmp_path), "name", use_ocdbt=True)
    assert _left_by(build) < 0.5
    assert _left_by(orbax.get_tensorstore_raw_bytes) < 0.5


def test_the_sum_of_bytes_is_that_of_tensorstore(tmp_path):
    arrays_lib.spare()
    store = ts.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    store.write("key", b"x" * 12345).result()
    store.read("key").result()
    for direction in types.IoDirection:
        ours = orbax.get_tensorstore_raw_bytes(direction)
        assert ours == orbax.get_tensorstore_raw_bytes.original(direction) >= 12345


def _values(folder):
    """Return every key and value of the store that Orbax wrote, and its other files."""
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    values = {key: store.read(key).result().value for key in store.list().result()}
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return values, files


def _digest(folder):
    values, files = _values(folder)
    files = {name: data for name, data in files.items() if name != "manifest.ocdbt"}
    content = [sorted(values.items()), sorted((k, json.loads(v)) for k, v in files.items() if v)]
    return hashlib.sha256(repr(content).encode()).hexdigest(), len(values)


def test_what_is_written_is_what_orbax_writes_without_the_view(tmp_path, monkeypatch):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    draw = np.random.default_rng(0)
    arrays = {
        f"parameters/layer_{number}.kernel": jax.device_put(
            draw.standard_normal((64, 8 + number)).astype(kind), rows
        )
        for number, kind in enumerate(["float32", "bfloat16", "int32"])
    }
    with Store(tmp_path / "ours", Checkpoints()) as store:
        store.save(1, arrays)
    assert isinstance(orbax.ts, arrays_lib._TensorStore)
    monkeypatch.setattr(orbax, "ts", ts)
    ocp.save_checkpointables_async(tmp_path / "bare", {"arrays": arrays}).result()
    ours, bare = _digest(tmp_path / "ours" / "1" / "arrays"), _digest(tmp_path / "bare" / "arrays")
    assert ours == bare
    assert ours[1] >= 2 * len(arrays)  # metadata and chunks of each


def test_an_orbax_that_has_arranged_itself_otherwise_is_left_alone(monkeypatch):
    monkeypatch.setattr(orbax, "ts", "another module")
    monkeypatch.delattr(orbax, "get_tensorstore_raw_bytes")
    arrays_lib.spare.__wrapped__()
    assert orbax.ts == "another module"
    assert not hasattr(orbax, "get_tensorstore_raw_bytes")
