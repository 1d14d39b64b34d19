"""Search for layouts of an experiment on a slice: meshes, remat policies, microbatches.

Layouts are enumerated, ranked by the analytic model (`model`), and proposed as overrides. Each
remat policy is traced once, for all meshes and numbers of microbatches.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from luthier import graph as graphs
from luthier import layers, losses
from luthier import program as programs
from luthier.errors import BadInput, ShardingError
from luthier.graph import Graph
from luthier.parallel import ArrayInfo, array_bytes, axis_product, format_bytes, place
from luthier.parallel.slices import AXES
from luthier.parallel.specs import FSDP, Placement, fsdp_dimension
from luthier.planner.search.model import (
    MeshLayout,
    Traced,
    layout_of,
    step_time,
    temporary_bytes,
    trace,
)
from luthier.planner.targets import Chip

SEARCHED = ("data", "fsdp", "tensor")
"""Mesh axes that are searched over; experts are, too, where there are any."""

_POLICIES = (layers.NoRemat, layers.SaveProjections, layers.FullRemat)
# Residuals that are saved together, fewer and fewer: the output of attention saves most traffic.
_SAVED = (
    ("query", "key", "value", "attention_context", "mlp_gate", "mlp_up"),
    ("query", "key", "value", "attention_context"),
    ("attention_context",),
)
_CHUNKING, _PARTS = "task.chunking", (2, 4)
_MESH, _ACCUMULATION = "parallelism.mesh", "training.accumulation"
_STACKS = (layers.Scanned, layers.Unrolled, layers.Pipelined)
_MOST_WRITTEN_OUT = 32  # the time of compiling grows with the layers that are written out


@dataclasses.dataclass(frozen=True)
class RematChange:
    """A remat policy for every stack of layers.

    Args:
      name: Name in reports; empty for the policy of the experiment.
      overrides: Overrides that set it.
    """

    name: str
    overrides: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class StorageChange:
    """Dtypes that the state and the sums of gradients are stored in.

    Args:
      name: Description in reports; empty for the dtypes of the experiment.
      overrides: Overrides that set them.
    """

    name: str
    overrides: tuple[str, ...]


_STATE, _SUMS = (
    "fiddler:luthier.recipes.store_optimizer(bfloat16)",
    "fiddler:luthier.recipes.sum_gradients(bfloat16)",
)
STORAGES = (
    StorageChange("the optimizer's state is stored in bfloat16", (_STATE,)),
    StorageChange(
        "parameters (with master weights), the optimizer's state and sums of gradients are in "
        "bfloat16",
        ("fiddler:luthier.recipes.bf16_masters", _STATE, _SUMS),
    ),
    StorageChange(
        "parameters (without master weights), the optimizer's state and sums of gradients are in "
        "bfloat16",
        ("fiddler:luthier.recipes.store_parameters(bfloat16)", _STATE, _SUMS),
    ),
)
"""Changes that take less memory but change the results: proposed only where no layout fits."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout to be ranked.

    Args:
      sizes: Mesh axis to number of devices in all.
      remat: Remat policy.
      accumulation: Microbatches per step.
      overrides: Overrides that give the experiment this layout; empty where it has it.
    """

    sizes: Mapping[str, int]
    remat: RematChange
    accumulation: int
    overrides: tuple[str, ...]


def remats(graph: Graph, names: Sequence[str] = ()) -> list[RematChange]:
    """Return the remat policies to choose from, that of the experiment first.

    Args:
      graph: The experiment graph.
      names: Names of the residuals in its layers.
    """
    paths = [place.path for place in graphs.walk(graph, once=True) if _is_stack(place.value)]
    own = {_policy(graph, path) for path in paths}
    # Policies without parameters first, then those that save named residuals, of the names that the
    # layers of this model give. All stacks get the same policy.
    changes = [RematChange("", ())]
    for policy in _POLICIES:
        if not paths or own == {policy}:
            continue
        overrides = tuple(_override(graph, path, f"{policy.__name__}()") for path in paths)
        changes.append(RematChange(policy.__name__, overrides))
    for saved in _SAVED:
        there = [name for name in saved if name in names]
        if paths and there:
            written = f"SaveNamed(names={there})"
            overrides = tuple(_override(graph, path, written) for path in paths)
            changes.append(RematChange(f"SaveNamed({', '.join(there)})", overrides))
    return changes


def written_out(graph: Graph, program: programs.Program) -> RematChange | None:
    """Return the current remat policy with the layers of every loop unrolled.

    Residuals and gradients of parameters are then not copied into stacked arrays and out of them.

    Args:
      graph: The experiment graph.
      program: Its program; has the number of layers.

    Returns:
      The policy; None where no layers are in loops, or so many that compiling takes long.
    """
    # The override replaces the whole stack by one of another class, so the policy is written again
    # as its argument. Only policies whose arguments are known here can be.
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
    return RematChange("written out", tuple(overrides))


def in_chunks(
    graph: Graph, program: programs.Program, policies: Sequence[RematChange]
) -> list[RematChange]:
    """Return policies that also compute the logits of half or a quarter of a row at a time.

    Args:
      graph: The experiment graph.
      program: Its program; has the length of rows.
      policies: The policies.
    """
    # Only for tasks whose loss is not chunked yet; lengths that the chunks divide.
    task = program.experiment.task
    if not isinstance(getattr(task, "chunking", None), losses.Whole):
        return []
    length = max(e.shape[1] for e in program.batch.values() if len(e.shape) > 1)
    changes = []
    for parts in (number for number in _PARTS if length % number == 0):
        override = f"{_CHUNKING}=luthier.losses.Chunked(length={length // parts})"
        for policy in policies:
            name = f"{policy.name} Chunked({length // parts})".strip()
            changes.append(RematChange(name, (*policy.overrides, override)))
    return changes


def _kind(value: Any) -> Any:
    return getattr(value, "__fn_or_cls__", type(value))


def _is_stack(value: Any) -> bool:
    return _kind(value) in _STACKS


def _policy(graph: Graph, path: str) -> Any:
    return _kind(graphs.get(graph, f"{path}.remat"))


def _override(graph: Graph, path: str, policy: str) -> str:
    written = f"luthier.layers.{policy}"
    # A stack that is a node has the policy as an argument. One that stands in the graph as an
    # object (a default) has no path below it, and is replaced as a whole. So is one with a number
    # of layers to unroll, by a loop: on GPUs, unrolled layers keep what the policy does not.
    stack = graphs.get(graph, path)
    if hasattr(stack, "__fn_or_cls__") and getattr(stack, "unroll", 1) in (1, "auto"):
        return f"{path}.remat={written}"
    return f"{path}=luthier.layers.{_kind(stack).__name__}(remat={written})"


def candidates(
    graph: Graph, program: programs.Program, num_devices: int, policies: Sequence[RematChange]
) -> Iterator[Candidate]:
    """Yield the layouts whose arrays and batches are divisible.

    Args:
      graph: The experiment graph.
      program: Its program, on any devices.
      num_devices: Devices of the slice, or of all slices.
      policies: Remat policies.
    """
    # Meshes times accumulations times policies. The layout that the experiment has is among them,
    # without overrides, so that it is ranked with the others.
    experiment = program.experiment
    batch = experiment.training.global_batch_size
    table = experiment.parallelism.rules.activations
    own = (dict(program.sizes), experiment.training.accumulation)
    for sizes in _meshes(graph, program, num_devices):
        shards = axis_product(table.get("batch", ()), sizes)
        if batch % shards or not _divides(program, sizes):
            continue
        for accumulation in _microbatches(batch // shards, own[1]):
            if (sizes, accumulation) == own:
                changes: tuple[str, ...] = ()
            else:
                changes = _changes(graph, program, sizes, accumulation)
            for policy in policies:
                yield Candidate(sizes, policy, accumulation, (*changes, *policy.overrides))


def _meshes(graph: Graph, program: programs.Program, num_devices: int) -> Iterator[dict[str, int]]:
    # Only some axes are searched: a stage or a sequence axis needs layers made for it, so these
    # keep their sizes, and so does the number of slices along each axis. All splits of the devices
    # that are left (within a slice) over the searched axes are enumerated; the last takes the rest.
    across = program.experiment.parallelism.mesh.across_slices.sizes()
    # An expert axis without experts would only split rows, as `data` does.
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


def _divides(program: programs.Program, sizes: Mapping[str, int]) -> bool:
    """Return whether all parameters can be sharded over a mesh."""
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
    graph: Graph, program: programs.Program, sizes: Mapping[str, int], accumulation: int
) -> tuple[str, ...]:
    """Return the overrides that set the mesh and the accumulation, and no superfluous ones."""
    # The graph holds sizes within a slice, and -1 for the axis that fills the mesh. That one is
    # written out as soon as any axis changes: else it would fill up to another size than meant.
    across = program.experiment.parallelism.mesh.across_slices.sizes()
    changes = []
    for axis in AXES:
        size, path = sizes[axis] // across[axis], f"{_MESH}.{axis}"
        if graphs.evaluate(graphs.get(graph, path)) == -1:
            own = program.sizes[axis] // across[axis]
            changes += [f"{path}={size}"] if size != own or _moves(program, sizes) else []
        elif graphs.evaluate(graphs.get(graph, path)) != size:
            changes.append(f"{path}={size}")
    if accumulation != program.experiment.training.accumulation:
        changes.append(f"{_ACCUMULATION}={accumulation}")
    return tuple(changes)


def _moves(program: programs.Program, sizes: Mapping[str, int]) -> bool:
    """Return whether any axis has another size than now."""
    return dict(program.sizes) != dict(sizes)


def apply_candidate(graph: Graph, candidate: Candidate) -> Graph:
    """Return the experiment with a layout.

    Args:
      graph: The experiment graph.
      candidate: The layout.

    Raises:
      BadInput: A setting cannot be overridden.
    """
    return graphs.apply(graph, list(candidate.overrides))


def can_change(graph: Graph, policy: RematChange) -> bool:
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
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _microbatches(rows: int, own: int) -> list[int]:
    """Return the numbers of microbatches that rows can be cut into.

    They are powers of two, the number of rows, and the current number.
    """
    # Not all divisors, which a batch has many of: each is another layout of every mesh.
    wanted = {2**k for k in range(rows.bit_length())} | {rows, own}
    return sorted(number for number in wanted if rows % number == 0)


# The search: enumerate divisible layouts, rank them by the analytic model.

MARGINS: Mapping[str, float] = {"tpu": 0.9, "gpu": 0.9, "cpu": 0.9}
"""Share of a device's memory that an estimate may take, by kind of device: the model is about
within a tenth of the compiler's count."""

