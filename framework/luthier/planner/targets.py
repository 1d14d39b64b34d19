"""Chips and slices to plan for: memory, peaks and bandwidths of devices, each row with its source.

A row is one *device* as JAX counts them: a chip, or one of two cores of a chip that do not work as
one device (TPU v2, v3 and 7x). For a chip that is not in the table, write a `Chip` node.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.graph.copies import as_node
from luthier.graph.paths import is_node
from luthier.terminal import format_bytes

GIBIBYTE = 2**30

PUBLISHED, MEASURED, DERIVED = "published", "measured", "derived"
"""Grades of the rates of a chip."""

_CLOUD = "Google Cloud TPU documentation, page of the generation"
_SCALING = "Austin et al. 2025, How to Scale Your Model, chapter 2"
_NVIDIA = "NVIDIA data sheet, dense rates without sparsity"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Facts about one device.

    Args:
      name: Common name: `v5e`, `h100`.
      device_kind: Name of the device in JAX.
      platform: `tpu`, `gpu` or `cpu`.
      memory_bytes: Size of its memory.
      memory_bandwidth: Bytes per second between it and its memory.
      peak_flops: FLOPs per second of matrix products, by the dtype of the operands.
      link_bandwidth: Bytes per second that it sends to neighbours of its slice along one axis of
        the mesh; on a TPU two links of one axis of the torus, on a GPU all of its NVLinks.
      network_bandwidth: Bytes per second that it sends to other slices.
      source: Source of the numbers.
      usable: Fraction of the memory that a program can have.
      product_efficiency: Fraction of `peak_flops` that products of a model's shapes reach.
      memory_efficiency: Fraction of `memory_bandwidth` that a large copy reaches.
      grade: Grade of the rates that estimates use: `published`, or with efficiencies `measured` on
        this device, or `derived` from those of another.
    """

    RANGES: ClassVar[dict[str, str]] = {
        "usable": "0 < x <= 1",
        "product_efficiency": "0 < x <= 1",
        "memory_efficiency": "0 < x <= 1",
    }

    name: str
    device_kind: str
    platform: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    link_bandwidth: float
    network_bandwidth: float
    source: str
    usable: float = 1.0
    product_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    grade: str = PUBLISHED

    @property
    def limit_bytes(self) -> int:
        """Bytes that a program can have."""
        return int(self.memory_bytes * self.usable)

    @property
    def limit_reason(self) -> str:
        """The reason for which a program cannot have all of the memory; empty if it can."""
        if self.usable == 1:
            return ""
        whole = format_bytes(self.memory_bytes)
        if self.platform == "gpu":
            pool = "JAX's default pool, XLA_PYTHON_CLIENT_MEM_FRACTION sets it"
            return f"{self.usable:.0%} of {whole}: {pool}"
        return f"its compiler allows no more of {whole}"

    def peak(self, dtype: str, precision: str = "default") -> float:
        """Return the peak of matrix products, in FLOPs per second.

        A float32 product of precision `default` is one of bfloat16 on a TPU and of TF32 on a GPU;
        `high` takes three passes of bfloat16 on a TPU, and `highest` six, or true float32.

        Args:
          dtype: Dtype of the operands.
          precision: Precision of float32 products: `default`, `high` or `highest`.

        Returns:
          FLOPs per second.
        """
        passes = 1
        if dtype == "float32" and self.platform == "tpu":
            passes = {"default": 1, "high": 3, "highest": 6}[precision]
        return self.peak_flops.get(self.multiplies_as(dtype, precision), 0.0) / passes

    def multiplies_as(self, dtype: str, precision: str = "default") -> str:
        """Return the type whose peak is that of products of another.

        Args:
          dtype: Dtype of the operands.
          precision: Precision of float32 products: `default`, `high` or `highest`.

        Returns:
          A key of `peak_flops`.
        """
        known = self.peak_flops
        if dtype != "float32":
            # Narrow types for which a device has no units are widened to bfloat16.
            is_narrow = dtype == "float16" or dtype.startswith("float8")
            widened = "bfloat16" if is_narrow and "bfloat16" in known else "float32"
            return dtype if known.get(dtype) else widened
        if self.platform == "gpu" and precision != "highest":
            return "tfloat32" if "tfloat32" in known else "bfloat16"
        return "bfloat16" if self.platform == "tpu" else dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuChip(Chip):
    """A TPU and the geometry of its slices.

    Args:
      platform: Always `tpu`.
      topology: Name of the generation in libtpu.
      dimensions: Dimensions of the torus that slices are cut from.
      devices_per_chip: Devices that JAX sees on a chip.
      cores_in_name: Cores that a slice's name counts per chip: 2 where a v4-8 has four chips.
      config: Configuration of the cores of a chip, as libtpu names it.
    """

    platform: str = "tpu"
    topology: str
    dimensions: int
    devices_per_chip: int = 1
    cores_in_name: int = 1
    config: str = "default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuChip(Chip):
    """A GPU and its description for the compiler.

    Args:
      platform: Always `gpu`.
      usable: Fraction of the memory that a program can have: what JAX preallocates by default.
      product_efficiency: As of one H200: for other GPUs it is derived.
      memory_efficiency: As of one H200: for other GPUs it is derived.
      grade: `derived`, but for an H200.
      compute_capability: Major and minor number.
      num_cores: Number of streaming multiprocessors.
      fpus_per_core: Float32 units of each multiprocessor.
      shared_memory_per_core: Bytes of shared memory of each multiprocessor.
      l2_cache_bytes: Bytes of the L2 cache.
      clock_ghz: Boost clock.
      devices_per_host: Number of GPUs that are linked to each other in a host.
    """

    platform: str = "gpu"
    compute_capability: tuple[int, int]
    num_cores: int
    fpus_per_core: int
    shared_memory_per_core: int
    l2_cache_bytes: int
    clock_ghz: float
    devices_per_host: int = 8
    usable: float = 0.75  # the default of XLA_PYTHON_CLIENT_MEM_FRACTION
    # Measured by `tools/bench/gpu_hour` on one H200 with jax 0.11.2, on random numbers: bfloat16
    # products of the shapes of GPT-2 and Llama took 605 to 690 of 989 TFLOP/s; in the profile of a
    # step, TF32 products took 0.64 of theirs; a copy moved 4,015 of 4,800 GB/s.
    product_efficiency: float = 0.66
    memory_efficiency: float = 0.84
    grade: str = DERIVED


