"""Saves leave nothing in memory, and write what they would write anyway."""

import gc
import hashlib
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorstore as ts
from orbax.checkpoint import v1 as ocp
from orbax.checkpoint._src.serialization import tensorstore_utils as orbax
from orbax.checkpoint._src.serialization import types

from luthier.checkpoint import Checkpoints, Store
from luthier.checkpoint import arrays as tensorstore_json

SCRIPT = pathlib.Path(__file__).with_name("growth_of_saves.py")
FEW, MANY = 4, 32


def _growth(folder, num_arrays, saves, *words):
    command = [sys.executable, SCRIPT, folder, num_arrays, saves, *words]
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
    view = tensorstore_json._TensorStore(ts)
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
    view = tensorstore_json._TensorStore(ts)
    assert view.KvStore.Spec(spec).to_json() == ts.KvStore.Spec(spec).to_json()


def test_a_bad_spec_is_refused_as_before():
    view = tensorstore_json._TensorStore(ts)
    with pytest.raises(ValueError, match="Invalid file path"):
        view.KvStore.Spec({"driver": "file", "path": "/a//b/"})


def test_a_view_opens_what_it_made(tmp_path):
    view = tensorstore_json._TensorStore(ts)
    spec = view.KvStore.Spec({"driver": "file", "path": f"{tmp_path}/"})
    store = view.KvStore.open(spec, context=view.Context()).result()
    store.write("key", b"value").result()
    assert (tmp_path / "key").read_bytes() == b"value"
    assert spec.url == spec.own.url


@pytest.mark.full
def test_local_specs_and_sums_leave_nothing(tmp_path):
    tensorstore_json.spare()
    build = lambda: orbax.build_kvstore_tspec(str(tmp_path), "name", use_ocdbt=True)
    assert _left_by(build) < 0.5
    assert _left_by(orbax.get_tensorstore_raw_bytes) < 0.5


def test_the_sum_of_bytes_is_that_of_tensorstore(tmp_path):
    tensorstore_json.spare()
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
    assert isinstance(orbax.ts, tensorstore_json._TensorStore)
    monkeypatch.setattr(orbax, "ts", ts)
    ocp.save_checkpointables_async(tmp_path / "bare", {"arrays": arrays}).result()
    ours, bare = _digest(tmp_path / "ours" / "1" / "arrays"), _digest(tmp_path / "bare" / "arrays")
    assert ours == bare
    assert ours[1] >= 2 * len(arrays)  # metadata and chunks of each


def test_an_orbax_that_has_arranged_itself_otherwise_is_left_alone(monkeypatch):
    monkeypatch.setattr(orbax, "ts", "another module")
    monkeypatch.delattr(orbax, "get_tensorstore_raw_bytes")
    tensorstore_json.spare.__wrapped__()
    assert orbax.ts == "another module"
    assert not hasattr(orbax, "get_tensorstore_raw_bytes")
