"""Rates of devices: products of matrices, memory, and sums over all devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_SECONDS = 0.3
_MOST_CALLS = 200
_NUM_SUMS = 10


def matmul_flops(device: jax.Device) -> float:
    """Return the FLOPs per second of products of square matrices on a device.

    Of bfloat16, or of float32 on a CPU.

    Args:
      device: A device of this process.
    """
    size, dtype = (1024, jnp.float32) if _is_cpu(device) else (8192, jnp.bfloat16)
    left = jax.device_put(np.ones((size, size), dtype), device)
    return 2 * size**3 / _seconds(jax.jit(jnp.matmul), left, left)


def memory_rate(device: jax.Device) -> float:
    """Return the bytes per second that a device reads and writes, where it does little else.

    Args:
      device: A device of this process.
    """
    size = (64 << 20) if _is_cpu(device) else (1 << 30)
    values = jax.device_put(np.zeros(size // 4, np.float32), device)
    return 2 * size / _seconds(jax.jit(lambda x: x + 1), values)


def all_reduce_rate(devices: Sequence[jax.Device]) -> float | None:
    """Return the bytes per second of a sum over devices; None where there is only one.

    The rate is that of the bus: each of n devices sends and receives 2 (n - 1) / n times its bytes.

    Args:
      devices: Those of all processes, in the same order everywhere; all of them call this.
    """
    count = len(devices)
    if count == 1:
        return None
    size = (4 << 20) if _is_cpu(devices[0]) else (256 << 20)
    mesh = Mesh(np.asarray(devices), ("all",))
    sharding = NamedSharding(mesh, PartitionSpec("all"))
    shape = (count, size // 4)
    ones = np.ones((1, size // 4), np.float32)
    values = jax.make_array_from_callback(shape, sharding, lambda index: ones)
    total = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "all"),
            mesh=mesh,
            in_specs=PartitionSpec("all"),
            out_specs=PartitionSpec(),
        )
    )
    jax.block_until_ready(total(values))
    start = time.perf_counter()
    for _ in range(_NUM_SUMS):  # all processes must sum equally often
        jax.block_until_ready(total(values))
    seconds = (time.perf_counter() - start) / _NUM_SUMS
    return 2 * (count - 1) / count * size / seconds


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return what a call takes, compiled and repeated."""
    jax.block_until_ready(function(*arguments))
    start, calls, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < _SECONDS and calls < _MOST_CALLS:
        jax.block_until_ready(function(*arguments))
        calls += 1
        elapsed = time.perf_counter() - start
    return elapsed / calls


def _is_cpu(device: jax.Device) -> bool:
    return device.platform == "cpu"
