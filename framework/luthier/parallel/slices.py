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

The more often an axis speaks, and the more it says, the faster are its links. Stages pass on one
microbatch's activations; replicas and data add up gradients once a step; fsdp gathers every layer;
expert, sequence and tensor exchange activations inside every layer.
"""

PATH = "parallelism.mesh.across_slices"


@dataclasses.dataclass(frozen=True)
class AcrossSlices:
    """Numbers of slices along the axes of the mesh: how an axis goes on across the slow network.

    A slice is a TPU slice, or the devices that a GPU backend counts as one (`slice_index`). On
    CPUs it is a process, and within one process a virtual one: devices in equal groups.

    Args:
      stage: Slices along `stage`.
      replica: Slices along `replica`.
      data: Slices along `data`.
      fsdp: Slices along `fsdp`.
      expert: Slices along `expert`.
      sequence: Slices along `sequence`.
      tensor: Slices along `tensor`.
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
        """Return the number of slices along every axis, in the order of `AXES`."""
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
      ShardingError: The devices do not tell their slices, or are of other numbers of slices, or
        slices are of different sizes.
    """
    numbers = [across.sizes().get(axis, 1) for axis in sizes]
    within = [size // n for size, n in zip(sizes.values(), numbers, strict=True)]
    slices = collections.defaultdict(list)
    for device, number in zip(devices, _slice_numbers(devices, across.count), strict=True):
        slices[number].append(device)
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
    blocks = np.empty(len(counts), object)
    blocks[:] = [mesh_utils.create_device_mesh(within, slices[number]) for number in sorted(slices)]
    found: np.ndarray[Any, Any] = np.block(blocks.reshape(numbers).tolist())
    return found


def _slice_numbers(devices: Sequence[Any], count: int) -> list[int]:
    if all(hasattr(device, "slice_index") for device in devices):
        return [device.slice_index for device in devices]
    if any(device.platform != "cpu" for device in devices):
        what = f"{devices[0].platform} devices do not report which slice they belong to"
        raise ShardingError(Problem(what, PATH, remedy=f"leave out {PATH}"))
    processes = [device.process_index for device in devices]
    if len(set(processes)) > 1:
        return processes
    return [index * count // len(devices) for index in range(len(devices))]
