"""Bytes that a compiled step moves between a device and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from luthier.plan.compiled.hlo import Instruction, Module

_FREE = (
    "parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "constant", "after-all", "optimization-barrier", "partition-id", "replica-id",
)  # fmt: skip
_PARTS = ("dynamic-slice", "gather", "slice")
_DEVICE = 0


def memory_traffic(module: Module) -> int:
    """Return the bytes that one device reads and writes in a step.

    What is fused is read and written once; of slices, the slice alone is counted.

    Args:
      module: The compiled program.
    """
    return _of(module, module.entry)


def _of(module: Module, computation: str) -> int:
    table, total = module.tables[computation], 0
    for instruction in module.computations[computation]:
        if instruction.opcode == "while":
            total += module.trips(instruction) * _of(module, instruction.called["body"][0])
        elif instruction.opcode in ("call", "conditional"):
            roles = ("to_apply", "branch_computations")
            names = [n for role in roles for n in instruction.called.get(role, ())]
            total += max((_of(module, name) for name in names), default=0)
        elif instruction.opcode not in _FREE and not instruction.opcode.endswith("-done"):
            total += _moved(module, instruction, table)
    return total


def _moved(module: Module, instruction: Instruction, table: Mapping[str, Instruction]) -> int:
    reads = [table[name] for name in instruction.operands]
    if instruction.opcode == "fusion":
        return _by_fusion(module.computations[instruction.called["calls"][0]], instruction, reads)
    if instruction.opcode in _PARTS:
        return 2 * _in_memory(instruction)
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * _in_memory(reads[-1 if instruction.opcode == "scatter" else 1])
    written = 0 if instruction.opcode.endswith("-start") else _in_memory(instruction)
    return written + sum(map(_in_memory, reads))


def _by_fusion(
    body: Sequence[Instruction], fusion: Instruction, reads: Sequence[Instruction]
) -> int:
    users: dict[str, list[Instruction]] = {}
    for inner in body:
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    table = {inner.name: inner for inner in body}
    root = _renamed(next(inner for inner in body if inner.is_root), table)
    total, updated = _in_memory(fusion), ""
    if root.opcode == "dynamic-update-slice":  # what is not updated stays where it is
        updated = _renamed(table[root.operands[0]], table).name
        total = table[root.operands[1]].num_bytes
    for inner in body:
        if inner.opcode != "parameter" or inner.name == updated:
            continue
        number = int(inner.rest.split()[0].rstrip(")"))
        whole = _in_memory(reads[number]) if number < len(reads) else 0
        used = users.get(inner.name, [])
        if used and all(user.opcode in _PARTS for user in used):
            whole = min(whole, sum(user.num_bytes for user in used))
        total += whole
    return total


def _renamed(instruction: Instruction, table: Mapping[str, Instruction]) -> Instruction:
    """Return what an instruction gives by another shape."""
    while instruction.opcode == "bitcast":
        instruction = table[instruction.operands[0]]
    return instruction


def _in_memory(instruction: Instruction) -> int:
    return sum(a.num_bytes for a in instruction.arrays if a.space == _DEVICE)