def _tpu(name: str, kind: str, peaks: tuple[float, float], **facts) -> TpuChip:
    """Return a row; peaks of bfloat16 and of int8 in TFLOPs, bandwidths in GB/s."""
    # A float32 product at full precision is six passes of bfloat16 on a TPU.
    rates = {"bfloat16": peaks[0] * 1e12, "float32": peaks[0] * 1e12 / 6}
    if peaks[1]:
        rates["int8"] = peaks[1] * 1e12
    bandwidths = ("memory_bandwidth", "link_bandwidth", "network_bandwidth")
    facts |= {field: facts[field] * 1e9 for field in bandwidths}
    facts["memory_bytes"] = int(facts["memory_bytes"] * GIBIBYTE)
    facts.setdefault("source", f"{_CLOUD}; links: {_SCALING}")
    return TpuChip(name=name, device_kind=kind, peak_flops=rates, **facts)


def _gpu(name: str, kind: str, memory: int, peaks: tuple[float, ...], **facts) -> GpuChip:
    """Return a row; peaks of bfloat16, TF32, float32 and float8 in TFLOPs, bandwidths in GB/s."""
    types = ("bfloat16", "tfloat32", "float32", "float8")
    rates = {t: peak * 1e12 for t, peak in zip(types, peaks, strict=False)}
    bandwidths = ("memory_bandwidth", "link_bandwidth", "network_bandwidth")
    facts |= {field: facts[field] * 1e9 for field in bandwidths}
    facts.setdefault("source", f"{_NVIDIA}; network: the vendor's reference host")
    return GpuChip(name=name, device_kind=kind, memory_bytes=memory, peak_flops=rates, **facts)


