"""What an experiment would cost on given devices, known before it runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import Problem, ValidationError
from luthier.parallel import Placement
from luthier.plan.flops import ModelFlops, count, model_flops, trace_forward
from luthier.program.state import chosen
from luthier.program.step import rngs_of
from luthier.tasks import BatchCoupled, CoupledTask

KINDS = ("parameters", "optimizer", "ema", "variables", "guard", "step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """An experiment on devices: its program and its costs. Holds no arrays.

    Args:
      program: What will be compiled and run.
      parameters: Number of scalars in the model's parameters.
      trained_parameters: How many of them are trained.
      parameters_by_subtree: The same by the first part of the parameter's name.
      state_bytes: Bytes of the whole state, over all devices, replicas counted once.
      bytes_per_device: Bytes on one device by kind (parameters, optimizer, gradients, ...).
      tokens_per_step: Positions in a global batch that can be predicted.
      model_flops: FLOPs that a step owes to the model.
      hardware_flops: FLOPs of the step as it is run, recomputation included.
    """

    program: programs.Program
    parameters: int
    trained_parameters: int
    parameters_by_subtree: Mapping[str, int]
    state_bytes: int
    bytes_per_device: Mapping[str, int]
    tokens_per_step: int
    model_flops: ModelFlops
    hardware_flops: int

    def placements(self, kind: str = "parameters") -> dict[str, Placement]:
        """Return where every array of a kind lives, by name without the kind."""
        start = kind + "/"
        return {
            name[len(start) :]: placement
            for name, placement in self.program.placements.items()
            if name.startswith(start)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, as `plan.json` has it."""
        devices = list(self.program.mesh.devices.flat)
        return {
            "devices": {"count": len(devices), "kind": devices[0].device_kind},
            "mesh": dict(self.program.sizes),
            "parameters": self.parameters,
            "trained_parameters": self.trained_parameters,
            "parameters_by_subtree": dict(self.parameters_by_subtree),
            "state_bytes": self.state_bytes,
            "bytes_per_device": dict(self.bytes_per_device),
            "tokens_per_step": self.tokens_per_step,
            "model_flops_per_step": dataclasses.asdict(self.model_flops),
            "hardware_flops_per_step": self.hardware_flops,
            "arrays": {
                name: {
                    "shape": list(p.shape),
                    "dtype": str(jax.numpy.dtype(p.dtype)),
                    "spec": str(p.spec),
                    "reason": p.reason,
                    "bytes_per_device": p.bytes_per_device,
                }
                for name, p in self.program.placements.items()
            },
        }


def make(
    graph: Any, devices: Sequence[jax.Device] | None = None, hoist: Sequence[str] = ()
) -> Plan:
    """Work out what an experiment would cost.

    The model is built under abstract evaluation: no array is made.

    Args:
      graph: An experiment graph.
      devices: What to plan for; None means all devices of the default backend.
      hoist: Paths of numeric leaves that the compiled step takes as arguments.

    Raises:
      BadInput: Something in the graph cannot be run on these devices; all problems at once.
    """
    program = programs.make(graph, jax.devices() if devices is None else devices, hoist)
    problems = check(graph, program)
    if problems:
        raise ValidationError(problems)
    parameters: dict[str, int] = {}
    per_device = dict.fromkeys(KINDS, 0)
    state_bytes = 0
    for name, placement in program.placements.items():
        kind, _, rest = name.partition("/")
        per_device[kind] += placement.bytes_per_device
        state_bytes += math.prod(placement.shape) * jax.numpy.dtype(placement.dtype).itemsize
        if kind == "parameters":
            subtree = rest.partition(".")[0]
            parameters[subtree] = parameters.get(subtree, 0) + math.prod(placement.shape)
    trained = _trained(program)
    per_device["gradients"] = sum(p.bytes_per_device for p in trained)
    per_device["batch"] = sum(_shard_bytes(entry) for entry in program.batch.values())
    tokens = _tokens_per_step(program)
    total = sum(parameters.values())
    hardware_flops = count(program.traced_step.jaxpr).total
    return Plan(
        program=program,
        parameters=total,
        trained_parameters=sum(math.prod(p.shape) for p in trained),
        parameters_by_subtree=parameters,
        state_bytes=state_bytes,
        bytes_per_device={kind: size for kind, size in per_device.items() if size},
        tokens_per_step=tokens,
        model_flops=model_flops(trace_forward(program), total, tokens),
        hardware_flops=hardware_flops,
    )