HOPELESS = 1.25
"""Times a device's memory from which on an estimate is believed without a compiler."""

_AS_IS = RematChange("", ())
_NUM_WRITTEN_OUT = 3


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A layout with its memory and time by the analytic model.

    Args:
      candidate: The layout.
      needed_bytes: Bytes on one device.
      step_seconds: Time of a step by the roofline, in which all terms overlap.
      serial_seconds: The same where nothing overlaps.
    """

    candidate: Candidate
    needed_bytes: int
    step_seconds: float
    serial_seconds: float

    @property
    def cost(self) -> tuple[float, int]:
        """Key by which layouts are ranked: time, a part of which does not overlap; then bytes."""
        # Of two layouts that are bound by the same term the roofline alone would be equal, whatever
        # they exchange: a tenth of what might overlap is counted. Three digits, so that times which
        # are equal as far as the model knows are ordered by memory.
        seconds = self.step_seconds + 0.1 * (self.serial_seconds - self.step_seconds)
        return float(f"{seconds:.3g}"), self.needed_bytes


def estimates(
    graph: Graph,
    program: programs.Program,
    chip: Chip,
    num_devices: int,
    make: Callable[[Graph], programs.Program],
    own: Traced | None = None,
    policies: Sequence[RematChange] | None = None,
) -> list[Estimate]:
    """Estimate all divisible layouts, the fastest first.

    Args:
      graph: The experiment graph.
      program: Its program on any devices.
      chip: Facts of one device.
      num_devices: Devices in all.
      make: Makes the program of a changed graph.
      own: The gradient of the experiment as it is, if it is traced already.
      policies: Remat policies to choose from; None means all that there are.
    """
    # Tracing is the expensive part. So each policy is traced once, and the product of policies,
    # meshes and accumulations shares these traces; chunks of logits, which double and triple the
    # policies, are combined only with the current one and those that save named residuals.
    own, found = own or trace(program, chip.platform), []
    precision = program.experiment.precision.matmul.value
    now = layout_of(program)
    if policies is None:
        every = remats(graph, own.names)
        named = [p for p in every if p == _AS_IS or p.name.startswith("SaveNamed")]
        every += in_chunks(graph, program, named)
    else:
        every = list(policies)
    policies = [policy for policy in every if can_change(graph, policy)]
    traces = {policy: _trace(graph, policy, make, own, chip.platform) for policy in policies}
    for candidate in candidates(graph, program, num_devices, policies):
        traced = traces[candidate.remat]
        layout = dataclasses.replace(
            now, sizes=candidate.sizes, accumulation=candidate.accumulation
        )
        needed = _needed_bytes(program, traced, layout, chip.platform)
        time = step_time(traced.activity, layout, chip, traced.flops, precision)
        found.append(Estimate(candidate, needed, time.step_seconds, time.serial_seconds))
    return sorted(found, key=lambda estimate: estimate.cost)


def stored_otherwise(
    graph: Graph, chip: Chip, num_devices: int, make: Callable[[Graph], programs.Program]
) -> Iterator[tuple[StorageChange, list[Estimate]]]:
    """Yield each change of storage with the layouts of the experiment that has it.

    The remat policy stays as it is.

    Args:
      graph: The experiment graph.
      chip: Facts of one device.
      num_devices: Devices in all.
      make: Makes the program of a changed graph.
    """
    for storage in STORAGES:
        try:
            changed = graphs.apply(graph, list(storage.overrides))
            program = make(changed)
        except BadInput:
            continue  # what it computes in cannot be set, or there is no state
        rows = []
        for estimate in estimates(changed, program, chip, num_devices, make, policies=[_AS_IS]):
            candidate = estimate.candidate
            overrides = (*storage.overrides, *candidate.overrides)
            candidate = dataclasses.replace(candidate, overrides=overrides)
            rows.append(dataclasses.replace(estimate, candidate=candidate))
        yield storage, rows


def find(
    graph: Graph,
    program: programs.Program,
    chip: Chip,
    num_devices: int,
    make: Callable[[Graph], programs.Program],
    own: Traced,
    limit: int | None,
    count: int,
    is_ranked_by_own: bool,
    fits: bool | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return layouts that fit, as rows of a report, and notes for its reader.

    Args:
      graph: The experiment graph.
      program: Its program on any devices.
      chip: Facts of one device.
      num_devices: Devices in all.
      make: Makes the program of a changed graph.
      own: The gradient of the experiment as it is.
      limit: Bytes of one device; None where there is no limit.
      count: Maximum number of layouts.
      is_ranked_by_own: Whether layouts must be better than the current one, in bytes and time.
      fits: Whether the current layout fits; None means that the analytic model decides.
    """
    # Layouts come first: they leave the results as they are. Only where none of them fits, the
    # reason is reported with the number of devices that would do, and layouts of changed storage
    # are proposed, which change results, as their note says.
    found = estimates(graph, program, chip, num_devices, make, own)
    # The layout without overrides is the current one. Where the program is on other devices than
    # these, it may be missing: then there is nothing to be better than, and the fastest are
    # proposed.
    than = next((e for e in found if not e.candidate.overrides), None)
    room = None if limit is None else MARGINS[chip.platform] * limit
    rows = proposals(found, room, count, than if is_ranked_by_own else None)
    if is_ranked_by_own and than is not None:
        rows += _written_out(found, than, written_out(graph, program), room)
    if rows or limit is None:
        return rows, []
    if fits is None:
        fits = than is not None and room is not None and than.needed_bytes <= room
    if fits:
        # Proposals leave out the current layout, which changes nothing.
        note = f"by the analytic model no other layout fits {num_devices} devices"
        return [], [f"{note}; the current one does"]
    held = state_bytes(program, layout_of(program))
    note = f"no layout fits {num_devices} devices: the state takes {format_bytes(held)} of "
    note += f"{format_bytes(limit)} on each"
    if found:
        least = min(e.needed_bytes for e in found)
        note += f", and the smallest of all layouts {format_bytes(least)}"
    enough = enough_devices(graph, program, chip, num_devices, own)
    notes = [note + (f"; {enough} devices would suffice" if enough else "")]
    for storage, others in stored_otherwise(graph, chip, num_devices, make):
        more = proposals(others, room, count - len(rows))
        if more:
            notes.append(f"changes what is computed: {storage.name}")
        rows += more
    return rows, notes


