"""What one device does in a compiled step: bytes to and from its memory, kernels, scatters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from luthier.layers.declared import is_of_kernel
from luthier.planner.compiled.hlo import Instruction, Module

# Instructions that move nothing by themselves; those that call computations are entered instead.
_FREE = (
    "parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "constant", "after-all", "optimization-barrier", "partition-id", "replica-id",
)  # fmt: skip
_PARTS = ("dynamic-slice", "gather", "slice")
_DEVICE = 0


class DeviceWork(NamedTuple):
    """What one device does in a step, beside its FLOPs.

    Args:
      product_bytes: Bytes that operations read and write that multiply matrices.
      other_bytes: Bytes that all other operations read and write.
      kernels: Kernels that are launched: operations that move bytes, and collectives.
      scatters: Of these, those that scatter: on GPUs, with atomic operations.
    """

    product_bytes: int = 0
    other_bytes: int = 0
    kernels: int = 0
    scatters: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that the device reads and writes."""
        return self.product_bytes + self.other_bytes

    def plus(self, more: DeviceWork, times: int = 1) -> DeviceWork:
        """Return this work and that of another part of the step.

        Args:
          more: The other part.
          times: How often it is done.
        """
        return DeviceWork(*(a + times * b for a, b in zip(self, more, strict=True)))


def device_work(module: Module) -> DeviceWork:
    """Return what one device does in a step.

    A fusion reads its operands and writes its results once; of a slice, the slice alone is counted.
    Operations of kernels that declare their bytes (`luthier.layers.declared`) are left out.

    Args:
      module: The compiled program.
    """
    # Not XLA's `cost_analysis`, which counts the body of a loop once.
    return _of(module, module.entry)


def _of(module: Module, computation: str) -> DeviceWork:
    table, found = module.tables[computation], DeviceWork()
    for instruction in module.computations[computation]:
        # Of a kernel that is a loop, the loop has the kernel's name. Within the loop, what the
        # compiler adds, such as a copy, has none.
        if is_of_kernel(instruction.scope):
            continue
        if instruction.opcode == "while":
            turn = _of(module, instruction.called["body"][0])
            found = found.plus(turn, module.trips(instruction))
        elif instruction.opcode in ("call", "conditional"):
            roles = ("to_apply", "branch_computations")
            names = [n for role in roles for n in instruction.called.get(role, ())]
            sides = (_of(module, name) for name in names)
            found = found.plus(max(sides, key=lambda side: side.num_bytes, default=DeviceWork()))
        elif instruction.opcode not in _FREE and not instruction.opcode.endswith("-done"):
            moved, is_product = _moved(module, instruction, table), module.multiplies(instruction)
            both = (moved, 0) if is_product else (0, moved)
            scatters = int(module.scatters(instruction))
            found = found.plus(DeviceWork(*both, kernels=1, scatters=scatters))
    return found


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
    # Of an array that is updated in place, the update is written, and the rest stays where it is.
    root = next(inner for inner in body if inner.is_root)
    results = [table[name] for name in root.operands] if root.opcode == "tuple" else [root]
    total, updated = 0, set()
    for result, array in zip(results, fusion.arrays, strict=False):
        result, written = _renamed(result, table), array.num_bytes
        if result.opcode == "dynamic-update-slice":
            updated.add(_renamed(table[result.operands[0]], table).name)
            written = table[result.operands[1]].num_bytes
        total += written if array.space == _DEVICE else 0
    for inner in body:
        if inner.opcode != "parameter" or inner.name in updated:
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
