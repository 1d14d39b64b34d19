"""Layouts of an experiment on a slice: meshes, remat policies and microbatches, as overrides."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier import graph as graphs
from luthier import layers, losses
from luthier.errors import BadInput, ShardingError
from luthier.parallel import ArrayInfo, axis_product, place
from luthier.parallel.slices import AXES

SEARCHED = ("data", "fsdp", "tensor")
"""Mesh axes that are searched over; experts are, too, where there are any."""

_POLICIES = (layers.NoRemat, layers.SaveProjections, layers.FullRemat)
_KEPT = (
    ("query", "key", "value", "attention_context", "mlp_gate", "mlp_up"),
    ("query", "key", "value", "attention_context"),
    ("attention_context",),
)
"""Residuals that are kept together, fewer and fewer: what attention gives saves most traffic."""
_CHUNKING, _PARTS = "task.chunking", (2, 4)
_MESH, _ACCUMULATION = "parallelism.mesh", "training.accumulation"
_STACKS = (layers.Scanned, layers.Unrolled, layers.Pipelined)
_MOST_WRITTEN_OUT = 32


@dataclasses.dataclass(frozen=True)
class Remat:
    """A remat policy for every stack of layers.

    Args:
      name: What it is called; empty for what the experiment has.
      overrides: What sets it.
    """

    name: str
    overrides: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Storage:
    """What the state and the sums of gradients are stored in.

    Args:
      name: What it is called; empty for what the experiment has.
      overrides: What sets it.
    """

    name: str
    overrides: tuple[str, ...]


_STATE, _SUMS = (
    "fiddler:luthier.recipes.store_optimizer(bfloat16)",
    "fiddler:luthier.recipes.sum_gradients(bfloat16)",
)
STORAGES = (
    Storage("the optimizer's state is stored in bfloat16", (_STATE,)),
    Storage(
        "parameters (with masters), the optimizer's state and sums of gradients are in bfloat16",
        ("fiddler:luthier.recipes.bf16_masters", _STATE, _SUMS),
    ),
    Storage(
        "parameters (without masters), the optimizer's state and sums of gradients are in bfloat16",
        ("fiddler:luthier.recipes.store_parameters(bfloat16)", _STATE, _SUMS),
    ),
)
"""What takes less memory and changes what is computed: only where no layout alone fits."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout.

    Args:
      sizes: Mesh axis to number of devices in all.
      remat: The policy.
      accumulation: Microbatches of a step.
      overrides: What makes the experiment have this layout; none where it has it.
    """

    sizes: Mapping[str, int]
    remat: Remat
    accumulation: int
    overrides: tuple[str, ...]


def remats(graph: Any, names: Sequence[str] = ()) -> list[Remat]:
    """Return the remat policies to choose from, that of the experiment first.

    Args:
      graph: The experiment graph.
      names: Of the residuals that its layers name.
    """
    paths = [place.path for place in graphs.walk(graph, once=True) if _is_stack(place.value)]
    own = {_policy(graph, path) for path in paths}
    found = [Remat("", ())]
    for policy in _POLICIES:
        if not paths or own == {policy}:
            continue
        overrides = tuple(_override(graph, path, f"{policy.__name__}()") for path in paths)
        found.append(Remat(policy.__name__, overrides))
    for kept in _KEPT:
        there = [name for name in kept if name in names]
        if paths and there:
            written = f"SaveNamed(names={there})"
            overrides = tuple(_override(graph, path, written) for path in paths)
            found.append(Remat(f"SaveNamed({', '.join(there)})", overrides))
    return found


def written_out(graph: Any, program: Any) -> Remat | None:
    """Return the policy that there is, with the layers of every loop written out.

    What layers keep and what parameters get is then not copied into stacks and out of them.

    Args:
      graph: The experiment graph.
      program: Its program; tells how many layers there are.

    Returns:
      The policy; None where no layers are in loops, or so many that compiling takes long.
    """
    paths = [p.path for p in graphs.walk(graph, once=True) if _kind(p.value) is layers.Scanned]
    every = program.placements.values()
    depths = [p.shape[0] for p in every if (p.axes or ("",))[0] == "layers"]
    if not paths or max(depths, default=0) > _MOST_WRITTEN_OUT:
        return None
    overrides = []
    for path in paths:
        policy = _policy(graph, path)
        if policy not in (*_POLICIES, layers.SaveNamed):
            return None
        names = ""
        if policy is layers.SaveNamed:
            names = f"names={list(graphs.get(graph, f'{path}.remat.names'))}"
        remat = f"luthier.layers.{policy.__name__}({names})"
        overrides.append(f"{path}=luthier.layers.Unrolled(remat={remat})")
    return Remat("written out", tuple(overrides))


def in_chunks(graph: Any, program: Any, policies: Sequence[Remat]) -> list[Remat]:
    """Return policies that also compute the logits of half or a quarter of a row at a time.

    Args:
      graph: The experiment graph.
      program: Its program; tells how long rows are.
      policies: The policies.
    """
    task = program.experiment.task
    if not isinstance(getattr(task, "chunking", None), losses.Whole):
        return []
    length = max(e.shape[1] for e in program.batch.values() if len(e.shape) > 1)
    found = []
    for parts in (number for number in _PARTS if length % number == 0):
        override = f"{_CHUNKING}=luthier.losses.Chunked(length={length // parts})"
        for policy in policies:
            name = f"{policy.name} Chunked({length // parts})".strip()
            found.append(Remat(name, (*policy.overrides, override)))
    return found


def _kind(value: Any) -> Any:
    return getattr(value, "__fn_or_cls__", type(value))


def _is_stack(value: Any) -> bool:
    return _kind(value) in _STACKS


def _policy(graph: Any, path: str) -> Any:
    return _kind(graphs.get(graph, f"{path}.remat"))


def _override(graph: Any, path: str, policy: str) -> str:
    written = f"luthier.layers.{policy}"
    stack = graphs.get(graph, path)
    if hasattr(stack, "__fn_or_cls__"):
        return f"{path}.remat={written}"
    return f"{path}=luthier.layers.{type(stack).__name__}(remat={written})"


def candidates(
    graph: Any, program: Any, num_devices: int, policies: Sequence[Remat]
) -> Iterator[Candidate]:
    """Yield the layouts that can be divided.

    Args:
      graph: The experiment graph.
      program: Its program; what it is laid out on does not matter.
      num_devices: Devices of the slice, or of all slices.
      policies: Remat policies.
    """
    experiment = program.experiment
    batch = experiment.training.global_batch_size
    table = experiment.parallelism.rules.activations
    own = (dict(program.sizes), experiment.training.accumulation)
    for sizes in _meshes(graph, program, num_devices):
        shards = axis_product(table.get("batch", ()), sizes)
        if batch % shards or not _divides(program, sizes):
            continue
        for accumulation in _divisors(batch // shards):
            if (sizes, accumulation) == own:
                changes: tuple[str, ...] = ()
            else:
                changes = _changes(graph, program, sizes, accumulation)
            for policy in policies:
                yield Candidate(sizes, policy, accumulation, (*changes, *policy.overrides))


def _meshes(graph: Any, program: Any, num_devices: int) -> Iterator[dict[str, int]]:
    across = program.experiment.parallelism.mesh.across_slices.sizes()
    has_experts = any("experts" in (p.axes or ()) for p in program.placements.values())
    axes = [*SEARCHED, *(["expert"] if has_experts else [])]
    fixed = {a: size for a, size in program.sizes.items() if a not in axes}
    within = {a: size // across[a] for a, size in fixed.items()}
    left, rest = divmod(num_devices // math.prod(across.values()), math.prod(within.values()))
    if rest:
        return
    for split in itertools.product(_divisors(left), repeat=len(axes) - 1):
        last, rest = divmod(left, math.prod(split))
        if rest:
            continue
        inner = within | dict(zip(axes, (*split, last), strict=True))
        yield {axis: inner[axis] * across[axis] for axis in AXES}


def _divides(program: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether all parameters can be divided over a mesh."""
    rules = program.experiment.parallelism.rules.parameters
    infos = {
        name: ArrayInfo(p.shape, p.dtype, p.axes)
        for name, p in program.placements.items()
        if name.startswith("parameters/")
    }
    try:
        place(infos, rules, sizes)
    except ShardingError:
        return False
    return True


