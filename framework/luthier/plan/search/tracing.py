"""The gradient of an experiment's loss, traced once for all meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier.parallel import activation_rules, make_mesh
from luthier.plan.report.products import flops_by_dtype
from luthier.plan.search.activity import Activity, follow

_ACCUMULATION = "training.accumulation"


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the gradient of one experiment keeps and computes.

    Args:
      activity: Buffers and exchanges, by logical axes.
      flops: FLOPs over all devices by type, recomputation included.
    """

    activity: Activity
    flops: Mapping[str, int]


def trace(program: programs.Program) -> Traced:
    """Return what the gradient of an experiment keeps and computes.

    It is traced as for one device and without accumulation: layouts come later.

    Args:
      program: The experiment's program on any devices.
    """
    graph = graphs.apply(program.graph, [f"{_ACCUMULATION}=1"])
    single = program.of(graph)
    sizes, rules = dict.fromkeys(program.sizes, 1), program.experiment.parallelism.rules
    mesh = make_mesh(sizes, [program.mesh.devices.flat[0]])

    def gradient(leaves: Any, batch: Any) -> Any:
        with single.tracing(()) as experiment, activation_rules(mesh, rules):
            return programs.gradient_of(experiment, single.named(leaves), batch)[1]

    batch = {n: jax.ShapeDtypeStruct(e.shape, e.dtype) for n, e in program.batch.items()}
    leaves = tuple(jax.ShapeDtypeStruct(p.shape, p.dtype) for p in program.placements.values())
    jaxpr = jax.make_jaxpr(gradient)(leaves, batch)
    task_axes = program.experiment.task.batch_axes
    labels = [p.axes or (None,) * len(p.shape) for p in program.placements.values()]
    is_parameter = [name.startswith("parameters/") for name in program.placements]
    for name in sorted(batch):
        axes = tuple(task_axes[name])
        labels.append((*axes, *(None,) * (len(batch[name].shape) - len(axes))))
        is_parameter.append(False)
    activity = follow(jaxpr, labels, is_parameter)
    return Traced(activity, flops_by_dtype(jaxpr))
