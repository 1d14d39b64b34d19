"""Collectives of a compiled program: mesh axes, counts and bytes, read from its HLO text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from luthier.layers.declared import is_of_kernel
from luthier.planner.compiled.hlo import Instruction, Module

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
PART = "part of "
"""Prefix of the axes of groups that do not span whole axes, such as those within a slice."""

# XLA prints the groups of a collective in three forms, by version and by how regular they are:
#   replica_groups=mesh['a'=2,'b'=4] {'a'}           named axes of a mesh
#   replica_groups=[4,2]<=[2,4]T(1,0)                 an iota, reshaped and transposed
#   replica_groups={{0,1},{2,3}}                      listed
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\) )?\s*\{([^}]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
# Between TPU slices (Megascale), a collective is a `send` to the host, which the hosts exchange.
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_START = "async-collective-start"
_CHANNEL = re.compile(r"channel_id=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind along the same axes of the mesh.

    Args:
      kind: Such as `all-gather`.
      axes: The mesh axes that it runs along; `part of` them where a group is smaller, as the
        devices of one slice are on an axis that crosses slices.
      count: Number that run in a step.
      num_bytes: Bytes that each device receives by a gather, or contributes to a sum.
      wire_bytes: Bytes that each device sends, by a ring.
      is_across_slices: Whether they cross slices.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    num_bytes: int
    wire_bytes: int
    is_across_slices: bool = False


def collectives(
    module: Module, sizes: Mapping[str, int], slice_of: Sequence[int]
) -> list[Collective]:
    """Return the collectives of a step, those of most bytes first.

    Args:
      module: The compiled program.
      sizes: Mesh axis to number of devices, in the order of the mesh.
      slice_of: The slice of every device, in the order of the mesh.
    """
    # The text is read because no API of JAX lists collectives. What runs in loops counts by their
    # trips; a group of one device exchanges nothing.
    found: dict[Any, list[int]] = {}
    for instruction, times, computation in _once(module):
        kind = _kind(instruction, computation)
        assert kind is not None
        # A `send` to the host names no groups: they follow from the slices.
        if instruction.opcode == "send":
            groups = _across(slice_of)
        else:
            groups = _groups(instruction, len(slice_of))
        if all(len(group) < 2 for group in groups):
            continue
        table = module.tables[computation]
        # By operands: the result of a `-start` can be a tuple that has them in it again.
        operand = sum(table[name].num_bytes for name in instruction.operands)
        # Groups along mesh axes all have one size, so the largest is that of each.
        whole, wire = _bytes(kind, operand, max(map(len, groups)))
        across = any(len({slice_of[i] for i in group}) > 1 for group in groups)
        key = (kind, _axes(groups, kind, sizes), across)
        sums = found.setdefault(key, [0, 0, 0])
        for index, amount in enumerate((1, whole, wire)):
            sums[index] += times * amount
    made = [
        Collective(kind, axes, number, whole, wire, across)
        for (kind, axes, across), (number, whole, wire) in found.items()
    ]
    return sorted(made, key=lambda c: (-c.wire_bytes, c.kind, c.axes))


def _once(module: Module) -> Iterator[tuple[Instruction, int, str]]:
    """Yield collectives as `Module.walk` does, each as often as it runs.

    The TPU compiler prints an asynchronous collective in the fusion that starts it, in all fusions
    that compute meanwhile, which may be those of a loop, and in the one that waits for it: all on
    one channel. It runs where it is started.
    """
    # Counted by instruction, such a program had three times its collectives. A channel identifies a
    # collective only within fusions: elsewhere it runs where it stands.
    found = [row for row in module.walk() if _kind(row[0], row[2]) is not None]
    channels = [_channel(module, instruction, where) for instruction, _, where in found]
    starts = [module.fused_by(where).startswith(_START) for _, _, where in found]
    started = {channel for channel, is_start in zip(channels, starts, strict=True) if is_start}
    seen: set[str] = set()
    for row, channel, is_start in zip(found, channels, starts, strict=True):
        if channel is None or (is_start if channel in started else channel not in seen):
            yield row
        seen |= set() if channel is None else {channel}


def _channel(module: Module, instruction: Instruction, computation: str) -> str | None:
    """Return the channel of a collective within a fusion; None elsewhere, where it is by itself."""
    found = _CHANNEL.search(instruction.rest) if module.fused_by(computation) else None
    return None if found is None else found.group(1)


def _kind(instruction: Instruction, computation: str) -> str | None:
    if instruction.opcode == "send":
        found = _BETWEEN_SLICES.search(instruction.rest)
        return found.group(1).lower().replace("_", "-") if found else None
    name = instruction.opcode.removesuffix("-start")
    if name not in KINDS:
        return None
    # The TPU compiler keeps a reduce-scatter as a fusion of this name.
    fused = name == "all-reduce" and computation.startswith("all-reduce-scatter")
    return "reduce-scatter" if fused else name


def _bytes(kind: str, operand: int, size: int) -> tuple[int, int]:
    """Return the bytes of a collective, and those that a device sends for it."""
    # Rings of n devices: a gather passes each shard on n - 1 times; a reduce-scatter sends n - 1 of
    # n shards; an all-reduce is both, one after the other.
    if kind == "all-gather":
        return operand * size, operand * (size - 1)
    if kind == "all-reduce":
        return operand, 2 * operand * (size - 1) // size
    if kind in ("collective-permute", "collective-broadcast"):
        return operand, operand
    return operand, operand * (size - 1) // size


def _groups(instruction: Instruction, num_devices: int) -> list[tuple[int, ...]]:
    """Return the groups of devices that exchange, by their number in the mesh."""
    # Device ids in HLO are positions in the device assignment, which is the flattened mesh. A
    # permutation has pairs instead of groups; a device that sends to itself uses no link. Empty
    # groups, or none, mean one of all devices (XLA, "Operation semantics", AllReduce).
    rest = instruction.rest
    if found := _PAIRS.search(rest):
        pairs = re.findall(r"\{(\d+),(\d+)\}", found.group(1))
        return [(int(a), int(b)) for a, b in pairs if a != b]
    if found := _MESH.search(rest):
        axes = dict(re.findall(r"'([^']+)'=(\d+)", found.group(1)))
        taken = re.findall(r"'([^']+)'", found.group(3))
        shape = [int(size) for size in axes.values()]
        order = [i for i, name in enumerate(axes) if name not in taken]
        order += [i for i, name in enumerate(axes) if name in taken]
        # The axes that are exchanged along come last, so that each row is one group.
        size = int(np.prod([int(axes[name]) for name in taken if name in axes]))
        ids = _ids(found.group(2), num_devices).reshape(shape).transpose(order)
        return [tuple(map(int, row)) for row in ids.reshape(-1, max(size, 1))]
    if found := _IOTA.search(rest):
        shape, reshaped, order = (_numbers(text) for text in found.groups())
        ids = np.arange(num_devices).reshape(reshaped)
        ids = ids.transpose(order) if order else ids
        return [tuple(map(int, row)) for row in ids.reshape(shape)]
    found = _LISTED.search(rest)
    listed = re.findall(r"\{([\d,]*)\}", found.group(1)) if found else []
    return [tuple(_numbers(text)) for text in listed] or [tuple(range(num_devices))]


def _across(slice_of: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the groups of devices that are at the same place of every slice."""
    members: dict[int, list[int]] = {}
    for device, number in enumerate(slice_of):
        members.setdefault(number, []).append(device)
    return list(zip(*members.values(), strict=True))


