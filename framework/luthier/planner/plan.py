"""Plans for local devices: the program of an experiment and its costs, before it runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from luthier import program as programs
from luthier.errors import ValidationError
from luthier.graph import Graph
from luthier.parallel import Placement, array_bytes
from luthier.planner.checks import check, trained, unsaved_residuals
from luthier.planner.flops import ModelFlops, attention_cores, model_flops, trace_forward
from luthier.planner.pipelines import Pipeline, indivisible, pipelines
from luthier.program.offload import host_bytes
from luthier.program.step import active_shares_of
from luthier.tasks.flops import count

KINDS = ("parameters", "optimizer", "ema", "variables", "guard", "step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """An experiment on devices: its program and its costs. Holds no arrays.

    Args:
      program: The program to compile and run.
      parameters: Number of scalars in the model's parameters.
      active_parameters: How many of them a token passes through on average: of the experts, those
        that are chosen.
      trained_parameters: How many of them are trained.
      parameters_by_subtree: The same by the first part of the parameter's name.
      state_bytes: Bytes of the whole state, over all devices, replicas counted once.
      bytes_per_device: Bytes on one device by kind (parameters, optimizer, gradients, ...).
      host_bytes_per_device: Bytes of the state that one device offloads to its host.
      tokens_per_step: Positions in a global batch that can be predicted.
      model_flops: FLOPs that a step owes to the model.
      hardware_flops: FLOPs of the step as it is run, recomputation and bubbles included.
      attention_cores: The cores that `AutoAttention` chose, with the reasons.
      pipelines: Stacks of layers that are split over stages.
    """

    program: programs.Program
    parameters: int
    active_parameters: int
    trained_parameters: int
    parameters_by_subtree: Mapping[str, int]
    state_bytes: int
    bytes_per_device: Mapping[str, int]
    tokens_per_step: int
    model_flops: ModelFlops
    hardware_flops: int
    attention_cores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pipelines: tuple[Pipeline, ...] = ()
    host_bytes_per_device: int = 0

    def of(self, graph: Graph) -> Plan:
        """Return the plan of a graph that differs in hoisted leaves, names and records only.

        Args:
          graph: The other graph; see `luthier.program.Program.of`.

        Returns:
          The plan.
        """
        return dataclasses.replace(self, program=self.program.of(graph))

    def placements(self, kind: str = "parameters") -> dict[str, Placement]:
        """Return where every array of a kind lives, by name without the kind.

        Args:
          kind: `parameters`, `optimizer`, `variables`, or another first part of names in the state.

        Returns:
          Placements by name.
        """
        start = kind + "/"
        return {
            name[len(start) :]: placement
            for name, placement in self.program.placements.items()
            if name.startswith(start)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, as in `plan.json`.

        Returns:
          JSON values by name.
        """
        # A file format: readers of old runs know these keys.
        devices = list(self.program.mesh.devices.flat)
        return {
            "devices": {"count": len(devices), "kind": devices[0].device_kind},
            "mesh": dict(self.program.sizes),
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "trained_parameters": self.trained_parameters,
            "parameters_by_subtree": dict(self.parameters_by_subtree),
            "state_bytes": self.state_bytes,
            "bytes_per_device": dict(self.bytes_per_device),
            "host_bytes_per_device": self.host_bytes_per_device,
            "tokens_per_step": self.tokens_per_step,
            "model_flops_per_step": dataclasses.asdict(self.model_flops),
            "hardware_flops_per_step": self.hardware_flops,
            "attention_cores": dict(self.attention_cores),
            "pipelines": {pipeline.path: pipeline.to_dict() for pipeline in self.pipelines},
            "arrays": {
                name: {
                    "shape": list(p.shape),
                    "dtype": str(p.dtype),
                    "spec": str(p.spec),
                    "reason": p.reason,
                    "bytes_per_device": p.bytes_per_device,
                }
                for name, p in self.program.placements.items()
            },
        }