_HOPPER = {
    "compute_capability": (9, 0),
    "num_cores": 132,
    "fpus_per_core": 128,
    "shared_memory_per_core": 233_472,
    "l2_cache_bytes": 52_428_800,
    "clock_ghz": 1.98,
    "link_bandwidth": 450,
    "network_bandwidth": 50,
}
_AMPERE = {
    "compute_capability": (8, 0),
    "num_cores": 108,
    "fpus_per_core": 64,
    "shared_memory_per_core": 167_936,
    "l2_cache_bytes": 41_943_040,
    "clock_ghz": 1.41,
    "link_bandwidth": 300,
    "network_bandwidth": 25,
}
_H100_PEAKS = (989.4, 494.7, 66.9, 1978.9)

# `usable` of a TPU is the limit in its compiler's own errors, such as "of 15.75G hbm" for a v5e of
# 16.
_ROWS: tuple[Chip, ...] = (
    _tpu(
        "v2",
        "TPU v2",
        (22.5, 0),
        memory_bytes=8,
        memory_bandwidth=350,
        link_bandwidth=62.5,
        network_bandwidth=1.5625,
        topology="v2",
        dimensions=2,
        devices_per_chip=2,
        cores_in_name=2,
        source="Jouppi et al. 2020, A domain-specific supercomputer, table 3; per core",
    ),
    _tpu(
        "v3",
        "TPU v3",
        (61.5, 0),
        memory_bytes=16,
        memory_bandwidth=450,
        link_bandwidth=82,
        network_bandwidth=1.5625,
        topology="v3",
        dimensions=2,
        devices_per_chip=2,
        cores_in_name=2,
        source="Jouppi et al. 2020, A domain-specific supercomputer, table 3; per core",
    ),
    _tpu(
        "v4",
        "TPU v4",
        (275, 275),
        memory_bytes=32,
        memory_bandwidth=1228,
        link_bandwidth=90,
        network_bandwidth=3.125,
        topology="v4",
        dimensions=3,
        cores_in_name=2,
        config="megacore",
        usable=30.75 / 32,
    ),
    _tpu(
        "v5e",
        "TPU v5 lite",
        (197, 394),
        memory_bytes=16,
        memory_bandwidth=819,
        link_bandwidth=90,
        network_bandwidth=3.125,
        topology="v5e",
        dimensions=2,
        usable=15.75 / 16,
    ),
    _tpu(
        "v5p",
        "TPU v5",
        (459, 918),
        memory_bytes=96,
        memory_bandwidth=2765,
        link_bandwidth=180,
        network_bandwidth=6.25,
        topology="v5p",
        dimensions=3,
        cores_in_name=2,
        config="megacore",
        usable=95.74 / 96,
    ),
    _tpu(
        "v6e",
        "TPU v6 lite",
        (918, 1836),
        memory_bytes=32,
        memory_bandwidth=1640,
        link_bandwidth=180,
        network_bandwidth=12.5,
        topology="v6e",
        dimensions=2,
        usable=31.25 / 32,
    ),
    _tpu(
        "tpu7x",
        "TPU7x",
        (1153.5, 0),
        memory_bytes=96,
        memory_bandwidth=3690,
        link_bandwidth=100,
        network_bandwidth=6.25,
        topology="tpu7x",
        dimensions=3,
        devices_per_chip=2,
        cores_in_name=2,
        usable=94.75 / 96,
        source=f"{_CLOUD}; half of a chip of two devices",
    ),
    _gpu(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        42_400_000_000,
        (312, 156, 19.5),
        memory_bandwidth=1555,
        **_AMPERE,
    ),
    _gpu(
        "a100",
        "NVIDIA A100-SXM4-80GB",
        85_100_068_864,
        (312, 156, 19.5),
        memory_bandwidth=2039,
        **_AMPERE,
    ),
    _gpu(
        "h100",
        "NVIDIA H100 80GB HBM3",
        84_942_979_072,
        _H100_PEAKS,
        memory_bandwidth=3352,
        **_HOPPER,
    ),
    _gpu(
        "h200",
        "NVIDIA H200",
        151_397_597_184,
        _H100_PEAKS,
        memory_bandwidth=4800,
        grade=MEASURED,
        **_HOPPER,
    ),
    _gpu(
        "b200",
        "NVIDIA B200",
        191_514_411_008,
        (2250, 1125, 75, 4500),
        memory_bandwidth=7672,
        link_bandwidth=900,
        network_bandwidth=50,
        compute_capability=(10, 0),
        num_cores=148,
        fpus_per_core=128,
        shared_memory_per_core=233_472,
        l2_cache_bytes=132_644_864,
        clock_ghz=1.965,
    ),
)

CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _ROWS}
"""Known devices by name."""


# Slices to plan for, and their names, such as `v5e-16`, `2xv4-8` or `h100:8x4`.

ORIGIN = "--slice"
MOST_DEVICES = 16384
"""Sharding takes time that grows faster than the number of devices: 84 seconds for this many."""
_EXAMPLES = "write cpu:8, v5e-16, v4:2x2x1, 2xv5e-16, h100:8 or h200:8x4"


class Slice(Protocol):
    """Devices to plan for, local or not."""

    @property
    def chip(self) -> Chip | None:
        """Facts about one device; None for the local machine."""

    @property
    def num_devices(self) -> int:
        """Devices of all slices."""

    @property
    def num_slices(self) -> int:
        """Number of groups of devices with a fast network inside and a slower one between them."""

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class CpuSlice:
    """Virtual devices of the local CPU.

    Args:
      num_devices: Number of virtual devices.
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
      num_slices: Number of slices.
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
      devices_per_host: Number of GPUs of each host.
      num_hosts: Number of hosts.
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
class _SliceHolder:
    """Root of a graph with a slice that is written as a node."""

    slice: Any = None


def read(text: str) -> Slice:
    """Parse the name of a slice.

    Args:
      text: `cpu:8`; a TPU slice by its name (`v4-8`, `v5litepod-16`) or its chips (`v5e:4x4`), or
        several (`2xv5e-16`); GPUs (`h100:8`), on several hosts (`h200:8x4`); or a node, such as
        `luthier.planner.GpuSlice(chip=luthier.planner.GpuChip(...), devices_per_host=8)`.

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
    # TIMESxNAME-COUNT or NAME:SIZES; a parenthesis means a node. Google's names count chips or
    # cores after the `-` (`cores_in_name`), sizes after the `:` are always chips or devices.
    text = text.strip()
    if "(" in text:
        return _node(text)
    match = re.fullmatch(r"(?:(\d+)x)?([a-z0-9]+(?:-\d+gb)?)([-:])([\dx]+)", text.lower())
    if match is None:
        # A `-` before a memory size is part of the name: `a100-40gb`.
        name = re.split(r"[:\s]|-(?!\d+gb)", text.lower())[0]
        what = f"{text!r} has no number of devices" if name in _names() else f"cannot read {text!r}"
        raise BadInput(Problem(what, ORIGIN, remedy=_EXAMPLES))
    times, name, mark, count = match.groups()
    name = _ALIASES.get(name, name)
    # The pattern lets `4xx4` and `4x` pass; they have more `x` than gaps between sizes.
    sizes = [int(size) for size in count.split("x") if size]
    number = int(times or 1)
    if not sizes or 0 in sizes or not number or count.count("x") != len(sizes) - 1:
        raise BadInput(Problem(f"{text!r} has no devices", ORIGIN, remedy=_EXAMPLES))
    if name == "cpu" and mark == ":" and len(sizes) == 1 and not times:
        return CpuSlice(sizes[0])
    chip = CHIPS.get(name)
    if chip is None:
        near = tuple(graphs.nearest(name, _names()))
        remedy = f"there are {', '.join(_names())}, or write a node"
        raise BadInput(Problem(f"no device is called {name!r}", ORIGIN, "", remedy, near))
    if isinstance(chip, TpuChip):
        shape = _named_shape(text, chip, sizes) if mark == "-" else _shape(text, chip, sizes)
        return TpuSlice(chip, shape, number)
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
    # As an override of a graph, so that classes, arguments and ranges are checked as anywhere else.
    root = graphs.apply(as_node(_SliceHolder()), [f"slice={text}"], origin=ORIGIN)
    if is_node(root.slice):
        graphs.validate(root.slice)
    slice: Any = graphs.build(root).slice
    if not isinstance(slice, CpuSlice | TpuSlice | GpuSlice):
        kinds = "luthier.planner.GpuSlice, luthier.planner.TpuSlice or luthier.planner.CpuSlice"
        raise BadInput(Problem(f"{slice!r} is not a slice", ORIGIN, remedy=f"give a {kinds}"))
    return slice


