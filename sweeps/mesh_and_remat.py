"""Mesh and rematerialization, for the measured time of a step and its memory.

Command: luthier sweep sweeps.mesh_and_remat --devices cpu:2
Hardware: 2 CPU cores, under 5 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import study as studies
from . import lm_learning_rate


def study() -> fdl.Config[studies.Study]:
    """Measure all combinations of mesh and rematerialization that fit the devices."""
    meshes = ("data=-1", "fsdp=2", "tensor=2")
    remats = ("NoRemat", "SaveProjections", "FullRemat")
    graph = lm_learning_rate.study()
    graph.name = "mesh_and_remat"
    # Only the time and the memory of a step matter here, not what is learned.
    graph.base.training.steps.value = 20
    graph.space = fdl.Config(
        studies.Space,
        {
            "mesh": studies.Choice(
                [studies.Option(overrides=(f"parallelism.mesh.{m}",), name=m) for m in meshes]
            ),
            "remat": studies.Choice(
                [studies.Option(overrides=(f"model.stack.remat={r}()",), name=r) for r in remats]
            ),
        },
    )
    graph.objectives = [fdl.Config(studies.StepTime), fdl.Config(studies.PeakBytes)]
    graph.sampler = fdl.Config(studies.Grid)
    graph.budget = fdl.Config(studies.Budget, trials=None)
    return graph