def _ids(order: str | None, num_devices: int) -> Any:
    """Return the devices in the order of a printed mesh: by number, or by its `device_ids`."""
    ids = np.arange(num_devices)
    if not order:
        return ids
    iota = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", order)
    if iota is None:
        return np.array(_numbers(order))
    ids = ids.reshape(_numbers(iota.group(1)))
    return ids.transpose(_numbers(iota.group(2))).ravel() if iota.group(2) else ids.ravel()


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number]


def _axes(groups: Sequence[Sequence[int]], kind: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which groups run."""
    # An axis is one along which any member of a group differs from the first. Groups that are
    # smaller than the product of their axes are a part of these, as within a slice.
    shape = tuple(sizes.values())
    varying: set[int] = set()
    for group in groups:
        places = np.array(np.unravel_index(list(group), shape))
        varying |= {int(i) for i in np.flatnonzero((places != places[:, :1]).any(axis=1))}
    names = tuple(name for i, name in enumerate(sizes) if i in varying)
    whole = int(np.prod([sizes[name] for name in names]))
    if kind == "collective-permute" or all(len(group) == whole for group in groups):
        return names
    return (PART + " and ".join(names),)


def total(found: Sequence[Collective], is_across_slices: bool) -> int:
    """Return the bytes that each device sends in all, within slices or across them.

    Args:
      found: Collectives of a program.
      is_across_slices: Whether those between slices are counted, or those within one.
    """
    kept = (c.wire_bytes for c in found if c.is_across_slices is is_across_slices)
    return sum(kept)


# Bytes that a compiled step moves between a device and its memory.

# Instructions that move nothing by themselves; those that call computations are entered instead.
_FREE = (
    "parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "constant", "after-all", "optimization-barrier", "partition-id", "replica-id",
)  # fmt: skip
_PARTS = ("dynamic-slice", "gather", "slice")
# The instructions that multiply matrices: by themselves or within a fusion, and the libraries that
# the GPU compiler calls instead of its own kernels.
_PRODUCTS = ("dot", "convolution", "ragged-dot")
_LIBRARIES = re.compile(r'custom_call_target="__(cublas|cudnn)')
_DEVICE = 0


class Traffic(NamedTuple):
    """Bytes that one device reads and writes in a step.

    Args:
      products: By the operations that multiply matrices.
      others: By all other operations.
    """

    products: int
    others: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def memory_traffic(module: Module) -> Traffic:
    """Return the bytes that one device reads and writes in a step.

    A fusion reads its operands and writes its results once; of a slice, the slice alone is counted.
    Operations of kernels that declare their bytes (`luthier.layers.declared`) are left out.

    Args:
      module: The compiled program.
    """
    # Not XLA's `cost_analysis`, which counts the body of a loop once.
    return _of(module, module.entry)


def _of(module: Module, computation: str) -> Traffic:
    table, products, others = module.tables[computation], 0, 0
    for instruction in module.computations[computation]:
        # Of a kernel that is a loop, the loop has the kernel's name. Within the loop, what the
        # compiler adds, such as a copy, has none.
        if is_of_kernel(instruction.scope):
            continue
        if instruction.opcode == "while":
            inner, times = _of(module, instruction.called["body"][0]), module.trips(instruction)
            products, others = products + times * inner.products, others + times * inner.others
        elif instruction.opcode in ("call", "conditional"):
            roles = ("to_apply", "branch_computations")
            names = [n for role in roles for n in instruction.called.get(role, ())]
            sides = (_of(module, name) for name in names)
            inner = max(sides, key=lambda side: side.total, default=Traffic(0, 0))
            products, others = products + inner.products, others + inner.others
        elif instruction.opcode not in _FREE and not instruction.opcode.endswith("-done"):
            moved = _moved(module, instruction, table)
            if _multiplies(module, instruction):
                products += moved
            else:
                others += moved
    return Traffic(products, others)


def _multiplies(module: Module, instruction: Instruction) -> bool:
    """Return whether an instruction multiplies matrices."""
    if instruction.opcode == "fusion":
        body = module.computations[instruction.called["calls"][0]]
        return any(_multiplies(module, inner) for inner in body)
    is_library = instruction.opcode == "custom-call" and _LIBRARIES.search(instruction.rest)
    return instruction.opcode in _PRODUCTS or bool(is_library)


def _moved(module: Module, instruction: Instruction, table: Mapping[str, Instruction]) -> int:
    reads = [table[name] for name in instruction.operands]
    if instruction.opcode == "fusion":
        return _by_fusion(module.computations[instruction.called["calls"][0]], instruction, reads)
    # A slice or an update in place moves its part, however large the whole array is: read and
    # written. What starts asynchronously is written by its end, which is not counted again.
    if instruction.opcode in _PARTS:
        return 2 * _in_memory(instruction)
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * _in_memory(reads[-1 if instruction.opcode == "scatter" else 1])
    written = 0 if instruction.opcode.endswith("-start") else _in_memory(instruction)
    return written + sum(map(_in_memory, reads))


def _by_fusion(
    body: Sequence[Instruction], fusion: Instruction, reads: Sequence[Instruction]
) -> int:
    """Return the bytes that a fusion moves: the parts of parameters that it reads, and results."""
    # Scanned layers make this matter: a fusion that takes one layer's slice from a stack has the
    # whole stack as its operand, and one that writes a residual into a stack has it as its result.
    # As operands they would be counted once per layer, in full.
    users: dict[str, list[Instruction]] = {}
    for inner in body:
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    table = {inner.name: inner for inner in body}
    # Only a root that is an update by itself is recognized: a fusion of several results has a tuple
    # as its root, and counts whole.
    root = _renamed(next(inner for inner in body if inner.is_root), table)
    total, updated = _in_memory(fusion), ""
    if root.opcode == "dynamic-update-slice":  # what is not updated stays where it is
        updated = _renamed(table[root.operands[0]], table).name
        total = table[root.operands[1]].num_bytes
    for inner in body:
        if inner.opcode != "parameter" or inner.name == updated:
            continue
        # `parameter(3)`: the text after the opcode starts with the position among the operands.
        number = int(inner.rest.split()[0].rstrip(")"))
        whole = _in_memory(reads[number]) if number < len(reads) else 0
        used = users.get(inner.name, [])
        if used and all(user.opcode in _PARTS for user in used):
            whole = min(whole, sum(user.num_bytes for user in used))
        total += whole
    return total


def _renamed(instruction: Instruction, table: Mapping[str, Instruction]) -> Instruction:
    """Return the instruction behind bitcasts."""
    while instruction.opcode == "bitcast":
        instruction = table[instruction.operands[0]]
    return instruction


def _in_memory(instruction: Instruction) -> int:
    return sum(a.num_bytes for a in instruction.arrays if a.space == _DEVICE)
