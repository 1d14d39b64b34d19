"""Slices that are planned for: what a name such as `v5e-16`, `2xv4-8` or `h100:8x4` stands for."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, ClassVar, Protocol

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.graph.edits.copies import as_node
from luthier.graph.paths import is_node
from luthier.plan.targets.chips import CHIPS, Chip, GpuChip, TpuChip

ORIGIN = "--slice"
MOST_DEVICES = 16384
"""Laying arrays out takes time that grows faster than devices: 84 seconds for so many."""
_EXAMPLES = "write cpu:8, v5e-16, v4:2x2x1, 2xv5e-16, h100:8 or h200:8x4"


class Slice(Protocol):
    """Devices that are planned for, here or absent."""

    @property
    def chip(self) -> Chip | None:
        """What is known of one device; None where the machine at hand is meant."""

    @property
    def num_devices(self) -> int:
        """Devices of all slices."""

    @property
    def num_slices(self) -> int:
        """Groups of devices with a fast network inside and a slower one between them."""

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class CpuSlice:
    """Virtual devices of the CPU at hand.

    Args:
      num_devices: How many.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_devices": "1 <= x"}
    num_devices: int = 1
    chip: ClassVar[None] = None
    num_slices: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"cpu:{self.num_devices}"


@dataclasses.dataclass(frozen=True)
class TpuSlice:
    """TPU slices of one shape.

    Args:
      chip: The generation.
      shape: Chips along each dimension of the torus.
      num_slices: How many such slices.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_slices": "1 <= x"}
    chip: TpuChip
    shape: tuple[int, ...]
    num_slices: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of all slices."""
        return math.prod(self.shape) * self.chip.devices_per_chip * self.num_slices

    @property
    def topology_name(self) -> str:
        """The slice as libtpu names it, such as `v4:2x2x1`."""
        return f"{self.chip.topology}:{'x'.join(map(str, self.shape))}"

    def __str__(self) -> str:
        times = f"{self.num_slices}x" if self.num_slices > 1 else ""
        return f"{times}{self.chip.name}-{math.prod(self.shape) * self.chip.cores_in_name}"


@dataclasses.dataclass(frozen=True)
class GpuSlice:
    """Hosts of GPUs that are linked to each other within a host.

    Args:
      chip: The device.
      devices_per_host: How many each host has.
      num_hosts: How many hosts.
    """

    RANGES: ClassVar[dict[str, str]] = {"devices_per_host": "1 <= x", "num_hosts": "1 <= x"}
    chip: GpuChip
    devices_per_host: int = 1
    num_hosts: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.devices_per_host * self.num_hosts

    @property
    def num_slices(self) -> int:
        """Hosts: each is a slice of its own."""
        return self.num_hosts

    @property
    def topology_name(self) -> str:
        """Slices, hosts of a slice and devices of a host, as the GPU plugin counts them."""
        return f"{self.num_hosts}x1x{self.devices_per_host}"

    def __str__(self) -> str:
        hosts = f"x{self.num_hosts}" if self.num_hosts > 1 else ""
        return f"{self.chip.name}:{self.devices_per_host}{hosts}"


@dataclasses.dataclass(frozen=True)
class _Wish:
    """Holds a slice that is written as a node of a graph."""

    slice: Any = None


def read(text: str) -> Slice:
    """Return the slice that a text names.

    Args:
      text: `cpu:8`; a TPU slice by its name (`v4-8`, `v5litepod-16`) or its chips (`v5e:4x4`), or
        several (`2xv5e-16`); GPUs (`h100:8`), on several hosts (`h200:8x4`); or a node, such as
        `luthier.plan.GpuSlice(chip=luthier.plan.GpuChip(...), devices_per_host=8)`.

    Raises:
      BadInput: There is no such device, no such slice of it, or more devices than can be planned.
    """
    found = _read(text)
    if found.num_devices > MOST_DEVICES:
        what = f"{found} has {found.num_devices} devices, and at most {MOST_DEVICES} can be planned"
        remedy = "plan a smaller slice, with fewer devices along replica or data"
        raise BadInput(Problem(what, ORIGIN, remedy=remedy))
    return found


