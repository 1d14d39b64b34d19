"""Facts about local devices: the peak of their matrix units and their memory.

Source: the vendors' data sheets, dense bfloat16 rates without sparsity. A CPU has no data sheet
that holds for the cores at hand, so its peak is measured, once for each machine: the result is kept
in the user's cache folder, so that an experiment has the same bound every time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import platform
import re
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from luthier.errors import LuthierError
from luthier.planner import process
from luthier.planner.targets import CHIPS, MEASURED, Chip
from luthier.storage import write_atomically

_SIZE, _NUM_PRODUCTS, _ENOUGH_SECONDS = 1024, 5, 0.05


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """Facts about one device.

    Args:
      peak_flops: Peak of matrix products, in FLOPs per second; None where unknown.
      source: `data sheet`, `measured` or `unknown`.
    """

    peak_flops: float | None
    source: str


# Device kinds under other names than in the table of chips, and some that are not in it.
_OTHERS = {
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v6e": 918e12,
}
PEAK_FLOPS: Mapping[str, float] = {
    **{chip.device_kind: chip.peak_flops["bfloat16"] for chip in CHIPS.values()},
    **_OTHERS,
}
"""Peaks of bfloat16 products in FLOPs per second, by JAX's `device_kind`."""


def device_facts(device: jax.Device, num_devices: int) -> DeviceFacts:
    """Return the facts about a device.

    Args:
      device: One of the devices that a program runs on; they are alike.
      num_devices: Number of devices that share the machine; virtual CPU devices share its cores.

    Returns:
      Its peak in FLOPs per second, None where unknown, and where that comes from.
    """
    # Virtual devices of a CPU compute at the same time, so each has a part of the measured peak.
    if device.platform == "cpu":
        return DeviceFacts(_measured_cpu_peak() / num_devices, "measured")
    peak = PEAK_FLOPS.get(device.device_kind)
    return DeviceFacts(peak, "data sheet" if peak else "unknown")


def cpu_chip(num_devices: int) -> Chip:
    """Return the facts about a virtual device of the local CPU.

    Args:
      num_devices: Number of devices that share the machine.

    Returns:
      The chip: memory in bytes, peaks in FLOPs per second, bandwidths in bytes per second.
    """
    peak = _measured_cpu_peak() / num_devices
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Chip(
        name="cpu",
        device_kind="cpu",
        platform="cpu",
        memory_bytes=memory // num_devices,
        memory_bandwidth=0.0,  # unknown: the roofline leaves out terms without a bandwidth
        peak_flops={"float32": peak, "bfloat16": peak},
        link_bandwidth=0.0,
        network_bandwidth=0.0,
        source="measured",
        grade=MEASURED,
    )


@functools.cache
def _measured_cpu_peak() -> float:
    """Return float32 FLOPs per second of a square matrix product on all cores."""
    place = _cpu_file()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = float(json.loads(place.read_text(encoding="utf-8"))["float32_flops_per_second"])
        if 0 < known < float("inf"):
            return known
    peak = _measure_cpu()
    # For people, too: where a number of a plan comes from, and under which conditions.
    record = {
        "float32_flops_per_second": peak,
        "how": f"best of at most {_NUM_PRODUCTS} products of two matrices {_SIZE} x {_SIZE}, by "
        "the clock or by the processor time, whichever is faster",
        "cpu": _cpu_model(),
        "cores": _num_cores(),
        "jax": jax.__version__,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_average": os.getloadavg()[0],
    }
    # A cache that cannot be written costs a measurement per process, and no run.
    with contextlib.suppress(OSError, LuthierError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(record, indent=1) + "\n")
    return peak


def _cpu_file() -> pathlib.Path:
    """Return the file that keeps the measured peak of this machine's CPU."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{_cpu_model()} {_num_cores()} cores".lower()).strip("-")
    return process.folder().parent / "devices" / f"{name}.json"


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    # Of this process: a container, or `taskset`, may allow fewer than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _measure_cpu() -> float:
    # It is made once per machine, but a training waits for it, so it is limited in time, not only
    # in number. On one device, although it uses all cores; the first product (after compiling) is
    # not measured, as it starts the thread pool.
    device = jax.local_devices(backend="cpu")[0]
    matrix = jax.device_put(jnp.ones((_SIZE, _SIZE), jnp.float32), device)
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    jax.block_until_ready(product(matrix, matrix))
    best = float("inf")
    first = time.perf_counter()
    for _ in range(_NUM_PRODUCTS):
        start, cpu_start = time.perf_counter(), time.process_time()
        jax.block_until_ready(product(matrix, matrix))
        end, cpu_end = time.perf_counter(), time.process_time()
        # On a busy machine the clock runs on while other processes have the cores, and a rate that
        # is too low would make a lower bound that is none. The processor time counts this process
        # alone. It is coarse on some systems, and then 0.
        seconds = [end - start, (cpu_end - cpu_start) / _num_cores()]
        best = min(best, *filter(None, seconds))
        if end - first > _ENOUGH_SECONDS:
            break
    return 2 * _SIZE**3 / best
