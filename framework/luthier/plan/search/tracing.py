"""The gradient of an experiment's loss, traced once for all meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier.plan.report.products import flops_by_dtype
from luthier.plan.search.activity import follow
from luthier.plan.search.buffers import Activity
from luthier.plan.search.compilers import COMPILERS
from luthier.plan.search.labels import Manual

_ACCUMULATION = "training.accumulation"


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the gradient of one experiment keeps and computes.

    Args:
      activity: Buffers and exchanges, by logical axes.
      flops: FLOPs over all devices by type, recomputation included.
      names: Of the residuals that layers name.
    """

    activity: Activity
    flops: Mapping[str, int]
    names: tuple[str, ...] = ()


def trace(program: programs.Program, platform: str = "cpu") -> Traced:
    """Return what the gradient of an experiment keeps and computes.

    It is traced on the mesh of the program, whose constraints tell logical axes, and without
    accumulation; other layouts come later.

    Args:
      program: The experiment's program on any devices.
      platform: What it is compiled for: `tpu`, `gpu` or `cpu`.
    """
    graph = graphs.apply(program.graph, [f"{_ACCUMULATION}=1"])
    single = program.of(graph)
    rules = program.experiment.parallelism.rules

    def gradient(leaves: Any, batch: Any) -> Any:
        with single.tracing(()) as experiment:
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
    manual = Manual(rules.activations, program.sizes)
    activity = follow(jaxpr, labels, is_parameter, manual, COMPILERS[platform])
    return Traced(activity, flops_by_dtype(jaxpr), tuple(sorted(set(_names(jaxpr)))))


def _names(jaxpr: Any) -> Iterator[str]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"]
        for inside in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inside):
                yield from _names(inside)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
