"""Collectives of a compiled program: mesh axes, counts and bytes, read from its HLO text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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
_START, _DONE = "async-collective-start", "async-collective-done"
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="[^"]*"')
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
      exposed_bytes: Of `num_bytes`, those of collectives that no matrix product overlaps; other
        operations may.
      is_across_slices: Whether they cross slices.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    num_bytes: int
    wire_bytes: int
    is_across_slices: bool = False
    exposed_bytes: int = 0


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
        exposed = 0 if _is_overlapped(module, instruction, computation) else whole
        sums = found.setdefault(key, [0, 0, 0, 0])
        for index, amount in enumerate((1, whole, wire, exposed)):
            sums[index] += times * amount
    made = [
        Collective(kind, axes, number, whole, wire, across, exposed)
        for (kind, axes, across), (number, whole, wire, exposed) in found.items()
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


def _is_overlapped(module: Module, instruction: Instruction, computation: str) -> bool:
    """Return whether matrices are multiplied while a collective runs."""
    # Either within one fusion, or between the start of the collective and its end. On TPUs, what is
    # started is handed from fusion to fusion up to that end; between slices, the end is a `recv` of
    # the same name. The end may also be in the next turn of a loop.
    start, holder = module.scheduled(instruction, computation)
    if module.multiplies(start):
        return True
    between = _RENDEZVOUS.search(start.rest) if start.opcode == "send" else None
    is_async = start.opcode.endswith("-start") or start.name.startswith(_START)
    if between is None and not is_async:
        return False
    body, handed = module.computations[holder], {start.name}
    if between is not None:
        handed = {i.name for i in body if i.opcode == "recv" and between.group() in i.rest}
    (position,) = (i for i, other in enumerate(body) if other is start)
    for later in body[position + 1 :]:
        takes = not handed.isdisjoint(later.operands)
        if takes and (later.opcode.endswith("-done") or later.name.startswith(_DONE)):
            return False
        if module.multiplies(later):
            return True
        if takes:
            handed.add(later.name)
    if holder in module.loop_bodies:
        end = start.opcode.replace("-start", "-done")
        for earlier in body[:position]:
            if earlier.opcode == end or earlier.name.startswith(_DONE):
                return False
            if module.multiplies(earlier):
                return True
    return False


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