def _changes(
    graph: Any, program: Any, sizes: Mapping[str, int], accumulation: int
) -> tuple[str, ...]:
    """Return the overrides that make the mesh and the accumulation so, and no others."""
    across = program.experiment.parallelism.mesh.across_slices.sizes()
    found = []
    for axis in AXES:
        size, path = sizes[axis] // across[axis], f"{_MESH}.{axis}"
        if graphs.evaluate(graphs.get(graph, path)) == -1:
            own = program.sizes[axis] // across[axis]
            found += [f"{path}={size}"] if size != own or _moves(program, sizes) else []
        elif graphs.evaluate(graphs.get(graph, path)) != size:
            found.append(f"{path}={size}")
    if accumulation != program.experiment.training.accumulation:
        found.append(f"{_ACCUMULATION}={accumulation}")
    return tuple(found)


def _moves(program: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether any axis is of another size than now."""
    return dict(program.sizes) != dict(sizes)


def changed(graph: Any, candidate: Candidate) -> Any:
    """Return the experiment with a layout.

    Args:
      graph: The experiment graph.
      candidate: The layout.

    Raises:
      BadInput: A setting cannot be overridden.
    """
    return graphs.apply(graph, list(candidate.overrides))


def can_change(graph: Any, policy: Remat) -> bool:
    """Return whether the policy's overrides can be applied.

    Args:
      graph: The experiment graph.
      policy: A remat policy.
    """
    try:
        graphs.apply(graph, list(policy.overrides))
    except BadInput:
        return False
    return True


def _divisors(number: int) -> list[int]:
    """Return the divisors that are powers of two, or the number itself."""
    found = {number}
    found |= {2**k for k in range(number.bit_length()) if number % 2**k == 0}
    return sorted(found)
