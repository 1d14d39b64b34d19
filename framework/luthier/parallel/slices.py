"""Slices: groups of devices with a fast network inside and a slower one between them."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jax.experimental import mesh_utils

from luthier.errors import Problem, ShardingError

AXES = ("stage", "replica", "data", "fsdp", "expert", "sequence", "tensor")
"""Names of the mesh axes, slowest first: neighbouring devices share the last.

The more an axis communicates, the faster its links must be. Stages pass on the activations of one
microbatch; replicas and data add up gradients once a step; fsdp gathers every layer; expert,
sequence and tensor exchange activations inside every layer.
"""

PATH = "parallelism.mesh.across_slices"


@dataclasses.dataclass(frozen=True)
class AcrossSlices:
    """Numbers of slices along the axes of the mesh: how an axis continues across the slow network.

    A slice is a TPU slice, or the devices that a GPU backend counts as one (`slice_index`). On
    CPUs it is virtual: a process, an equal group of processes, or of the devices of one process.

    Args:
      stage: Slices along `stage`.
      replica: Slices along `replica`.
      data: Slices along `data`.
      fsdp: Slices along `fsdp`.
      expert: Slices along `expert`.
      sequence: Slices along `sequence`.
      tensor: Slices along `tensor`.

    Example:
      >>> from luthier import parallel
      >>> {axis: size for axis, size in parallel.AcrossSlices(data=2).sizes().items() if size > 1}
      {'data': 2}
    """

    RANGES: ClassVar[dict[str, str]] = dict.fromkeys(AXES, "1 <= x")

    stage: int = 1
    replica: int = 1
    data: int = 1
    fsdp: int = 1
    expert: int = 1
    sequence: int = 1
    tensor: int = 1

    def sizes(self) -> dict[str, int]:
        """Return the number of slices along every axis, in the order of `AXES`.

        Returns:
          Numbers by axis.
        """
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def count(self) -> int:
        """Number of slices in all."""
        return math.prod(self.sizes().values())


def arrange(
    sizes: Mapping[str, int], across: AcrossSlices, devices: Sequence[Any]
) -> np.ndarray[Any, Any]:
    """Arrange devices of several slices so that each axis first runs within a slice.

    Args:
      sizes: Axis name to number of devices in all; multiples of the numbers of slices.
      across: Numbers of slices along the axes.
      devices: As many as the sizes multiply out to.

    Returns:
      An array of the devices, with one dimension for each axis.

    Raises:
      ShardingError: The devices do not report their slices, belong to another number of slices, or
        slices have different sizes.
    """
    # As JAX's `create_hybrid_device_mesh`, but also for virtual slices of a CPU. Each slice is
    # arranged by itself, for its topology; then the blocks are put together, so that each axis
    # first runs within a slice, and then across.
    numbers = [across.sizes().get(axis, 1) for axis in sizes]
    within = [size // n for size, n in zip(sizes.values(), numbers, strict=True)]
    slices = collections.defaultdict(list)
    for device, number in zip(devices, _slice_numbers(devices, across.count), strict=True):
        slices[number].append(device)
    # By number, because the devices come in any order, and slice 0 is to be the first block.
    counts = [len(slices[number]) for number in sorted(slices)]
    if len(counts) != across.count:
        what = (
            f"the mesh runs across {across.count} slices, and the devices belong to {len(counts)}"
        )
        remedy = f"make the numbers of {PATH} multiply out to {len(counts)}"
        raise ShardingError(Problem(what, PATH, remedy=remedy))
    if len(set(counts)) > 1:
        what = f"the slices have {', '.join(map(str, counts))} devices"
        raise ShardingError(Problem(what, PATH, remedy="use as many devices of every slice"))
    # An array of objects, filled afterwards: `np.array` would stack blocks of one shape into one
    # array of devices, which could not be arranged as blocks.
    blocks = np.empty(len(counts), object)
    blocks[:] = [mesh_utils.create_device_mesh(within, slices[number]) for number in sorted(slices)]
    found: np.ndarray[Any, Any] = np.block(blocks.reshape(numbers).tolist())
    return found


def _slice_numbers(devices: Sequence[Any], count: int) -> list[int]:
    # TPUs and some GPU backends report a `slice_index`. So do CPUs of several processes: the same
    # for all processes of one machine. There processes stand for the hosts of slices, and within
    # one process equal groups of its devices for slices, so that tests can have several.
    is_cpu = all(device.platform == "cpu" for device in devices)
    if not is_cpu and all(hasattr(device, "slice_index") for device in devices):
        return [device.slice_index for device in devices]
    if not is_cpu:
        what = f"{devices[0].platform} devices do not report which slice they belong to"
        raise ShardingError(Problem(what, PATH, remedy=f"leave out {PATH}"))
    processes = [device.process_index for device in devices]
    if (num_processes := len(set(processes))) > 1:
        # Where they do not divide, the caller refuses, and names the number that would do.
        per_slice = 1 if num_processes % count else num_processes // count
        return [process // per_slice for process in processes]
    return [index * count // len(devices) for index in range(len(devices))]