def enough_devices(
    graph: Graph, program: programs.Program, chip: Chip, num_devices: int, own: Traced
) -> int | None:
    """Return how many devices an experiment needs as it is stored; None if 128 times are too few.

    Args:
      graph: The experiment graph.
      program: Its program on any devices.
      chip: Facts of one device.
      num_devices: A number of devices that is too few; its doubles are tried.
      own: The gradient of the experiment.
    """
    # With the current remat policy and any accumulation: what a user gets by more devices alone.
    now = layout_of(program)
    for number in (num_devices << k for k in range(1, 8)):
        for candidate in candidates(graph, program, number, [_AS_IS]):
            sizes, accumulation = candidate.sizes, candidate.accumulation
            layout = dataclasses.replace(now, sizes=sizes, accumulation=accumulation)
            needed = _needed_bytes(program, own, layout, chip.platform)
            if needed <= MARGINS[chip.platform] * chip.limit_bytes:
                return number
    return None


def _trace(
    graph: Graph,
    policy: RematChange,
    make: Callable[[Graph], programs.Program],
    own: Traced,
    platform: str,
) -> Traced:
    if not policy.overrides:
        return own
    changed = apply_candidate(graph, Candidate({}, policy, 1, policy.overrides))
    return trace(make(changed), platform)


