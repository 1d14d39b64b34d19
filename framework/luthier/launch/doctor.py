"""Measurements of the hosts of a run: devices, sums over all of them, disk and clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier.parallel import distributed
from luthier.storage import run_error

# Long enough for the rate to count and not the latency, and about a second on a slow disk.
_BYTES = 64 << 20
_BLOCK = 4 << 20


@dataclasses.dataclass(frozen=True)
class DiskRates:
    """The rates of a disk, in bytes per second.

    Args:
      write: With everything on the disk at the end.
      read: Past the cache of the operating system, where it lets go of the file.
    """

    write: float
    read: float


def disk_rates(directory: str | os.PathLike[str]) -> DiskRates:
    """Write a file, read it, and delete it.

    Args:
      directory: Where; or the nearest folder above that exists.

    Raises:
      RunError: The disk refuses.
    """
    place = _place(directory)
    # Random, because some disks compress.
    block = os.urandom(_BLOCK)
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".luthier-doctor-", buffering=0) as file:
            start = time.perf_counter()
            for _ in range(_BYTES // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
            written = time.perf_counter() - start
            if hasattr(os, "posix_fadvise"):
                # Only pages that were written back are dropped from the cache, hence after the
                # fsync.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            start = time.perf_counter()
            while file.read(_BLOCK):
                pass
            read = time.perf_counter() - start
    except OSError as error:
        raise run_error("write", place, error) from error
    return DiskRates(_BYTES / written, _BYTES / read)


def is_shared(directory: str | os.PathLike[str]) -> bool:
    """Return whether this process finds a file where process 0 made it; all processes call this.

    Args:
      directory: Where; or the nearest folder above that exists.

    Raises:
      ProcessLost: Another process has ended.
    """
    if not distributed.is_several():
        return True
    with contextlib.ExitStack() as stack:

        def make() -> str:
            made = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=_place(directory), prefix=".luthier-doctor-")
            )
            return os.path.basename(made.name)

        name = distributed.from_primary(make)
        os.listdir(_place(directory))  # what a network disk remembers of the folder is read anew
        found = _place(directory).joinpath(name).exists()
        distributed.gather(None)  # process 0 deletes it when all have looked
        return found


def _place(directory: str | os.PathLike[str]) -> pathlib.Path:
    place = pathlib.Path(directory).absolute()
    while not place.is_dir():
        place = place.parent
    return place


# Rates of devices: products of matrices, memory, and sums over all devices.

_SECONDS = 0.3
_MOST_CALLS = 200
_NUM_SUMS = 10


def matmul_flops(device: jax.Device) -> float:
    """Measure the FLOPs per second of products of square matrices on a device.

    Of bfloat16, or of float32 on a CPU.

    Args:
      device: A device of this process.
    """
    size, dtype = (1024, jnp.float32) if _is_cpu(device) else (8192, jnp.bfloat16)
    left = jax.device_put(np.ones((size, size), dtype), device)
    return 2 * size**3 / _seconds(jax.jit(jnp.matmul), left, left)


def memory_rate(device: jax.Device) -> float:
    """Measure the memory bandwidth of a device, in bytes read and written per second.

    Args:
      device: A device of this process.
    """
    size = (64 << 20) if _is_cpu(device) else (1 << 30)
    values = jax.device_put(np.zeros(size // 4, np.float32), device)
    return 2 * size / _seconds(jax.jit(lambda x: x + 1), values)


def all_reduce_rate(devices: Sequence[jax.Device]) -> float | None:
    """Measure the bandwidth of a sum over devices, in bytes per second; None for one device.

    The rate is that of the bus: each of n devices sends and receives 2 (n - 1) / n times its bytes.

    Args:
      devices: Those of all processes, in the same order everywhere; all of them call this.
    """
    # The sum over devices is measured as in training: one psum over a mesh of all devices, each of
    # which holds its part of the array.
    count = len(devices)
    if count == 1:
        return None
    # Large arrays, so that bandwidth and not the latency of a sum decides the time.
    size = (4 << 20) if _is_cpu(devices[0]) else (256 << 20)
    mesh = Mesh(np.asarray(devices), ("all",))
    sharding = NamedSharding(mesh, PartitionSpec("all"))
    shape = (count, size // 4)
    ones = np.ones((1, size // 4), np.float32)
    # From a callback, so that each process makes the rows of its own devices only.
    values = jax.make_array_from_callback(shape, sharding, lambda index: ones)
    total = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "all"),
            mesh=mesh,
            in_specs=PartitionSpec("all"),
            out_specs=PartitionSpec(),
        )
    )
    jax.block_until_ready(total(values))  # compiles
    start = time.perf_counter()
    # Not by `_seconds`, which ends by each process's own clock: all must sum equally often.
    for _ in range(_NUM_SUMS):
        jax.block_until_ready(total(values))
    seconds = (time.perf_counter() - start) / _NUM_SUMS
    return 2 * (count - 1) / count * size / seconds


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of a call, compiled and repeated."""
    jax.block_until_ready(function(*arguments))
    start, calls, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < _SECONDS and calls < _MOST_CALLS:
        jax.block_until_ready(function(*arguments))
        calls += 1
        elapsed = time.perf_counter() - start
    return elapsed / calls


