import dataclasses
import subprocess
import sys
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.data import DataNode
from luthier.errors import BadInput
from luthier.parallel import Mesh, Share, configure, devices, hosts, make_mesh


def in_a_fresh_process(code):
    prelude = "from luthier.parallel import configure, devices\nimport jax\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.full
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
    assert (share.rows.tolist(), share.counted.tolist()) == (list(range(16)), [True] * 16)
    assert share.arguments == {"process_index": 0, "process_count": 1}
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

    def of(self, process):
        return [(slice(*span), slice(None)) for span in self._rows[process]]

    def devices_indices_map(self, shape):
        return {
            Mock(process_index=process): place
            for process in range(len(self._rows))
            for place in self.of(process)
        }


def part(index, count):
    return {"process_index": index, "process_count": count}


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ([[(0, 4)], [(4, 8)]], [part(0, 2), part(1, 2)]),
        ([[(4, 8)], [(0, 4)]], [part(1, 2), part(0, 2)]),
        (
            [[(0, 2), (2, 4)], [(0, 4)], [(4, 8)], [(6, 8), (4, 6)]],
            [part(0, 2), part(0, 2), part(1, 2), part(1, 2)],
        ),
        ([[(None, None)], [(None, None)]], [part(0, 1), part(0, 1)]),
        ([[(4, 6), (0, 2)], [(2, 4), (6, 8)]], [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ([[(0, 2)], [(2, 8)]], [part(0, 4), [2, 3, 4, 5, 6, 7]]),
        ([[(0, 2), (5, 8)], [(2, 8)]], [[0, 1, 5, 6, 7], [2, 3, 4, 5, 6, 7]]),
    ],
    ids=["in order", "otherwise", "tensor", "replicated", "interleaved", "uneven", "overlapping"],
)
@pytest.mark.parametrize("by_number", [True, False])
def test_processes_read_what_their_devices_hold_and_count_each_row_once(
    monkeypatch, held, asked, by_number
):
    def with_rows(*, process_index=0, process_count=1, rows=None):
        pytest.fail("the share is asked for before data is")

    def without_rows(*, process_index=0, **others):
        pytest.fail("the share is asked for before data is")

    batch = {"x": Mock(shape=(8, 3), sharding=Held(*held))}
    whole = np.arange(24).reshape(8, 3)
    counted = []
    for process, wanted in enumerate(asked):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        share = Share.of(batch, with_rows if by_number else without_rows)
        found = share.arguments
        if isinstance(wanted, dict):
            assert found == wanted
        elif by_number:
            assert (list(found), found["rows"].tolist()) == (["rows"], wanted)
        else:
            assert found == part(0, 1)
        read = whole[share.rows]
        counted += [int(row[0]) // 3 for row in share.count_in({"x": read})["x"]]
        for place in batch["x"].sharding.of(process):
            np.testing.assert_array_equal(share.at(read, place), whole[place])
    assert sorted(counted) == list(range(8))


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip of an absent TPU slice."""

    id: int
    coords: tuple[int, int, int]
    process_index: int
    device_kind: str
    platform: str = "tpu"
    core_on_chip: int = 0
    client: Mock = dataclasses.field(default_factory=Mock, compare=False)


def chips(kind, shape):
    """Return the chips of a slice as libtpu describes them: each host has a block of 2 x 2."""
    places = [tuple(map(int, place[::-1])) for place in np.ndindex(*shape[::-1])]
    hosts = {place: (place[2], place[1] // 2, place[0] // 2) for place in places}
    numbers = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
    return [Chip(number, place, numbers[hosts[place]], kind) for number, place in enumerate(places)]


class Recorded:
    """Rows that are their numbers; they keep what was asked for."""

    digest, num_examples = "recorded", 0

    def __init__(self, num_rows):
        self.num_rows, self.asked = num_rows, []

    def gather(self, rows, visit=None):
        self.asked.append(rows)
        return {"x": rows.astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class Numbers(DataNode):
    """Data that keeps which rows were read."""

    recorded: Recorded
    tokens_per_row = 1

    @property
    def rows(self):
        return self.recorded

    def batch_spec(self, global_batch_size):
        raise NotImplementedError

    def describe(self):
        raise NotImplementedError


SLICES = {
    "v5e-16": ("TPU v5 lite", (4, 4, 1)),
    "v5e-64": ("TPU v5 lite", (8, 8, 1)),
    "v5e-256": ("TPU v5 lite", (16, 16, 1)),
    "v4-64": ("TPU v4", (2, 4, 4)),
    "v5p-128": ("TPU v5", (4, 4, 4)),
}


@pytest.mark.parametrize(
    "mesh",
    [Mesh(data=1, fsdp=-1), Mesh(), Mesh(tensor=4)],
    ids=["fsdp", "data", "tensor"],
)
@pytest.mark.parametrize("name", SLICES)
def test_hosts_of_a_tpu_slice_read_the_rows_of_their_chips_alone(monkeypatch, name, mesh):
    devices = chips(*SLICES[name])
    arranged = mesh.arrange(devices)
    size = 4 * len(devices)
    sharding = NamedSharding(arranged, PartitionSpec(("replica", "data", "fsdp", "expert")))
    batch = {"x": jax.ShapeDtypeStruct((size,), np.int32, sharding=sharding)}
    # Told apart from the sharding: the devices of a mesh hold the rows in the mesh's order.
    in_order = arranged.devices.reshape(-1, mesh.tensor)
    held = {device.process_index: set() for device in devices}
    for rows, along_tensor in zip(np.split(np.arange(size), len(in_order)), in_order, strict=True):
        for device in along_tensor:
            held[device.process_index].update(rows.tolist())
    data = Numbers(recorded=Recorded(size), num_threads=0)
    order = data.order(seed=5, global_batch_size=size)
    whole = order(size + np.arange(size))[0]  # of the second step
    counted = np.zeros(size, int)
    apart = 0
    for process, rows in held.items():
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        share = Share.of(batch, data.iterator)
        assert share.rows.tolist() == sorted(rows)
        np.add.at(counted, share.rows[share.counted], 1)
        apart += "rows" in share.arguments
        iterator = data.iterator(global_batch_size=size, seed=5, **share.arguments)
        data.rows.asked.clear()
        _, second = next(iterator), next(iterator)
        assert all(len(asked) == len(rows) for asked in data.rows.asked)
        for device, place in sharding.devices_indices_map((size,)).items():
            if device.process_index == process:
                np.testing.assert_array_equal(share.at(second["x"], place), whole[place])
    assert (counted == 1).all()
    if mesh.tensor == 1:  # what takes 16 rows is a few of the batch's, and mostly not side by side
        assert {len(rows) for rows in held.values()} == {16}
        assert apart >= len(held) - 1
