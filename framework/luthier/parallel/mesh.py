"""The mesh: the number of devices along each named axis."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax

from luthier.errors import Problem, ShardingError
from luthier.parallel.slices import AXES, AcrossSlices, arrange

_PATH = "parallelism.mesh"


class AxisType(enum.Enum):
    """Type of the axes of a mesh: who decides the sharding of arrays that layers compute."""

    AUTO = "auto"
    """The compiler, where there is no constraint: any model runs on any mesh."""

    EXPLICIT = "explicit"
    """The program: ambiguous shardings are rejected while it is traced, so that nothing moves
    between devices implicitly. For dense models, to prove that nothing does."""

    @property
    def of_jax(self) -> jax.sharding.AxisType:
        """The axis type of JAX."""
        return {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}[
            self.value
        ]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Numbers of devices along the named axes of the mesh.

    Args:
      stage: Devices that split the layers of a pipeline.
      replica: Devices that hold copies of the shards of `fsdp` and split the batch.
      data: Devices that hold copies of the parameters and split the batch.
      fsdp: Devices that split the batch, the parameters and the optimizer state.
      expert: Devices that split the experts and the batch.
      sequence: Devices that split the length of every sequence.
      tensor: Devices that split the hidden dimensions of every layer.
      across_slices: Numbers of slices along the axes: an axis has as many devices as its size here,
        times its number of slices.
      axis_type: Type of all axes, which determines how the sharding of what layers compute is
        chosen.

    One of the sizes may be -1: it fills the mesh up to the devices there are.

    Example:
      >>> from luthier import parallel
      >>> parallel.Mesh(data=-1, fsdp=4).sizes(8)
      {'stage': 1, 'replica': 1, 'data': 2, 'fsdp': 4, 'expert': 1, 'sequence': 1, 'tensor': 1}
    """

    RANGES: ClassVar[dict[str, str]] = dict.fromkeys(AXES, "-1 <= x")

    stage: int = 1
    replica: int = 1
    data: int = -1
    fsdp: int = 1
    expert: int = 1
    sequence: int = 1
    tensor: int = 1
    across_slices: AcrossSlices = AcrossSlices()
    axis_type: AxisType = AxisType.AUTO

    def sizes(self, num_devices: int) -> dict[str, int]:
        """Return the size of every axis over all slices, in the order of `AXES`.

        Args:
          num_devices: Devices that the mesh must use, all of them.

        Returns:
          Axis name to number of devices; the product is `num_devices`.

        Raises:
          ShardingError: A size is neither positive nor -1, several are -1, or they do not
            multiply out to `num_devices`.
        """
        across = self.across_slices.sizes()
        within = self._within(num_devices)
        return {axis: within[axis] * across[axis] for axis in AXES}

    @property
    def min_devices(self) -> int:
        """The fewest devices that the mesh can use: an axis of -1 then has one."""
        within = (getattr(self, axis) for axis in AXES)
        return math.prod(size for size in within if size > 0) * self.across_slices.count

    def arrange(self, devices: Sequence[Any]) -> jax.sharding.Mesh:
        """Arrange devices, here or of an absent topology, in this mesh.

        Args:
          devices: The devices, all of which are used.

        Returns:
          A mesh whose axes are all of `axis_type`.

        Raises:
          ShardingError: The sizes or the slices do not match the devices.
        """
        sizes = self.sizes(len(devices))
        # `jax.make_mesh` arranges the devices of one slice for its topology; several need
        # `arrange`.
        if self.across_slices.count == 1:
            return make_mesh(sizes, devices, self.axis_type)
        arranged = arrange(sizes, self.across_slices, devices)
        types = (self.axis_type.of_jax,) * len(sizes)
        return jax.sharding.Mesh(arranged, tuple(sizes), axis_types=types)

    def _within(self, num_devices: int) -> dict[str, int]:
        """Return the size of every axis within a slice, with -1 replaced."""
        # Problems of the sizes by themselves come first, all at once: whether the devices suffice
        # is only meaningful without them.
        sizes = {axis: getattr(self, axis) for axis in AXES}
        filling = [axis for axis, size in sizes.items() if size == -1]
        problems = [
            Problem(
                f"{size} devices along an axis",
                f"{_PATH}.{axis}",
                remedy="give 1 or more, or -1 to fill the mesh",
            )
            for axis, size in sizes.items()
            if size < 1 and size != -1
        ]
        if len(filling) > 1:
            names = " and ".join(filling)
            remedy = f"keep one of them, for example {_PATH}.{filling[1]}=1"
            problems.append(Problem(f"{names} are -1, but only one can fill", _PATH, remedy=remedy))
        # At least 1, by the `RANGES` of `AcrossSlices`; those of a mesh let 0 pass, hence the test
        # above.
        slices = self.across_slices.count
        if num_devices % slices:
            what = f"{num_devices} devices cannot be split into {slices} equal slices"
            remedy = f"use a multiple of {slices} devices"
            problems.append(Problem(what, f"{_PATH}.across_slices", remedy=remedy))
        if problems:
            raise ShardingError(problems)
        fixed = math.prod(size for size in sizes.values() if size != -1)
        num_devices //= slices
        if num_devices % fixed or not (filling or fixed == num_devices):
            raise ShardingError(_uneven(sizes, num_devices, slices))
        return {a: num_devices // fixed if size == -1 else size for a, size in sizes.items()}


def make_mesh(
    sizes: Mapping[str, int], devices: Sequence[Any], axis_type: AxisType = AxisType.AUTO
) -> jax.sharding.Mesh:
    """Arrange devices of one slice, here or of an absent topology, in a mesh.

    Args:
      sizes: Axis name to number of devices, as `Mesh.sizes` returns them.
      devices: The devices; as many as the sizes multiply out to.
      axis_type: Type of all axes; with `AUTO` the compiler chooses what is not constrained.

    Returns:
      The mesh, with the axes in the order of `sizes`.

    Raises:
      ShardingError: The sizes do not multiply out to the number of devices.

    Example:
      >>> import jax
      >>> from luthier import parallel
      >>> mesh = parallel.make_mesh({"data": 1, "fsdp": 1}, jax.devices()[:1])
      >>> dict(mesh.shape)
      {'data': 1, 'fsdp': 1}
    """
    if math.prod(sizes.values()) != len(devices):
        raise ShardingError(_uneven(sizes, len(devices)))
    shape, names = tuple(sizes.values()), tuple(sizes)
    types = (axis_type.of_jax,) * len(names)
    return jax.make_mesh(shape, names, axis_types=types, devices=devices)


def describe_sizes(sizes: Mapping[str, int]) -> str:
    """Format the sizes that are not 1: `data=2 x fsdp=4`."""
    parts = [f"{axis}={size}" for axis, size in sizes.items() if size != 1]
    return " x ".join(parts) or "every axis=1"


def alternatives(remedies: Sequence[str]) -> str:
    """Join remedies into one clause, the last after an "or"."""
    return ", or ".join([", ".join(remedies[:-1]), remedies[-1]] if remedies[1:] else remedies)


def _uneven(sizes: Mapping[str, int], num_devices: int, slices: int = 1) -> Problem:
    # The remedies are computed, so that each can be copied: every axis in use that can absorb the
    # difference by itself, and the number of devices that would do.
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if -1 in sizes.values():
        what = f"{describe_sizes(sizes)} does not divide {num_devices} devices"
    else:
        noun = "device" if fixed == 1 else "devices"
        what = f"{describe_sizes(sizes)} takes {fixed} {noun}, and there are {num_devices}"
    if slices > 1:
        what += f" in each of {slices} slices"
    remedies = []
    # An axis of size 1 is not in use: only where none is, the first that takes the batch may grow.
    in_use = [axis for axis, size in sizes.items() if size != 1] or ["data"]
    for axis in reversed(in_use):
        # For the axis that is -1 the division has no meaning, and the next line leaves it out.
        rest = fixed // sizes[axis]
        if sizes[axis] == -1 or num_devices % rest:
            continue
        room = num_devices // rest
        # Without a -1 the axis must take all that is left; with one, the -1 takes the rest, so the
        # axis shrinks as little as it can.
        size = room if -1 not in sizes.values() else _largest_divisor(room, sizes[axis])
        if size != sizes[axis]:
            remedies.append(f"set {_PATH}.{axis}={size}")
    multiple = "a multiple of " if -1 in sizes.values() else ""
    num = fixed * slices
    remedies.append(f"use {multiple}{num} {'device' if num == 1 else 'devices'}")
    return Problem(what, _PATH, remedy=alternatives(remedies))


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, limit + 1) if number % d == 0)