def state_bytes(program: programs.Program, layout: MeshLayout) -> int:
    """Return the bytes of the state on one device.

    Args:
      program: The experiment's program on any devices.
      layout: Sharding of the experiment.
    """
    return _placed_bytes(program.placements.values(), layout)


def _needed_bytes(
    program: programs.Program, traced: Traced, layout: MeshLayout, platform: str
) -> int:
    """Return the bytes of a step on one device: state, batch and temporaries."""
    guarded = 0
    if program.experiment.training.guard is not None:
        every = program.placements.items()
        moments = [each for name, each in every if name.startswith("optimizer/")]
        guarded = _placed_bytes(moments, layout)
    held = state_bytes(program, layout) + batch_bytes(program, layout)
    return held + temporary_bytes(traced.activity, layout, platform, guarded)


def _placed_bytes(placements: Iterable[Placement], layout: MeshLayout) -> int:
    # From shapes and logical axes: the program's own placements are those of its own mesh.
    total = 0
    for placement in placements:
        if placement.axes is None:
            is_split = fsdp_dimension(placement.shape, layout.sizes) is not None
            axes: tuple[str, ...] = (FSDP,) if is_split else ()
        else:
            axes = layout.axes_of(placement.axes, False)
        shards = axis_product(axes, layout.sizes)
        total += array_bytes(placement.shape, placement.dtype) // shards
    return total


