"""Launching: one run, or the device groups of a sweep, on SLURM, Ray and Kubernetes.

What a process on another machine needs to begin is light, so names are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from luthier.facade import lazy_exports

if TYPE_CHECKING:
    from luthier.launch.doctor import Examination, examine, findings
    from luthier.launch.engine import LIVE, Engine, Job, ProcessGroup, Resources, Standing
    from luthier.launch.here import Here
    from luthier.launch.jobs import Launch, launches, make_launch, new_folder
    from luthier.launch.kubernetes import Kubernetes
    from luthier.launch.member import Rank
    from luthier.launch.ray import Ray
    from luthier.launch.ray_actors import RayRequest
    from luthier.launch.settings import EngineSetting, choose, engine_of, of_site, user_file
    from luthier.launch.slices import Slices
    from luthier.launch.slurm import Slurm
    from luthier.launch.status import standings
    from luthier.launch.tpu_vm import TpuVm

_PLACES = {
    "Engine": "engine",
    "EngineSetting": "settings",
    "Examination": "doctor",
    "Here": "here",
    "Job": "engine",
    "Kubernetes": "kubernetes",
    "LIVE": "engine",
    "Launch": "jobs",
    "ProcessGroup": "engine",
    "Rank": "member",
    "Ray": "ray",
    "RayRequest": "ray_actors",
    "Resources": "engine",
    "Slices": "slices",
    "Slurm": "slurm",
    "Standing": "engine",
    "TpuVm": "tpu_vm",
    "choose": "settings",
    "engine_of": "settings",
    "examine": "doctor",
    "findings": "doctor",
    "launches": "jobs",
    "make_launch": "jobs",
    "new_folder": "jobs",
    "of_site": "settings",
    "standings": "status",
    "user_file": "settings",
}

__all__ = [
    "LIVE",
    "Engine",
    "EngineSetting",
    "Examination",
    "Here",
    "Job",
    "Kubernetes",
    "Launch",
    "ProcessGroup",
    "Rank",
    "Ray",
    "RayRequest",
    "Resources",
    "Slices",
    "Slurm",
    "Standing",
    "TpuVm",
    "choose",
    "engine_of",
    "examine",
    "findings",
    "launches",
    "make_launch",
    "new_folder",
    "of_site",
    "standings",
    "user_file",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