def _is_cpu(device: jax.Device) -> bool:
    return device.platform == "cpu"


# Problems of hosts, found by comparing their measurements.

SLOW, SLOW_DISK = 0.75, 0.4
"""Below this share of what the other hosts reach, a host is named; disks differ by the minute."""

CLOCK_SECONDS = 1.0
"""A clock that is further off is named."""

_RATES = {
    "matmul_flops": ("its product of matrices", 1e12, "TFLOP/s", SLOW),
    "memory_bytes": ("its memory", 1e9, "GB/s", SLOW),
    "disk_write_bytes": ("writing to its disk", 1e6, "MB/s", SLOW_DISK),
    "disk_read_bytes": ("reading from its disk", 1e6, "MB/s", SLOW_DISK),
}


def findings(examinations: Sequence[Examination]) -> list[str]:
    """Return the problems of hosts, a line for each.

    Args:
      examinations: Those of all hosts.

    Returns:
      The lines; empty where no host differs.

    Example:
      >>> from luthier import launch
      >>> launch.findings([])
      []
    """
    # A host is compared with the median of the others and not with a table of devices: what is
    # normal here is known only from its neighbours, and a fault of one host does not move their
    # median.
    lines = []
    for found in examinations:
        who = f"process {found.process} on {found.host}"
        others = [other for other in examinations if other is not found]
        for field, (what, unit, unit_name, share) in _RATES.items():
            own = getattr(found, field)
            # Alone, a host has nothing to be compared with.
            usual = statistics.median(getattr(other, field) for other in others) if others else own
            if own < share * usual:
                figures = f"{own / unit:.3g} {unit_name}, the others {usual / unit:.3g}"
                lines.append(f"{who}: {what} is slow: {figures}")
        if not found.sees_directory:
            lines.append(f"{who}: the directory is on a disk of its own, not on that of process 0")
        # Only a difference that the round trip of the measurement cannot explain.
        if abs(found.clock_skew_seconds) > CLOCK_SECONDS + found.clock_uncertainty_seconds:
            way = "ahead of" if found.clock_skew_seconds > 0 else "behind"
            seconds = abs(found.clock_skew_seconds)
            lines.append(f"{who}: its clock is {seconds:.1f} s {way} that of process 0")
    return lines


# The measurements of one host; each process of a run examines its own.


@dataclasses.dataclass(frozen=True)
class Examination:
    """The measurements of a process; rates are per second.

    Args:
      process: Which process of the run, from 0.
      host: The name of its machine.
      devices: Its devices, as `4 x NVIDIA H100`.
      matmul_flops: FLOPs of products of matrices, of its slowest device.
      memory_bytes: Bytes read and written, of its slowest device.
      all_reduce_bytes: Bytes of a sum over all devices of all processes; None for one device.
      disk_write_bytes: Bytes written to the disk.
      disk_read_bytes: Bytes read from it.
      sees_directory: Whether its directory is that of process 0.
      clock_skew_seconds: By how much its clock is ahead of that of process 0.
      clock_uncertainty_seconds: By how much that may be wrong.
    """

    process: int
    host: str
    devices: str
    matmul_flops: float
    memory_bytes: float
    all_reduce_bytes: float | None
    disk_write_bytes: float
    disk_read_bytes: float
    sees_directory: bool
    clock_skew_seconds: float
    clock_uncertainty_seconds: float


def examine(directory: str | os.PathLike[str]) -> list[Examination]:
    """Examine all hosts; all processes call this, and get all results in their order.

    Args:
      directory: Where the disk is tried.

    Returns:
      Rates in FLOPs and bytes per second, and clock skews in seconds, of every process.

    Raises:
      RunError: The disk refuses.
      ProcessLost: Another process has ended.
    """
    skew = distributed.clock_skew()
    local = jax.local_devices()
    # Virtual devices of a CPU share its cores.
    own = local[:1] if local[0].platform == "cpu" else local
    with distributed.together():
        disk = disk_rates(directory)
    found = Examination(
        process=distributed.process_index(),
        host=platform.node(),
        devices=f"{len(local)} x {local[0].device_kind}",
        matmul_flops=min(map(matmul_flops, own)),
        memory_bytes=min(map(memory_rate, own)),
        all_reduce_bytes=all_reduce_rate(jax.devices()),
        disk_write_bytes=disk.write,
        disk_read_bytes=disk.read,
        sees_directory=is_shared(directory),
        clock_skew_seconds=skew.seconds,
        clock_uncertainty_seconds=skew.uncertainty_seconds,
    )
    if not distributed.is_several():
        return [found]
    return [Examination(**each) for each in distributed.gather(dataclasses.asdict(found))]
