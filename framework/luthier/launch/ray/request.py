"""What a gang wants of a Ray cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Request:
    """What a gang wants of a Ray cluster.

    Args:
      hosts: Nodes.
      processes_per_host: Processes on each of them.
      cpus: CPUs of each process.
      gpus: GPUs of each process.
      resources: Further resources of each process, by the names that Ray has for them.
      topology: Of a slice of TPUs, as `4x4`; empty for none.
      accelerator: The generation of its TPUs, as `v5e`.
      chips_per_host: TPU chips of each host of the slice.
    """

    hosts: int = 1
    processes_per_host: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    topology: str = ""
    accelerator: str = ""
    chips_per_host: int = 4

    @property
    def num_hosts(self) -> int:
        """Nodes of a gang: those of its slice, where it has one."""
        return num_chips(self.topology) // self.chips_per_host if self.topology else self.hosts

    @property
    def num_processes(self) -> int:
        """Processes of a gang."""
        return self.num_hosts * self.processes_per_host

    @property
    def process_options(self) -> dict[str, Any]:
        """What Ray reserves for each process, in the words of its `options`."""
        resources = dict(self.resources)
        if self.topology:
            resources["TPU"] = self.chips_per_host / self.processes_per_host
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": resources}

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray reserves on each node, in the words of its placement groups."""
        each = {"CPU": self.cpus, "GPU": self.gpus, **self.process_options["resources"]}
        return {name: n * self.processes_per_host for name, n in each.items() if n}


def num_chips(topology: str) -> int:
    """Return how many chips a topology has, as 16 for `4x4`.

    Args:
      topology: Its axes.

    Raises:
      ValueError: It cannot be read.
    """
    return math.prod(int(size) for size in topology.split("x"))