def batch_bytes(program: programs.Program, layout: MeshLayout) -> int:
    """Return the bytes of a batch on one device.

    Args:
      program: The experiment's program on any devices.
      layout: Sharding of the experiment.
    """
    # The whole batch is on the devices, also with accumulation, which cuts it there.
    total, axes = 0, program.experiment.task.batch_axes
    for name, entry in program.batch.items():
        shards = axis_product(layout.axes_of(axes[name], True), layout.sizes)
        total += array_bytes(entry.shape, entry.dtype) // shards
    return total


def proposals(
    found: Sequence[Estimate], room: float | None, count: int = 3, than: Estimate | None = None
) -> list[dict[str, Any]]:
    """Return the best layouts that fit and change something, as rows of a report.

    Without `than` they are the fastest. With it they come from the Pareto front of bytes and time,
    alternating between its smallest and its fastest; those that beat `than` come first.

    Args:
      found: Layouts, the fastest first.
      room: Bytes of one device that estimates may take; None where there is no limit.
      count: Maximum number of layouts.
      than: The layout that others must be better than.
    """
    fitting = [e for e in found if room is None or e.needed_bytes <= room]
    fitting = [e for e in fitting if e.candidate.overrides]
    if than is not None:
        fitting = _by_turns(fitting, than)
    return [row_of(estimate) for estimate in fitting[:count]]


