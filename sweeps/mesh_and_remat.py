"""Which mesh and which rematerialization take the least time a step, as measured.

Command: luthier sweep sweeps.mesh_and_remat --devices cpu:2
Hardware: 2 CPU cores, under 5 minutes.
Expected: not measured yet.
"""

from __future__ import annotations

import fiddle as fdl

from luthier import study as studies
from sweeps import lm_learning_rate


def study() -> fdl.Config[studies.Study]:
    """Go through all combinations; what does not fit a slice is told by the gate, and not run."""
    meshes = ("data=-1", "fsdp=2", "tensor=2")
    remats = ("NoRemat", "SaveProjections", "FullRemat")
    graph = lm_learning_rate.study()
    graph.name = "mesh_and_remat"
    graph.base.training.steps.value = 20
    graph.space = fdl.Config(
        studies.Space,
        {
            "mesh": studies.Choice(
                [studies.Option(words=(f"parallelism.mesh.{m}",), name=m) for m in meshes]
            ),
            "remat": studies.Choice(
                [studies.Option(words=(f"model.stack.remat={r}()",), name=r) for r in remats]
            ),
        },
    )
    graph.objectives = [fdl.Config(studies.StepTime), fdl.Config(studies.PeakBytes)]
    graph.sampler = fdl.Config(studies.Grid)
    graph.budget = fdl.Config(studies.Budget, trials=None)
    return graph