def check(graph: Any, program: programs.Program) -> list[Problem]:
    """Return what makes an experiment unfit to run that no single component can see."""
    experiment = program.experiment
    task, training = experiment.task, experiment.training
    problems: list[Problem] = []
    for name, evaluation in experiment.evaluations.items():
        path = f"evaluations.{name}"
        if evaluation.weights is programs.Weights.EMA and training.ema is None:
            remedy = "set training.ema=Ema(decay=0.999), or weights=PARAMETERS"
            problems.append(Problem("there is no moving average", f"{path}.weights", "", remedy))
        try:
            program.abstract_batch(
                evaluation.data, evaluation.global_batch_size, f"{path}.global_batch_size"
            )
        except ValidationError as error:
            problems += error.problems
    known = dict.fromkeys(experiment.evaluations, task.metrics)
    selectors = {}
    if training.early_stopping is not None:
        selectors["training.early_stopping.metric"] = training.early_stopping.metric
    if experiment.checkpoints is not None and experiment.checkpoints.keep_best is not None:
        selectors["checkpoints.keep_best"] = experiment.checkpoints.keep_best
    for path, selector in selectors.items():
        origin = graphs.origin_of(graph, path)
        for problem in selector.check(known):
            below = f"{path}.{problem.path}" if problem.path else path
            problems.append(dataclasses.replace(problem, path=below, origin=origin))
    problems += _vocabulary(experiment) + _masks(graph, program)
    if training.accumulation > 1:
        problems += _couplings(experiment)
    return problems


def _couplings(experiment: Any) -> list[Problem]:
    """Return what keeps a batch from being cut: rows that see each other without statistics."""
    task, reasons = experiment.task, []
    if isinstance(task.reduction, BatchCoupled) and not isinstance(task, CoupledTask):
        reasons.append(task.reduction.reason)
    model = nnx.eval_shape(lambda: experiment.model(rngs=rngs_of(experiment.seed)))
    for path, module in nnx.iter_modules(model):
        reason = getattr(module, "COUPLES", None)
        if reason is not None:
            reasons.append(f"{reason} of {'.'.join(map(str, path))}")
            break  # one of many says enough
    remedy = "set training.accumulation=1"
    start = "accumulation changes a loss whose rows see each other"
    return [Problem(f"{start}: {why}", "training.accumulation", "", remedy) for why in reasons]


def _trained(program: programs.Program) -> list[Placement]:
    start = "parameters/"
    placements = {n[len(start) :]: p for n, p in program.placements.items() if n.startswith(start)}
    return list(chosen(placements, program.experiment.training.trainable).values())


def _masks(graph: Any, program: programs.Program) -> list[Problem]:
    """Return the masks of the optimizer that are for none of the trained parameters."""
    names = [placement.name.partition("/")[2] for placement in _trained(program)]
    found = []
    for problem in program.experiment.optimizer.check(names):
        path = f"optimizer.{problem.path}"
        found.append(dataclasses.replace(problem, path=path, origin=graphs.origin_of(graph, path)))
    return found


def _vocabulary(experiment: Any) -> list[Problem]:
    tokenizer = getattr(experiment.data, "tokenizer", None)
    size = getattr(experiment.model, "keywords", {}).get("vocab_size")
    if tokenizer is None or not isinstance(size, int):
        return []
    needed = tokenizer.vocab_size
    if size >= needed:
        return []
    what = f"{size} is smaller than the tokenizer's {needed} tokens"
    return [Problem(what, "model.vocab_size", remedy=f"set model.vocab_size={needed}")]


def _shard_bytes(entry: jax.ShapeDtypeStruct) -> int:
    shape = entry.sharding.shard_shape(entry.shape)
    return math.prod(shape) * entry.dtype.itemsize


def _tokens_per_step(program: programs.Program) -> int:
    task = program.experiment.task
    row = {n: np.ones((1, *entry.shape[1:]), entry.dtype) for n, entry in program.batch.items()}
    return int(task.count_tokens(row)) * program.experiment.training.global_batch_size