def _read(text: str) -> Slice:
    text = text.strip()
    if "(" in text:
        return _node(text)
    match = re.fullmatch(r"(?:(\d+)x)?([a-z0-9]+(?:-\d+gb)?)([-:])([\dx]+)", text.lower())
    if match is None:
        name = re.split(r"[:\s]|-(?!\d+gb)", text.lower())[0]
        what = f"{text!r} says not how many" if name in _names() else f"cannot read {text!r}"
        raise BadInput(Problem(what, ORIGIN, remedy=_EXAMPLES))
    times, name, mark, count = match.groups()
    name = _ALIASES.get(name, name)
    sizes = [int(size) for size in count.split("x") if size]
    if not sizes or 0 in sizes or times == "0" or count.count("x") != len(sizes) - 1:
        raise BadInput(Problem(f"{text!r} is of no devices", ORIGIN, remedy=_EXAMPLES))
    if name == "cpu" and mark == ":" and len(sizes) == 1 and not times:
        return CpuSlice(sizes[0])
    chip = CHIPS.get(name)
    if chip is None:
        near = tuple(graphs.nearest(name, _names()))
        remedy = f"there are {', '.join(_names())}, or write a node"
        raise BadInput(Problem(f"no device is called {name!r}", ORIGIN, "", remedy, near))
    if isinstance(chip, TpuChip):
        shape = _named_shape(text, chip, sizes) if mark == "-" else _shape(text, chip, sizes)
        return TpuSlice(chip, shape, int(times or 1))
    assert isinstance(chip, GpuChip)
    if times or mark == "-" or len(sizes) > 2:
        remedy = f"write {name}:8 for one host, {name}:8x4 for four"
        raise BadInput(Problem(f"cannot read {text!r}", ORIGIN, remedy=remedy))
    return GpuSlice(chip, sizes[0], sizes[1] if sizes[1:] else 1)


_ALIASES = {
    "v5litepod": "v5e",
    "v6litepod": "v6e",
    "7x": "tpu7x",
    "v7x": "tpu7x",
    "a100-80gb": "a100",
    "h100-80gb": "h100",
}


def _names() -> list[str]:
    return ["cpu", *CHIPS]


def _node(text: str) -> Slice:
    wish = graphs.apply(as_node(_Wish()), [f"slice={text}"], origin=ORIGIN)
    if is_node(wish.slice):
        graphs.validate(wish.slice)
    made: Any = graphs.build(wish).slice
    if not isinstance(made, CpuSlice | TpuSlice | GpuSlice):
        kinds = "luthier.plan.GpuSlice, luthier.plan.TpuSlice or luthier.plan.CpuSlice"
        raise BadInput(Problem(f"{made!r} is no slice", ORIGIN, remedy=f"give a {kinds}"))
    return made


def _shape(text: str, chip: TpuChip, sizes: list[int]) -> tuple[int, ...]:
    if len(sizes) == chip.dimensions:
        return tuple(sizes)
    example = "4x4" if chip.dimensions == 2 else "2x2x1"
    what = f"{text!r}: chips of a {chip.name} are along {chip.dimensions} dimensions"
    raise BadInput(Problem(what, ORIGIN, remedy=f"write {chip.name}:{example}"))


def _named_shape(text: str, chip: TpuChip, sizes: list[int]) -> tuple[int, ...]:
    """Return the shape that a name stands for: as near to a cube as the chips go."""
    chips, rest = divmod(sizes[0], chip.cores_in_name)
    least = 1 if chip.dimensions == 2 else 4
    if len(sizes) == 1 and not rest and chips >= least:
        if chips == 4 and chip.dimensions == 3:
            return (2, 2, 1)
        shapes = _shapes(chips, chip.dimensions)
        if shapes:
            return min(shapes, key=lambda shape: (max(shape) / min(shape), shape))
    counts = [f"{chip.name}-{n * chip.cores_in_name}" for n in (4, 8, 16, 32, 64, 128, 256)]
    what = f"there is no slice {text!r}"
    near = tuple(graphs.nearest(text, counts))
    raise BadInput(Problem(what, ORIGIN, "", f"such are {', '.join(counts)}", near))


def _shapes(chips: int, dimensions: int) -> list[tuple[int, ...]]:
    """Return shapes of so many chips, the sides growing: powers of two, or multiples of four."""
    sides = [side for side in range(1, chips + 1) if side in (1, 2) or side % 4 == 0]
    found: list[tuple[int, ...]]
    if dimensions == 2:
        found = [(a, chips // a) for a in sides if chips % a == 0]
    else:
        found = [
            (a, b, chips // a // b)
            for a in sides[1:]
            if chips % a == 0
            for b in sides
            if b >= a and chips // a % b == 0
        ]
    kept = [s for s in found if list(s) == sorted(s) and s[-1] in sides]
    return [s for s in kept if dimensions == 2 or _is_cut(s)]


def _is_cut(shape: tuple[int, ...]) -> bool:
    """Return whether a shape of a 3-D torus is one: parts of a cube of 64, or whole cubes."""
    return max(shape) <= 4 or min(shape) >= 4
