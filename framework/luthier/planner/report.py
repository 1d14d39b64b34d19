"""The report of a plan for a slice: its parts, and how they are computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from luthier.graph import Graph
from luthier.parallel import array_bytes, format_spec
from luthier.planner.checks import trained
from luthier.planner.compiled.collectives import Collective, total
from luthier.planner.compiled.hlo import Module
from luthier.planner.compiled.memory import CompiledMemory, at_peak
from luthier.planner.flops import model_flops
from luthier.planner.parameters import VOCABULARY, sums_by_dtype
from luthier.planner.pipelines import pipelines
from luthier.planner.roofline import LAUNCH_SECONDS, Roofline
from luthier.planner.targets import Chip, CpuSlice, Slice
from luthier.program import Program
from luthier.program.offload import host_bytes
from luthier.program.step import active_shares_of

# The report of a plan for a slice: plain values that travel between processes and into files.

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The experiment and the slice of a plan.

    Args:
      experiment: Name of the experiment.
      slice: Name of the slice.
      level: `shapes`, or `compile` where the step was compiled.
      devices: `count`, `kind` and `slices`.
      mesh: Size of every mesh axis that is not 1.
      parameters: `total`, `active` for each token, `trained`, and `embedding`: those of arrays with
        a dimension for the vocabulary, if there are any.
      parameters_by_dtype: `count` and `bytes`, over all devices, by the type that is stored.
      rows: `per_step`, `per_device` at a time, and `accumulation`.
      tokens_per_step: Positions in a global batch that can be predicted.
      steps: Steps of the whole run.
      checkpoint_bytes: Bytes of a checkpoint.
      has_attention: Whether a parameter has heads, on which the conventions of FLOPs differ.
    """

    experiment: str
    slice: str
    level: str
    devices: Row
    mesh: Mapping[str, int]
    parameters: Mapping[str, int]
    rows: Mapping[str, int]
    tokens_per_step: int
    steps: int
    checkpoint_bytes: int = 0
    has_attention: bool = True
    parameters_by_dtype: Mapping[str, Row] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of one device.

    Args:
      bytes_per_device: Bytes by kind.
      gradient_bytes: Bytes of the gradients; a compiler counts them as temporaries.
      residuals: Residuals that layers keep for the backward pass, by name: `name` and
        `bytes_per_device`; temporaries, too.
      live: The largest arrays at the peak: `array`, `bytes_per_device`, `scope`, `opcode`.
      needed_bytes: Total by the compiler; where nothing was compiled, by the analytic model; None
        where the compiler gives none.
      estimated_bytes: Total by the analytic model; None in plans of earlier versions.
      limit_bytes: Bytes that a program can have; None where there is no limit.
      limit_reason: Reason for which that is less than the memory of the device; may be empty.
      refusal: Error message of the compiler where the step does not fit.
    """

    bytes_per_device: Mapping[str, int]
    gradient_bytes: int = 0
    residuals: Sequence[Row] = ()
    live: Sequence[Row] = ()
    needed_bytes: int | None = None
    estimated_bytes: int | None = None
    limit_bytes: int | None = None
    limit_reason: str = ""
    refusal: str = ""

    @property
    def is_estimated(self) -> bool:
        """Whether `needed_bytes` is the total of the analytic model, and not the compiler's."""
        return self.needed_bytes is not None and self.needed_bytes == self.estimated_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step fits; None where unknown."""
        if self.refusal:
            return False
        if self.limit_bytes is None or self.needed_bytes is None:
            return None
        return self.needed_bytes <= self.limit_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Costs of an experiment on a slice, as plain values only.

    Args:
      subject: The experiment and the slice.
      memory: Memory of one device.
      flops: FLOPs of a step over all devices: `full`, `causal`, `six_n`, and `hardware` where the
        step was traced.
      flops_by_dtype: FLOPs of a step's products over all devices, by the type of the factors.
      attention_cores: The cores that `AutoAttention` chose, with the reasons.
      collectives: Each with `kind`, `axes`, `count`, `num_bytes`, `wire_bytes`,
        `is_across_slices`, and `exposed_bytes`: those during which no matrices are multiplied.
      work: What one device does in a step beside its FLOPs, where the step was compiled:
        `bytes_moved` to and from its memory, `kernels` that are started, and `scatters` of these;
        of kernels that declare their costs, only the bytes.
      pipelines: Stacks that are split over stages, by their path: `stages`, `microbatches`,
        `schedule`, `ticks` and `bubble_fraction`.
      step: The step's time by a roofline: `seconds_by_term`, `binding`, `step_seconds`,
        `serial_seconds`, `mfu`, `tokens_per_day` and `run_seconds`; `is_bound`, whether it can
        take no less; `ceilings`, the rates by which it was computed, and their `grade`. Where a
        step is too small to estimate, `reason` explains it, and times, MFU and throughput are None
        or empty.
      sharding: Every parameter: `name`, `shape`, `dtype`, `spec`, `reason`, `bytes_per_device`.
      proposals: Layouts that fit, the fastest first: `overrides`, `needed_bytes`,
        `step_seconds` (None where it is too small to estimate), and `is_compiled`.
      notes: Notes for the reader, a line each.
      timings: Seconds of each phase of the planning.
    """

    subject: Subject
    memory: MemoryUse
    flops: Mapping[str, int] = dataclasses.field(default_factory=dict)
    flops_by_dtype: Mapping[str, int] = dataclasses.field(default_factory=dict)
    attention_cores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    collectives: Sequence[Row] = ()
    work: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pipelines: Mapping[str, Row] = dataclasses.field(default_factory=dict)
    step: Row = dataclasses.field(default_factory=dict)
    sharding: Sequence[Row] = ()
    proposals: Sequence[Row] = ()
    notes: Sequence[str] = ()
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the devices; None where unknown."""
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, `fits` among them.

        Returns:
          JSON values by name.
        """
        return {**dataclasses.asdict(self), "fits": self.fits}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Return the report that `to_dict` wrote.

        Args:
          values: Plain values.

        Returns:
          The report.
        """
        kept = {name: value for name, value in values.items() if name != "fits"}
        kept |= {"subject": Subject(**kept["subject"]), "memory": MemoryUse(**kept["memory"])}
        return cls(**kept)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Report:
        """Return a report from one mapping with the fields of report, subject and memory.

        Args:
          fields: Values by the names of the fields.

        Returns:
          The report.
        """
        # Each phase of planning adds to one flat dictionary, whichever part a field belongs to;
        # this is where it is sorted. Field names are unique over the three classes.

        def those_of(kind: type) -> dict[str, Any]:
            names = {field.name for field in dataclasses.fields(kind)}
            return {name: value for name, value in fields.items() if name in names}

        memory = MemoryUse(**those_of(MemoryUse))
        return cls(subject=Subject(**those_of(Subject)), memory=memory, **those_of(cls))


# From a program on devices, and from a compiled step, to the parts of a report.

NUM_LIVE = 12
EXPERTS, HEADS = "experts", "heads"
SECONDS_PER_DAY = 86_400


def outline(graph: Graph, program: Program, slice: Slice, chip: Chip | None) -> dict[str, Any]:
    """Return the costs of an experiment on a slice that follow from shapes, as `Report` fields.

    Args:
      graph: The experiment graph.
      program: Its program on the devices of the slice, or on stand-ins.
      slice: Slice to plan for.
      chip: Facts about one device; None for an unknown one.
    """
    # Gradients have the dtype and the sharding of the parameters that are trained, which are fewer
    # than those of the state if some are frozen. State that waits on the host is not on the device.
    # None can only be `CpuSlice.chip`, the one slice whose devices are in no table: so it is a CPU.
    # Plans never pass it, as they measure the machine instead (`cpu_chip`); only tests do.
    experiment = program.experiment
    training, sizes = experiment.training, dict(program.sizes)
    placements = program.placements
    per_device: dict[str, int] = {}
    for name, placement in placements.items():
        kind = name.partition("/")[0]
        per_device[kind] = per_device.get(kind, 0) + placement.bytes_per_device
    waiting = host_bytes(placements, training.optimizer_memory)
    per_device["optimizer"] = per_device.get("optimizer", 0) - waiting
    per_device["gradients"] = sum(p.bytes_per_device for p in trained(program))
    per_device["batch"] = sum(
        array_bytes(entry.sharding.shard_shape(entry.shape), entry.dtype)
        for entry in program.batch.values()
    )
    held = parameters_of(program)
    state_bytes = sum(array_bytes(p.shape, p.dtype) for p in placements.values())
    return {
        "experiment": experiment.name,
        "slice": str(slice),
        "devices": {
            "count": slice.num_devices,
            "kind": chip.device_kind if chip else "CPU",
            "slices": slice.num_slices,
        },
        "mesh": {axis: size for axis, size in sizes.items() if size != 1},
        "parameters": held,
        "parameters_by_dtype": sums_by_dtype(
            (placement.shape, placement.dtype)
            for name, placement in placements.items()
            if name.startswith("parameters/")
        ),
        "rows": {
            "per_step": training.global_batch_size,
            "per_device": _rows_per_device(program),
            "accumulation": training.accumulation,
        },
        "steps": training.steps,
        "bytes_per_device": {kind: size for kind, size in per_device.items() if size},
        "gradient_bytes": per_device["gradients"],
        "limit_bytes": chip.limit_bytes if chip else None,
        "limit_reason": chip.limit_reason if chip else "",
        "checkpoint_bytes": state_bytes,
        "has_attention": any(HEADS in (p.axes or ()) for p in placements.values()),
        "pipelines": {p.path: p.to_dict() for p in pipelines(graph, sizes["stage"])},
        "sharding": _sharding(placements),
    }


def parameters_of(program: Program) -> dict[str, int]:
    """Count the parameters: `total`, `active` for a token, `trained`, and `embedding`."""
    # Shares of experts need the model to be built, so models without experts skip that.
    has_experts = any(EXPERTS in (p.axes or ()) for p in program.placements.values())
    shares = active_shares_of(program.experiment) if has_experts else {}
    sizes = {
        name.partition("/")[2]: math.prod(p.shape)
        for name, p in program.placements.items()
        if name.startswith("parameters/")
    }
    active = sum(round(size * shares.get(name, 1)) for name, size in sizes.items())
    trained_sizes = (math.prod(p.shape) for p in trained(program))
    found = {"total": sum(sizes.values()), "active": active, "trained": sum(trained_sizes)}
    embedding = sum(
        math.prod(p.shape)
        for name, p in program.placements.items()
        if name.startswith("parameters/") and VOCABULARY in (p.axes or ())
    )
    return found | ({"embedding": embedding} if embedding else {})


def flops_of(
    forward: jex_core.ClosedJaxpr, parameters: Mapping[str, int], tokens: int
) -> dict[str, int]:
    """Count the FLOPs that a step owes to the model, in three conventions.

    Args:
      forward: The jaxpr of the loss over the global batch.
      parameters: The result of `parameters_of`.
      tokens: Tokens in the global batch.
    """
    return dataclasses.asdict(model_flops(forward, parameters["active"], tokens))


def step_of(
    bound: Roofline, flops: Mapping[str, int], tokens: int, steps: int, peak: float
) -> dict[str, Any]:
    """Return the times, MFU and throughput that a roofline implies.

    Args:
      bound: The roofline.
      flops: FLOPs that a step owes to the model, by convention.
      tokens: Tokens in the global batch.
      steps: Steps of the run.
      peak: Peak of all devices for the dtype that most products have, in FLOPs per second.
    """
    # MFU is of the model's FLOPs, so recomputation (`hardware`) has none. What starting a program
    # takes hides the terms of a small model: then they bound neither a step nor a run.
    known = {
        "seconds_by_term": dict(bound.seconds_by_term),
        "kernel_seconds": bound.kernel_seconds,
        "binding": bound.binding,
        "serial_seconds": bound.serial_seconds,
        "bubble_fraction": bound.bubble_fraction,
        "is_bound": bound.is_bound,
        "ceilings": [dict(row) for row in bound.ceilings],
        "grade": bound.grade,
        "reason": bound.too_small,
    }
    if bound.too_small:
        nothing = dict.fromkeys(("step_seconds", "serial_seconds", "tokens_per_day", "run_seconds"))
        return known | nothing | {"mfu": {}}
    seconds = bound.step_seconds
    return known | {
        "step_seconds": seconds,
        "mfu": {name: n / seconds / peak for name, n in flops.items() if name != "hardware"},
        "tokens_per_day": tokens / seconds * SECONDS_PER_DAY,
        "run_seconds": seconds * steps,
    }


def roofline_seconds(step: Row) -> float:
    """Return the roofline of a report's step, also where it is too small to be a time.

    It compares steps; it is not to be shown as the time of one.

    Args:
      step: The step of a `Report`.
    """
    terms = step["seconds_by_term"].values()
    return float(max(*terms, step.get("kernel_seconds") or 0.0))


def proposal_of(row: Row) -> dict[str, Any]:
    """Return a proposal as it is reported: without a time that is too small to estimate.

    Args:
      row: A row of a search, whose `step_seconds` is a roofline.
    """
    is_too_small = row["step_seconds"] < LAUNCH_SECONDS
    return {**row, "step_seconds": None} if is_too_small else dict(row)


def compiled_parts(
    module: Module,
    memory: CompiledMemory | None,
    found: Sequence[Collective],
    held: Mapping[str, int],
) -> dict[str, Any]:
    """Return the memory and collectives of a compiled step, as fields of a `Report`.

    Args:
      module: The compiled program.
      memory: Its memory; None where the compiler gives none.
      found: Its collectives.
      held: Bytes on one device by kind, from shapes.
    """
    # The compiler knows arguments as a total only, so their kinds stay those from shapes. Gradients
    # are left out, as they are part of its temporaries. `memory.host` is not on the device: it
    # counts neither as a kind nor against the limit.
    live = at_peak(module)[:NUM_LIVE]
    parts: dict[str, Any] = {
        "level": "compile",
        "collectives": [dataclasses.asdict(c) for c in found],
        "live": [
            {
                "array": str(tensor.array),
                "bytes_per_device": tensor.num_bytes,
                "scope": readable(tensor.scope),
                "opcode": tensor.opcode,
            }
            for tensor in live
        ],
    }
    if memory is not None:
        kinds = {k: n for k, n in held.items() if k != "gradients"}
        kinds["outputs"] = memory.outputs
        kinds["temporaries"] = memory.temporaries
        parts["bytes_per_device"] = {k: n for k, n in kinds.items() if n}
        parts["needed_bytes"] = memory.needed
    return parts


def wire_bytes(found: Sequence[Collective]) -> dict[str, int]:
    """Return the bytes that a device sends within its slice and across slices."""
    return {"link_bytes": total(found, False), "network_bytes": total(found, True)}


def slices_of(slice: Slice, devices: Sequence[Any]) -> list[int]:
    """Return the slice of every device.

    Args:
      slice: Slice to plan for.
      devices: Its devices, in the order of the mesh.
    """
    # Virtual CPU devices have no slices, and some GPU devices no `slice_index`.
    if isinstance(slice, CpuSlice) or slice.num_slices == 1:
        return [0] * len(devices)
    return [int(getattr(d, "slice_index", 0)) for d in devices]


def readable(scope: str) -> str:
    """Format a name scope for readers, without the parts that every scope has.

    Args:
      scope: The names around an operation, as the compiler keeps them.
    """
    # Scopes have the transformations of JAX in them: `transpose(jvp())` is the backward pass, and
    # `rematted_computation` what `jax.checkpoint` computes again there.
    dropped = {"while", "body", "closed_call", "checkpoint", "cond", "jit(step)", "jvp()"}
    names = [name for name in scope.split("/") if name and name not in dropped]
    text = " / ".join(names).replace("transpose(jvp())", "backward")
    return text.replace("rematted_computation", "computed again")


def _rows_per_device(program: Program) -> int:
    """Return the rows of a microbatch that one device holds."""
    training = program.experiment.training
    entry = next(iter(program.batch.values()))
    rows = entry.sharding.shard_shape(entry.shape)[0]
    return rows // training.accumulation


def _sharding(placements: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name.partition("/")[2],
            "shape": list(p.shape),
            "dtype": jax.numpy.dtype(p.dtype).name,
            "spec": format_spec(p.spec) or "-",
            "reason": p.reason,
            "bytes_per_device": p.bytes_per_device,
        }
        for name, p in placements.items()
        if name.startswith("parameters/")
    ]
