"""Launching: one run, or the device groups of a sweep, on SLURM, Ray and Kubernetes.

What a process on another machine needs to begin is light, so names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luthier.launch.engine import Engine, Job, ProcessGroup, Resources, Standing
    from luthier.launch.here import Here
    from luthier.launch.kubernetes import Kubernetes
    from luthier.launch.ray import Ray
    from luthier.launch.slices import Slices
    from luthier.launch.slurm import Slurm
    from luthier.launch.tpu_vm import TpuVm

_PLACES = {
    "Engine": "engine",
    "ProcessGroup": "engine",
    "Here": "here",
    "Job": "engine",
    "Kubernetes": "kubernetes",
    "Resources": "engine",
    "Ray": "ray",
    "Slices": "slices",
    "Slurm": "slurm",
    "Standing": "engine",
    "TpuVm": "tpu_vm",
}

__all__ = [
    "Engine",
    "Here",
    "Job",
    "Kubernetes",
    "ProcessGroup",
    "Ray",
    "Resources",
    "Slices",
    "Slurm",
    "Standing",
    "TpuVm",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"luthier.launch.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'luthier.launch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
