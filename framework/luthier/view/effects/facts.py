"""What follows from one graph, found without making an array of its state."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from luthier import graph as graphs
from luthier import plan as plans
from luthier.errors import BadInput, Problem
from luthier.parallel.bytes import array_bytes
from luthier.plan.checks import trained
from luthier.program import Experiment
from luthier.view.effects.curves import learning_rates

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What follows from an experiment on devices; plain values, so that it can be kept in a file.

    Args:
      devices: How many there are, and of what kind.
      mesh: Size of every mesh axis.
      parameters: Scalars of the model, by the first part of the parameter's name.
      trainable: The mask that says which of them are trained, in words.
      counts: `trained` scalars, `gradient bytes` of all that is trained, `steps` of the run, `rows
        per step`, and `tokens per step`, the positions that can be predicted.
      state_bytes: Bytes of the whole state by kind (parameters, optimizer, ...), replicas once.
      bytes_per_device: Bytes on one device by kind, gradients and the batch too.
      arrays: Every array of the state by name: its `shape`, `dtype`, and `spec` over the mesh.
      batch: Shape and dtype of every entry of a global batch, in words.
      flops_per_step: FLOPs of one step: `full`, `causal`, `six_n` and `hardware`.
      learning_rates: Points (step, value) of every schedule by its name.
      step: A hash of the step as the compiler is given it.
    """

    devices: str
    mesh: Mapping[str, int]
    parameters: Mapping[str, int]
    trainable: str
    counts: Mapping[str, int]
    state_bytes: Mapping[str, int]
    bytes_per_device: Mapping[str, int]
    arrays: Mapping[str, Mapping[str, Any]]
    batch: Mapping[str, str]
    flops_per_step: Mapping[str, int]
    learning_rates: Mapping[str, Points]
    step: str


def is_experiment(graph: Any) -> bool:
    """Return whether a graph describes an experiment, of which there are effects."""
    return getattr(graph, "__fn_or_cls__", None) is Experiment


def facts_of(graph: Any, devices: Sequence[jax.Device]) -> Facts:
    """Work out what follows from an experiment; its state is evaluated abstractly.

    Args:
      graph: An experiment graph.
      devices: What it would run on.

    Raises:
      BadInput: It is not an experiment, or cannot run on these devices.
    """
    if not is_experiment(graph):
        raise BadInput(Problem("effects are those of an experiment, and this graph is of another"))
    graphs.validate(graph)
    plan = plans.make(graph, devices)
    program = plan.program
    experiment = program.experiment
    state_bytes: dict[str, int] = {}
    for name, placement in program.placements.items():
        kind = name.partition("/")[0]
        size = array_bytes(placement.shape, placement.dtype)
        state_bytes[kind] = state_bytes.get(kind, 0) + size
    flops = dataclasses.asdict(plan.model_flops) | {"hardware": plan.hardware_flops}
    mask = experiment.training.trainable
    return Facts(
        devices=f"{len(devices)} x {devices[0].device_kind}",
        mesh=dict(program.sizes),
        parameters=dict(plan.parameters_by_subtree),
        trainable="all" if mask is None else str(mask),
        counts={
            "trained": plan.trained_parameters,
            "gradient bytes": sum(array_bytes(p.shape, p.dtype) for p in trained(program)),
            "steps": experiment.training.steps,
            "rows per step": experiment.training.global_batch_size,
            "tokens per step": plan.tokens_per_step,
        },
        state_bytes=state_bytes,
        bytes_per_device=dict(plan.bytes_per_device),
        arrays={
            name: {
                "shape": list(placement.shape),
                "dtype": jnp.dtype(placement.dtype).name,
                "spec": str(placement.spec),
            }
            for name, placement in program.placements.items()
        },
        batch={name: f"{entry.dtype}{list(entry.shape)}" for name, entry in program.batch.items()},
        flops_per_step=flops,
        learning_rates=learning_rates(experiment.optimizer, experiment.training.steps),
        step=hashlib.sha256(program.traced_step.lower().as_text().encode()).hexdigest(),
    )
