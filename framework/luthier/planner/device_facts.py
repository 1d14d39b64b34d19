"""Facts about local devices: the peak of their matrix units and their memory.

Source: the vendors' data sheets, dense bfloat16 rates without sparsity. A CPU has no data sheet
that holds for the cores at hand, so its peak is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from luthier.planner.targets import CHIPS, Chip


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
    )


@functools.cache
def _measured_cpu_peak(size: int = 1024, times: int = 5, seconds: float = 0.05) -> float:
    """Return float32 FLOPs per second of a square matrix product.

    Args:
      size: Size of its sides.
      times: Maximum number of measurements, of which the best is taken.
      seconds: Time after which no further measurement starts.
    """
    # Every training on a CPU waits for this, so it is limited in time, not only in number: a slow
    # machine makes one measurement. On one device, although it uses all cores; the first product
    # (after compiling) is not measured, as it starts the thread pool.
    device = jax.local_devices(backend="cpu")[0]
    matrix = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    jax.block_until_ready(product(matrix, matrix))
    best = float("inf")
    first = time.perf_counter()
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        end = time.perf_counter()
        best = min(best, end - start)
        if end - first > seconds:
            break
    return 2 * size**3 / best
