"""What is known of devices: the peak of their matrix units and their memory.

Source: the vendors' data sheets, dense bfloat16 rates without sparsity. A CPU has no data sheet
that holds for the cores at hand, so its peak is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """Facts of one device.

    Args:
      peak_flops: Peak of matrix products, in FLOPs per second; None where unknown.
      source: `data sheet`, `measured` or `unknown`.
    """

    peak_flops: float | None
    source: str


PEAK_FLOPS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA B200": 2250e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}


def device_facts(device: jax.Device, num_devices: int) -> DeviceFacts:
    """Return what is known of a device.

    Args:
      device: One of the devices that a program runs on; they are alike.
      num_devices: How many of them share the machine; virtual CPU devices share its cores.
    """
    if device.platform == "cpu":
        return DeviceFacts(_measured_cpu_peak() / num_devices, "measured")
    peak = PEAK_FLOPS.get(device.device_kind)
    return DeviceFacts(peak, "data sheet" if peak else "unknown")


@functools.cache
def _measured_cpu_peak(size: int = 1024, times: int = 5) -> float:
    """Return float32 FLOPs per second of a square matrix product, best of a few."""
    device = jax.local_devices(backend="cpu")[0]
    matrix = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    jax.block_until_ready(product(matrix, matrix))
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