def make(
    graph: Graph, devices: Sequence[jax.Device] | None = None, hoist: Sequence[str] = ()
) -> Plan:
    """Plan an experiment on devices of this process.

    The model is built under abstract evaluation: no array is made.

    Args:
      graph: An experiment graph.
      devices: Devices to plan for; None means all devices of the default backend.
      hoist: Paths of numeric leaves that the compiled step takes as arguments.

    Returns:
      The program with its costs: bytes on each device, and FLOPs of a step.

    Raises:
      BadInput: Something in the graph cannot be run on these devices; all problems at once.
    """
    # The checks come in the order of their cost, and each presupposes the ones before: sizes in the
    # graph, then the program (the model's shapes), then the experiment as a whole, then the traced
    # loss. Costs are summed only for what can run.
    devices = jax.devices() if devices is None else devices
    problems = indivisible(graph, len(devices))
    if problems:
        raise ValidationError(problems)
    program = programs.make(graph, devices, hoist)
    problems = check(graph, program)
    if problems:
        raise ValidationError(problems)
    forward = trace_forward(program)
    problems = unsaved_residuals(graph, forward)
    if problems:
        raise ValidationError(problems)
    # Names in the state are `kind/name`; the kinds of a plan are these, and what is not part of the
    # state: gradients (of what is trained) and the batch. Offloaded optimizer state is on the host.
    parameters: dict[str, int] = {}
    per_device = dict.fromkeys(KINDS, 0)
    shares, active, state_bytes = active_shares_of(program.experiment), 0, 0
    for name, placement in program.placements.items():
        kind, _, rest = name.partition("/")
        per_device[kind] += placement.bytes_per_device
        state_bytes += array_bytes(placement.shape, placement.dtype)
        if kind == "parameters":
            subtree = rest.partition(".")[0]
            size = math.prod(placement.shape)
            parameters[subtree] = parameters.get(subtree, 0) + size
            active += round(size * shares.get(rest, 1))
    on_host = host_bytes(program.placements, program.experiment.training.optimizer_memory)
    per_device["optimizer"] -= on_host
    optimized = trained(program)
    per_device["gradients"] = sum(p.bytes_per_device for p in optimized)
    per_device["batch"] = sum(_shard_bytes(entry) for entry in program.batch.values())
    tokens = tokens_per_step(program)
    total = sum(parameters.values())
    # The traced step is cached by the program, which compiles it later: nothing is traced twice.
    hardware_flops = count(program.traced_step.jaxpr).total
    return Plan(
        program=program,
        parameters=total,
        active_parameters=active,
        trained_parameters=sum(math.prod(p.shape) for p in optimized),
        parameters_by_subtree=parameters,
        state_bytes=state_bytes,
        bytes_per_device={kind: size for kind, size in per_device.items() if size},
        tokens_per_step=tokens,
        model_flops=model_flops(forward, active, tokens),
        hardware_flops=hardware_flops,
        attention_cores=attention_cores(program.traced_step.jaxpr),
        pipelines=tuple(pipelines(graph, program.sizes["stage"])),
        host_bytes_per_device=on_host,
    )


def _shard_bytes(entry: jax.ShapeDtypeStruct) -> int:
    # From the sharding, because an entry may be split along rows and along their length.
    shape = entry.sharding.shard_shape(entry.shape)
    return math.prod(shape) * entry.dtype.itemsize


def tokens_per_step(program: programs.Program) -> int:
    """Return the positions in a global batch that can be predicted.

    Args:
      program: The experiment's program.
    """
    # Only the task knows which positions have a target, and it counts them in a batch. One row of
    # ones stands for all: no padding.
    task = program.experiment.task
    row = {n: np.ones((1, *entry.shape[1:]), entry.dtype) for n, entry in program.batch.items()}
    return int(task.count_tokens(row)) * program.experiment.training.global_batch_size