def _written_out(
    found: Sequence[Estimate], than: Estimate, policy: RematChange | None, room: float | None
) -> list[dict[str, Any]]:
    """Return the current mesh with unrolled layers, for its smallest numbers of microbatches.

    What unrolling saves is not in the model (it shows in the compiler's copies only), so they are
    estimated as the layouts that they are made of, and come last.
    """
    if policy is None:
        return []
    # Only the mesh and the policy of now, so that unrolling is the one difference beside
    # microbatches.
    same = [e for e in found if e.candidate.sizes == than.candidate.sizes]
    same = [
        e for e in same if e.candidate.remat == _AS_IS and (room is None or e.needed_bytes <= room)
    ]
    rows = []
    for estimate in sorted(same, key=lambda e: e.candidate.accumulation)[:_NUM_WRITTEN_OUT]:
        overrides = (*estimate.candidate.overrides, *policy.overrides)
        candidate = dataclasses.replace(estimate.candidate, overrides=overrides)
        rows.append(row_of(dataclasses.replace(estimate, candidate=candidate)))
    return rows


def _by_turns(found: Sequence[Estimate], than: Estimate) -> list[Estimate]:
    """Order the Pareto front of each number of microbatches, from both of its ends by turns."""
    # The front: by growing time, each layout that needs less than all faster ones. It is made for
    # each number of microbatches by itself: only a layout of as many of them beats another. The
    # compiler tries few of what is proposed, so both ends come early: each time the
    # one that is smallest, then the one that is fastest, of the best group that is not exhausted.
    front, least = list[Estimate](), dict[int, int]()
    for estimate in sorted(found, key=lambda e: (e.step_seconds, e.needed_bytes)):
        number = estimate.candidate.accumulation
        if estimate.needed_bytes < least.get(number, estimate.needed_bytes + 1):
            front.append(estimate)
            least[number] = estimate.needed_bytes
    # The model is within a tenth: what is slower by less may be faster.
    near = [e for e in front if e.step_seconds <= 1.05 * than.step_seconds]
    better = [e for e in near if e.needed_bytes <= than.needed_bytes]
    best = [e for e in better if e.step_seconds <= than.step_seconds]
    ordered: list[Estimate] = []
    for group in (best, better, near, front):
        left = [e for e in group if e not in ordered]
        while left:
            ordered.append(left.pop(0 if len(left) % 2 else -1))
    return ordered


def row_of(estimate: Estimate) -> dict[str, Any]:
    """Return a layout as a row of a report.

    Args:
      estimate: The layout.
    """
    return {
        "overrides": list(estimate.candidate.overrides),
        "needed_bytes": estimate.needed_bytes,
        "step_seconds": estimate.step_seconds,
        "is_compiled": False,
    }
