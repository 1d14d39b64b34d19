"""What is known of devices: memory, peaks of matrix products, bandwidths; each row with its source.

A row is one *device* as JAX counts them: a chip, or a core of a chip of two that do not work as
one (TPU v2, v3 and 7x). A chip that is not in the table is a `Chip` of one's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

GIBIBYTE = 2**30

_CLOUD = "Google Cloud TPU documentation, page of the generation"
_SCALING = "Austin et al. 2025, How to Scale Your Model, chapter 2"
_NVIDIA = "NVIDIA data sheet, dense rates without sparsity"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Facts of one device.

    Args:
      name: What people call it: `v5e`, `h100`.
      device_kind: What JAX calls it.
      platform: `tpu`, `gpu` or `cpu`.
      memory_bytes: Its memory.
      memory_bandwidth: Bytes per second between it and its memory.
      peak_flops: FLOPs per second of matrix products, by the type of what is multiplied.
      link_bandwidth: Bytes per second that it sends to neighbours of its slice along one axis of
        the mesh; on a TPU two links of one axis of the torus, on a GPU all of its NVLinks.
      network_bandwidth: Bytes per second that it sends to other slices.
      source: Where the numbers are from.
      usable: Share of the memory that a program can have.
    """

    RANGES: ClassVar[dict[str, str]] = {"usable": "0 < x <= 1"}

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

    @property
    def limit_bytes(self) -> int:
        """Bytes that a program can have."""
        return int(self.memory_bytes * self.usable)

    def peak(self, dtype: str, precision: str = "default") -> float:
        """Return the peak of matrix products, in FLOPs per second.

        A float32 product of precision `default` is one of bfloat16 on a TPU and of TF32 on a GPU;
        `high` takes three passes of bfloat16 on a TPU, and `highest` six, or true float32.

        Args:
          dtype: Type of what is multiplied.
          precision: `default`, `high` or `highest`, of float32 products.
        """
        known, best = self.peak_flops, self.peak_flops.get("bfloat16", 0.0)
        if dtype != "float32":
            # What a device has no units for, it widens to bfloat16.
            is_narrow = dtype == "float16" or dtype.startswith("float8")
            return known.get(dtype) or (best if is_narrow else 0.0) or known["float32"]
        if self.platform == "tpu":
            return best / {"default": 1, "high": 3, "highest": 6}[precision]
        if self.platform == "gpu" and precision != "highest":
            return known.get("tfloat32", best)
        return known["float32"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuChip(Chip):
    """A TPU, and what its slices are made of.

    Args:
      platform: Always `tpu`.
      topology: What libtpu calls the generation.
      dimensions: Dimensions of the torus that slices are cut from.
      devices_per_chip: Devices that JAX sees on a chip.
      cores_in_name: What a slice's name counts for each chip: 2 where a v4-8 has four chips.
      config: How the cores of a chip work together, as libtpu names it.
    """

    platform: str = "tpu"
    topology: str
    dimensions: int
    devices_per_chip: int = 1
    cores_in_name: int = 1
    config: str = "default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuChip(Chip):
    """A GPU, and how the compiler is told of it.

    Args:
      platform: Always `gpu`.
      usable: Share of the memory that a program can have: what JAX takes of it by itself.
      compute_capability: Major and minor number.
      num_cores: Streaming multiprocessors.
      fpus_per_core: Float32 units of each.
      shared_memory_per_core: Bytes of shared memory of each.
      l2_cache_bytes: Bytes of the second-level cache.
      clock_ghz: Its boost clock.
      devices_per_host: How many are linked to each other in a machine.
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


def _tpu(name: str, kind: str, peaks: tuple[float, float], **facts) -> TpuChip:
    """Return a row; peaks of bfloat16 and of int8 in TFLOPs, bandwidths in GB/s."""
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
"""The devices that are known, by name."""
