"""The mesh: how many devices along each named axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax

from luthier.errors import Problem, ShardingError

AXES = ("data", "fsdp", "tensor")
"""Names of the mesh axes, slowest first: neighbouring devices share the last."""

_PATH = "parallelism.mesh"


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Numbers of devices along the named axes of the mesh.

    Args:
      data: Devices that hold copies of the parameters and share out the batch.
      fsdp: Devices that share out the batch, the parameters and the optimizer's state.
      tensor: Devices that share out the hidden dimensions of every layer.

    One of the sizes may be -1: it fills the mesh up to the devices there are.
    """

    RANGES: ClassVar[dict[str, str]] = dict.fromkeys(AXES, "-1 <= x")

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def sizes(self, num_devices: int) -> dict[str, int]:
        """Return the size of every axis, in the order of `AXES`.

        Args:
          num_devices: Devices that the mesh must use, all of them.

        Returns:
          Axis name to number of devices; the product is `num_devices`.

        Raises:
          ShardingError: A size is neither positive nor -1, several are -1, or they do not
            multiply out to `num_devices`.
        """
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
        if problems:
            raise ShardingError(problems)
        fixed = math.prod(size for size in sizes.values() if size != -1)
        if num_devices % fixed or not (filling or fixed == num_devices):
            raise ShardingError(_uneven(sizes, num_devices))
        return {a: num_devices // fixed if size == -1 else size for a, size in sizes.items()}


def make_mesh(sizes: Mapping[str, int], devices: Sequence[Any]) -> jax.sharding.Mesh:
    """Arrange devices, here or of an absent topology, in a mesh.

    Args:
      sizes: Axis name to number of devices, as `Mesh.sizes` returns them.
      devices: The devices; as many as the sizes multiply out to.

    Returns:
      A mesh whose axes are all of type `Auto`: the compiler chooses what is not constrained.

    Raises:
      ShardingError: The number of devices is another than the sizes ask for.
    """
    if math.prod(sizes.values()) != len(devices):
        raise ShardingError(_uneven(sizes, len(devices)))
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)


def describe_sizes(sizes: Mapping[str, int]) -> str:
    """Return sizes as people write them: `data=2 x fsdp=4 x tensor=1`."""
    return " x ".join(f"{axis}={size}" for axis, size in sizes.items())


def alternatives(remedies: Sequence[str]) -> str:
    """Return remedies as one clause, the last after an "or"."""
    return ", or ".join([", ".join(remedies[:-1]), remedies[-1]] if remedies[1:] else remedies)


def _uneven(sizes: Mapping[str, int], num_devices: int) -> Problem:
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if -1 in sizes.values():
        what = f"{describe_sizes(sizes)} does not divide {num_devices} devices"
    else:
        what = f"{describe_sizes(sizes)} takes {fixed} devices, and there are {num_devices}"
    remedies = []
    for axis in reversed(list(sizes)):
        rest = fixed // sizes[axis]
        if sizes[axis] == -1 or num_devices % rest:
            continue
        room = num_devices // rest
        size = room if -1 not in sizes.values() else _largest_divisor(room, sizes[axis])
        if size != sizes[axis]:
            remedies.append(f"set {_PATH}.{axis}={size}")
    multiple = "a multiple of " if -1 in sizes.values() else ""
    remedies.append(f"use {multiple}{fixed} devices")
    return Problem(what, _PATH, remedy=alternatives(remedies))


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, limit + 1) if number % d == 0)
