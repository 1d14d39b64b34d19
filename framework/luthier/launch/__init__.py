"""Launching: one run, or the slices of a sweep, on the machines of SLURM, Ray and Kubernetes.

What a process on another machine needs to begin is light, so names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luthier.launch.engine import Engine, Gang, Job, Layout, Standing
    from luthier.launch.gang.here import Here
    from luthier.launch.gang.slices import Slices
    from luthier.launch.gang.tpu_vm import TpuVm
    from luthier.launch.kubernetes.engine import Kubernetes
    from luthier.launch.ray.engine import Ray
    from luthier.launch.slurm.engine import Slurm

_PLACES = {
    "Engine": "engine",
    "Gang": "engine",
    "Here": "gang.here",
    "Job": "engine",
    "Kubernetes": "kubernetes.engine",
    "Layout": "engine",
    "Ray": "ray.engine",
    "Slices": "gang.slices",
    "Slurm": "slurm.engine",
    "Standing": "engine",
    "TpuVm": "gang.tpu_vm",
}

__all__ = [
    "Engine",
    "Gang",
    "Here",
    "Job",
    "Kubernetes",
    "Layout",
    "Ray",
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