def _shape(text: str, chip: TpuChip, sizes: list[int]) -> tuple[int, ...]:
    if len(sizes) == chip.dimensions:
        return tuple(sizes)
    example = "4x4" if chip.dimensions == 2 else "2x2x1"
    what = f"{text!r}: chips of a {chip.name} are along {chip.dimensions} dimensions"
    raise BadInput(Problem(what, ORIGIN, remedy=f"write {chip.name}:{example}"))


def _named_shape(text: str, chip: TpuChip, sizes: list[int]) -> tuple[int, ...]:
    """Return the shape that a name stands for: the one nearest to a cube (or square)."""
    # Four chips of a 3-D torus are one host, 2x2x1; more are whole shapes of `_shapes`.
    chips, rest = divmod(sizes[0], chip.cores_in_name)
    least = 1 if chip.dimensions == 2 else 4
    if len(sizes) == 1 and not rest and chips >= least:
        if chips == 4 and chip.dimensions == 3:
            return (2, 2, 1)
        shapes = _shapes(chips, chip.dimensions)
        if shapes:
            return min(shapes, key=lambda shape: (max(shape) / min(shape), shape))
    counts = [f"{chip.name}-{n * chip.cores_in_name}" for n in (4, 8, 16, 32, 64, 128, 256)]
    what = f"there is not a slice {text!r}"
    near = tuple(graphs.nearest(text, counts))
    raise BadInput(Problem(what, ORIGIN, "", f"such are {', '.join(counts)}", near))


