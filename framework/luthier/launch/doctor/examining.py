"""What one host can do; each process of a run examines its own."""

from __future__ import annotations

import dataclasses
import os
import platform

import jax

from luthier.launch.doctor.disk import disk_rates, is_shared
from luthier.launch.doctor.measures import all_reduce_rate, matmul_flops, memory_rate
from luthier.parallel import distributed


@dataclasses.dataclass(frozen=True)
class Examination:
    """What a process found; rates are per second.

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
    """Examine all hosts; all processes call this, and get what all of them found, in their order.

    Args:
      directory: Where the disk is tried.

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
