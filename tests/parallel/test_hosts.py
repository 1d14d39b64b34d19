import subprocess
import sys
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.errors import BadInput
from luthier.parallel import Mesh, Share, configure, devices, hosts, make_mesh


def in_a_fresh_process(code):
    prelude = "from luthier.parallel import configure, devices\nimport jax\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_devices_are_chosen_before_the_backend_starts_and_held_to_afterwards():
    code = """
configure("cpu:8")
configure("cpu:4")
print(len(devices()), devices()[0].platform)
configure("cpu:4")
configure("cpu")
configure(None)
for late in ("cpu:8", "gpu"):
    try:
        configure(late)
    except Exception as error:
        print(type(error).__name__, error)
"""
    assert in_a_fresh_process(code).splitlines() == [
        "4 cpu",
        "BadInput --devices: cpu:8 comes too late: JAX runs on cpu:4; choose devices before the "
        "first array is made (in a notebook: restart the kernel)",
        "BadInput --devices: gpu comes too late: JAX runs on cpu:4; choose devices before the "
        "first array is made (in a notebook: restart the kernel)",
    ]


def test_settings_that_jax_reads():
    code = """
configure("cpu:3")
print(jax.config.jax_platforms, jax.config.jax_num_cpu_devices)
configure("tpu")
print(jax.config.jax_platforms, jax.config.jax_num_cpu_devices)
configure("cuda:2")
print(jax.config.jax_platforms, jax._src.xla_bridge.CUDA_VISIBLE_DEVICES.value)
"""
    assert in_a_fresh_process(code).splitlines() == ["cpu 3", "tpu,cpu 3", "cuda,cpu 0,1"]


def test_a_platform_without_devices_is_bad_input_and_never_the_cpu_instead():
    code = """
from luthier.errors import BadInput
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
configure("cuda")
try:
    found = devices()
    assert found[0].platform == "gpu"
    print("refused")
except BadInput as error:
    assert "--devices" in str(error) and "\\n" not in str(error)
    print("refused")
"""
    assert in_a_fresh_process(code) == "refused"


@pytest.mark.parametrize("text", ["", "cpu:", "cpu:0", "cpu:-1", "cpu:x", "npu", "cpu:8:2", "8"])
def test_text_that_cannot_be_read(text):
    with pytest.raises(BadInput, match=r"--devices: cannot read .*; write cpu, cpu:8, gpu"):
        configure(text)


def test_chips_of_a_tpu_cannot_be_chosen():
    with pytest.raises(BadInput, match="write tpu"):
        configure("tpu:4")


def test_this_process():
    assert devices() == jax.devices()
    assert (hosts.process_index(), hosts.process_count()) == (0, 1)
    assert hosts.is_primary()


def test_rows_of_a_host_become_a_global_array():
    mesh = make_mesh(Mesh(fsdp=4).sizes(8), jax.devices())
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    rows = np.arange(32, dtype=np.int32).reshape(16, 2)
    entry = lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    wanted = {"x": entry(rows), "y": entry(rows[:, 0])}
    share = Share.of(wanted)
    assert (share.index, share.count, share.counted.tolist()) == (0, 1, [True] * 16)
    given = {"z": rows, "x": rows, "y": rows[:, 0]}
    assert share.count_in(given) is given
    batch = share.global_batch(given, wanted)
    assert set(batch) == {"x", "y"}
    assert batch["x"].sharding == sharding
    np.testing.assert_array_equal(batch["x"], rows)
    np.testing.assert_array_equal(batch["y"], rows[:, 0])
    assert {shard.data.shape for shard in batch["y"].addressable_shards} == {(2,)}


class Held:
    """A sharding of rows: which rows each process holds on each of its devices."""

    def __init__(self, *rows_by_process):
        self._rows = rows_by_process

    def devices_indices_map(self, shape):
        return {
            Mock(process_index=process): (slice(*span), slice(None))
            for process, spans in enumerate(self._rows)
            for span in spans
        }


@pytest.mark.parametrize(
    ("held", "parts"),
    [
        ([[(0, 4)], [(4, 8)]], [(0, 2), (1, 2)]),
        ([[(4, 8)], [(0, 4)]], [(1, 2), (0, 2)]),
        (
            [[(0, 2), (2, 4)], [(0, 4)], [(4, 8)], [(6, 8), (4, 6)]],
            [(0, 2), (0, 2), (1, 2), (1, 2)],
        ),
        ([[(None, None)], [(None, None)]], [(0, 1), (0, 1)]),
        ([[(0, 2), (4, 6)], [(2, 4), (6, 8)]], [(0, 1), (0, 1)]),
        ([[(0, 2)], [(2, 8)]], [(0, 4), (0, 1)]),
    ],
    ids=["in order", "otherwise", "tensor", "replicated", "interleaved", "uneven"],
)
def test_processes_read_what_their_devices_hold_and_count_each_row_once(monkeypatch, held, parts):
    batch = {"x": Mock(shape=(8, 3), sharding=Held(*held))}
    rows = np.arange(24).reshape(8, 3)
    counted = []
    for process, (index, count) in enumerate(parts):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        share = Share.of(batch)
        assert (share.index, share.count) == (index, count)
        part = rows[index * 8 // count :][: 8 // count]
        counted += [int(row[0]) // 3 for row in share.count_in({"x": part})["x"]]
    assert sorted(counted) == list(range(8))
