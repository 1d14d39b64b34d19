import dataclasses

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from luthier.errors import ShardingError
from luthier.parallel import AXES, AcrossSlices
from luthier.parallel.slices import arrange


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device that knows its slice."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "chip"
    process_index: int = 0


@dataclasses.dataclass(frozen=True)
class Plain:
    """A device that does not know its slice."""

    id: int
    platform: str
    process_index: int = 0
    device_kind: str = "plain"


SIZES = {"data": 2, "fsdp": 4, "tensor": 2}


def ids(arranged):
    return np.vectorize(lambda device: device.id)(arranged)


def test_every_axis_runs_first_within_a_slice():
    # The slices' devices come in turn, as no backend should list them.
    chips = [Chip(i, slice_index=i % 2) for i in range(16)]
    found = arrange(SIZES, AcrossSlices(fsdp=2), chips)
    assert found.shape == (2, 4, 2)
    assert (np.vectorize(lambda chip: chip.slice_index)(found)[:, :2] == 0).all()
    assert (np.vectorize(lambda chip: chip.slice_index)(found)[:, 2:] == 1).all()
    assert sorted(ids(found).flat) == list(range(16))


@pytest.mark.parametrize("across", [{"data": 2}, {"fsdp": 4}, {"data": 2, "tensor": 2}, {}])
def test_the_arrangement_is_that_of_jax(across):
    slices = AcrossSlices(**across)
    chips = [Chip(i, slice_index=i * slices.count // 16) for i in range(16)]
    numbers = [slices.sizes()[axis] for axis in SIZES]
    within = [size // n for size, n in zip(SIZES.values(), numbers, strict=True)]
    expected = mesh_utils.create_hybrid_device_mesh(within, numbers, chips)
    assert (ids(arrange(SIZES, slices, chips)) == ids(expected)).all()


def test_processes_are_the_slices_of_cpus():
    devices = [Plain(i, "cpu", process_index=i // 4) for i in range(8)]
    found = arrange({"data": 4, "fsdp": 2}, AcrossSlices(data=2), devices)
    assert ids(found).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    found = arrange({"data": 2, "fsdp": 4}, AcrossSlices(fsdp=2), devices)
    assert ids(found).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_processes_may_be_the_hosts_of_slices_of_cpus():
    # JAX gives all CPUs of one machine the same index.
    devices = [Chip(i, slice_index=0, platform="cpu", process_index=i // 2) for i in range(8)]
    found = arrange({"data": 4, "fsdp": 2}, AcrossSlices(fsdp=2), devices)
    assert ids(found).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_one_process_has_virtual_slices():
    found = arrange({"fsdp": 2, "tensor": 4}, AcrossSlices(tensor=2), jax.devices())
    assert ids(found).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("across", "devices", "line"),
    [
        (
            {"data": 2},
            [Plain(i, "gpu") for i in range(8)],
            "parallelism.mesh.across_slices: gpu devices do not report which slice they belong to; "
            "leave out parallelism.mesh.across_slices",
        ),
        (
            {"data": 2},
            [Chip(i, slice_index=i // 2) for i in range(8)],
            "parallelism.mesh.across_slices: the mesh runs across 2 slices, and the devices "
            "belong to 4; make the numbers of parallelism.mesh.across_slices multiply out to 4",
        ),
        (
            {"data": 2},
            [Chip(i, slice_index=int(i > 4)) for i in range(8)],
            "parallelism.mesh.across_slices: the slices have 5, 3 devices; "
            "use as many devices of every slice",
        ),
        (
            {"data": 2},
            [Plain(i, "cpu", process_index=i // 3) for i in range(9)][:8],
            "parallelism.mesh.across_slices: the mesh runs across 2 slices, and the devices "
            "belong to 3; make the numbers of parallelism.mesh.across_slices multiply out to 3",
        ),
    ],
)
def test_devices_of_other_slices_are_refused(across, devices, line):
    with pytest.raises(ShardingError) as caught:
        arrange({"data": 4, "fsdp": 2}, AcrossSlices(**across), devices)
    assert str(caught.value) == line


def test_every_axis_can_run_across_slices():
    assert tuple(AcrossSlices().sizes()) == AXES == tuple(AcrossSlices.RANGES)
    assert AcrossSlices(data=2, stage=3).count == 6
