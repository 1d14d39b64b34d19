"""From a program on devices, and from a compiled step, to the parts of a report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from luthier.parallel import array_bytes, format_spec
from luthier.plan.checks import trained
from luthier.plan.compiled.collectives import Collective, total
from luthier.plan.compiled.hlo import Module
from luthier.plan.compiled.live import at_peak
from luthier.plan.compiled.memory import Memory
from luthier.plan.flops import model_flops
from luthier.plan.pipelines import pipelines
from luthier.plan.report.roofline import Roofline
from luthier.plan.targets import Chip, CpuSlice, Slice
from luthier.program.offload import host_bytes
from luthier.program.step import active_shares_of

NUM_LIVE = 12
EXPERTS = "experts"
SECONDS_PER_DAY = 86_400


def outline(graph: Any, program: Any, slice: Slice, chip: Chip | None) -> dict[str, Any]:
    """Return what shapes alone tell of an experiment on a slice, as fields of a `Report`.

    Args:
      graph: The experiment graph.
      program: Its program on the devices of the slice, or on stand-ins.
      slice: What is planned for.
      chip: What is known of one device; None where nothing is.
    """
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
        "rows": {
            "per_step": training.global_batch_size,
            "per_device": _rows_per_device(program),
            "accumulation": training.accumulation,
        },
        "steps": training.steps,
        "bytes_per_device": {kind: size for kind, size in per_device.items() if size},
        "gradient_bytes": per_device["gradients"],
        "limit_bytes": chip.limit_bytes if chip else None,
        "checkpoint_bytes": state_bytes,
        "pipelines": {p.path: p.to_dict() for p in pipelines(graph, sizes["stage"])},
        "sharding": _sharding(placements),
    }


def parameters_of(program: Any) -> dict[str, int]:
    """Return how many parameters there are: `total`, `active` for a token, and `trained`."""
    has_experts = any(EXPERTS in (p.axes or ()) for p in program.placements.values())
    shares = active_shares_of(program.experiment) if has_experts else {}
    sizes = {
        name.partition("/")[2]: math.prod(p.shape)
        for name, p in program.placements.items()
        if name.startswith("parameters/")
    }
    active = sum(round(size * shares.get(name, 1)) for name, size in sizes.items())
    trained_sizes = (math.prod(p.shape) for p in trained(program))
    return {"total": sum(sizes.values()), "active": active, "trained": sum(trained_sizes)}


def flops_of(forward: Any, parameters: Mapping[str, int], tokens: int) -> dict[str, int]:
    """Return the FLOPs that a step owes to the model, in three conventions.

    Args:
      forward: The jaxpr of the loss over the global batch.
      parameters: What `parameters_of` returns.
      tokens: Tokens in the global batch.
    """
    return dataclasses.asdict(model_flops(forward, parameters["active"], tokens))


def step_of(
    found: Roofline, flops: Mapping[str, int], tokens: int, steps: int, peak: float
) -> dict[str, Any]:
    """Return what a roofline means for a run.

    Args:
      found: The roofline.
      flops: FLOPs that a step owes to the model, by convention.
      tokens: Tokens in the global batch.
      steps: Steps of the run.
      peak: Peak of all devices for what the model multiplies mostly, in FLOPs per second.
    """
    seconds = found.step_seconds
    return {
        "seconds_by_term": dict(found.seconds_by_term),
        "binding": found.binding,
        "step_seconds": seconds,
        "serial_seconds": found.serial_seconds,
        "bubble_fraction": found.bubble_fraction,
        "mfu": {name: n / seconds / peak for name, n in flops.items() if name != "hardware"},
        "tokens_per_day": tokens / seconds * SECONDS_PER_DAY,
        "run_seconds": seconds * steps,
    }


def compiled_parts(
    module: Module, memory: Memory | None, found: Sequence[Collective], held: Mapping[str, int]
) -> dict[str, Any]:
    """Return what a compiled step tells, as fields of a `Report`.

    Args:
      module: The compiled program.
      memory: Its memory; None where the compiler does not tell.
      found: Its collectives.
      held: Bytes on one device by kind, from shapes.
    """
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
    """Return the bytes that a device sends within its slice and to others."""
    return {"link_bytes": total(found, False), "network_bytes": total(found, True)}


def slices_of(slice: Slice, devices: Sequence[Any]) -> list[int]:
    """Return the slice of every device.

    Args:
      slice: What is planned for.
      devices: In the order of the mesh.
    """
    if isinstance(slice, CpuSlice) or slice.num_slices == 1:
        return [0] * len(devices)
    return [int(getattr(d, "slice_index", 0)) for d in devices]


def readable(scope: str) -> str:
    """Return where an array is made as people read it, without what every scope has.

    Args:
      scope: The names around an operation, as the compiler keeps them.
    """
    dropped = {"while", "body", "closed_call", "checkpoint", "cond", "jit(step)", "jvp()"}
    names = [name for name in scope.split("/") if name and name not in dropped]
    told = " / ".join(names).replace("transpose(jvp())", "backward")
    return told.replace("rematted_computation", "computed again")


def _rows_per_device(program: Any) -> int:
    """Return the rows that one device holds at a time."""
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