def _shapes(chips: int, dimensions: int) -> list[tuple[int, ...]]:
    """Return the shapes of a number of chips, with ascending sides: 1, 2, or multiples of four."""
    # A 3-D torus is made of cubes of 4x4x4 chips that optical switches connect; parts of a cube are
    # not connected by them.
    sides = [side for side in range(1, chips + 1) if side in (1, 2) or side % 4 == 0]
    shapes: list[tuple[int, ...]]
    if dimensions == 2:
        shapes = [(a, chips // a) for a in sides if chips % a == 0]
    else:
        shapes = [
            (a, b, chips // a // b)
            for a in sides[1:]
            if chips % a == 0
            for b in sides
            if b >= a and chips // a % b == 0
        ]
    ascending = [s for s in shapes if list(s) == sorted(s) and s[-1] in sides]
    return [s for s in ascending if dimensions == 2 or _is_cut(s)]


def _is_cut(shape: tuple[int, ...]) -> bool:
    """Return whether a shape can be cut from a 3-D torus: part of a 4x4x4 cube, or whole cubes."""
    return max(shape) <= 4 or min(shape) >= 4


# Devices of slices to plan for, as the compiler sees them; no hardware is touched.

_NEEDS = {
    TpuSlice: (("libtpu",), "plan-tpu"),
    GpuSlice: (("jax_plugins.xla_cuda13",), "plan-gpu"),
}


def missing_compiler(slice: Slice) -> str:
    """Return a message that the compiler for a slice is not installed; empty if it is.

    Args:
      slice: Slice to plan for.
    """
    modules, extra = _NEEDS.get(type(slice), ((), ""))
    absent = [module for module in modules if not _is_installed(module)]
    if not absent:
        return ""
    kind = "TPU" if isinstance(slice, TpuSlice) else "GPU"
    return f"the {kind} compiler is not installed (pip install 'luthier[{extra}]', Linux x86-64)"


def environment(slice: Slice, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that compiles for a slice.

    It starts JAX's CPU backend only, queries no metadata server, and sees no accelerator.

    Args:
      slice: Slice to plan for.
      base: The environment to start from.
    """
    # libtpu describes topologies without a TPU, but would first look for one: these variables keep
    # it from querying the metadata server of the cloud, and from a lock that one process of a
    # machine can have. XLA_FLAGS of the caller are for its own devices, not for this slice.
    environ = dict(base)
    environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TPU_SKIP_MDS_QUERY": "1"}
    environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v4-8"}
    environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # beside others that plan, or train on a TPU
    environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ["XLA_FLAGS"] = _device_flag(slice) if isinstance(slice, CpuSlice) else ""
    return environ


def devices(slice: Slice) -> list[Any]:
    """Return the devices of a slice, to shard and to compile for; nothing can run on them.

    Args:
      slice: Slice to plan for.

    Raises:
      BadInput: The compiler for them is not installed, or does not know the slice.
    """
    missing = missing_compiler(slice)
    if missing:
        raise BadInput(Problem(missing, "--slice", remedy="or plan with --level shapes"))
    if isinstance(slice, CpuSlice):
        return stand_ins(slice)
    from jax.experimental import topologies

    # Each plugin takes options of its own, and its errors are of its own types. A GPU is described
    # by a text form of a protocol buffer, so that any can be compiled for without one. Its
    # plugin takes the shape from the option `topology`, not from JAX's own `topology_name`, and
    # without that option has no number of devices where there is no GPU.
    options: dict[str, Any] = {}
    if isinstance(slice, TpuSlice):
        options = {"platform": "tpu", "topology_name": slice.topology_name}
        # libtpu's default is one device for each core, so that a v4-8 would have 8 instead of 4.
        if slice.chip.config != "default":
            options["chip_config_name"] = slice.chip.config
        # Hosts of 2x2 chips of a plane, or of all chips of a smaller slice: libtpu's default is
        # always 2x2x1, and it refuses slices that this does not divide, such as v5e:1x1.
        bounds = tuple(min(side, 2) for side in (*slice.shape, 1, 1)[:2])
        options["chips_per_host_bounds"] = (*bounds, 1)
        if slice.num_slices > 1:
            options["num_slices"] = slice.num_slices
    elif isinstance(slice, GpuSlice):
        name = slice.topology_name
        options = {"platform": "cuda", "topology_name": name, "topology": name}
        options["target_config"] = description(slice.chip)
    try:
        return list(topologies.get_topology_desc(**options).devices)
    except Exception as error:  # of the compiler's own types
        line = str(error).partition("\n")[0]
        raise BadInput(Problem(f"the compiler does not know {slice}: {line}", "--slice")) from error


def stand_ins(slice: Slice) -> list[Any]:
    """Return as many virtual CPU devices as a slice has, to shard arrays over.

    Args:
      slice: Slice to plan for.

    Raises:
      BadInput: JAX's CPU backend is up with fewer devices.
    """
    import jax

    found = jax.devices("cpu")
    if len(found) < slice.num_devices:
        what = f"{slice} needs {slice.num_devices} virtual devices, and JAX runs with {len(found)}"
        raise BadInput(Problem(what, "--slice", remedy="plan in a process of its own"))
    return found[: slice.num_devices]


def description(chip: GpuChip) -> str:
    """Return the description of a GPU as text of XLA's `GpuTargetConfigProto`.

    Args:
      chip: The GPU.
    """
    # What the supported devices have in common is written as constants.
    major, minor = chip.compute_capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_memory_per_core}
  threads_per_core_limit: 2048
  core_count: {chip.num_cores}
  fpus_per_core: {chip.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.memory_bandwidth)}
  l2_cache_size: {chip.l2_cache_bytes}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {chip.memory_bytes}
  shared_memory_per_block_optin: {chip.shared_memory_per_core - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{chip.device_kind}"
"""


def _device_flag(slice: Slice) -> str:
    return f"--xla_force_host_platform_device_count={slice.num_devices}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
