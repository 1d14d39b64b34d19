"""What is alive when a compiled program needs most memory, found from its schedule.

The compiler says how much that is; this tells what it is. Buffers that arguments come in and
results go out by are not counted: they are known by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from luthier.planner.compiled.hlo import HloArray, Instruction, Module

# What gives a name to what is there already.
_NAMES = ("parameter", "get-tuple-element", "tuple", "bitcast", "while", "optimization-barrier")
_NOTHING = ("constant", "after-all", "partition-id", "replica-id", "iota")
_IN_PLACE = ("dynamic-update-slice", "scatter")
# What starts a copy gives what it reads once more: as which of its results.
_READ_BY_START = {
    "copy-start": 1,
    "slice-start": 0,
    "all-gather-start": 0,
    "collective-permute-start": 0,
}
_DEVICE = 0

Buffer = tuple[str, str, int]
"""Computation, instruction, and which of the arrays that the instruction gives."""


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """An array that is alive at the peak.

    Args:
      array: Its shape and type on one device.
      scope: Where in the program it is made: the names around it, then the operation.
      opcode: The compiler's instruction that makes it.
    """

    array: HloArray
    scope: str
    opcode: str

    @property
    def num_bytes(self) -> int:
        """Its bytes on one device."""
        return self.array.num_bytes


def at_peak(module: Module) -> list[LiveTensor]:
    """Return the temporary arrays that are alive at the peak, the largest first.

    Args:
      module: The compiled program, with its instructions in the order in which they run.
    """
    _, buffers = _Peaks(module).of(module.entry)
    tables = module.tables
    found = []
    for computation, name, index in buffers:
        instruction = tables[computation][name]
        found.append(LiveTensor(instruction.arrays[index], instruction.scope, instruction.opcode))
    return sorted(found, key=lambda tensor: -tensor.num_bytes)


class _Peaks:
    def __init__(self, module: Module):
        self._module = module
        self._known: dict[str, tuple[int, list[Buffer]]] = {}

    def of(self, computation: str) -> tuple[int, list[Buffer]]:
        """Return the most bytes that are alive in a computation, and what is alive then."""
        if computation not in self._known:
            self._known[computation] = self._peak(computation)
        return self._known[computation]

    def _peak(self, computation: str) -> tuple[int, list[Buffer]]:
        body = self._module.computations[computation]
        held = self._buffers(computation, body)
        last: dict[Buffer, int] = {}
        for position, instruction in enumerate(body):
            for name in instruction.operands:
                last |= dict.fromkeys(_flat(held.get(name, ())), position)
        results = {b for i in body if i.is_root for b in _flat(held[i.name])}
        is_entry = computation == self._module.entry
        own = {b for b in last if b[0] == computation}
        ends = {b: len(body) if b in results else last[b] for b in own}
        alive: dict[Buffer, int] = {}
        total, most, kept = 0, 0, list[Buffer]()
        for position, instruction in enumerate(body):
            for index, array in enumerate(instruction.arrays):
                buffer = (computation, instruction.name, index)
                if buffer in own and not (is_entry and buffer in results):
                    alive[buffer] = array.num_bytes
                    total += array.num_bytes
            inner_bytes, inner = self._inside(instruction)
            dying = [b for b in alive if ends[b] == position]
            reused = self._reused(instruction, dying, alive)
            if total + inner_bytes - reused > most:
                most = total + inner_bytes - reused
                kept = [*alive, *inner]
            for buffer in dying:
                total -= alive.pop(buffer)
        return most, kept

    def _inside(self, instruction: Instruction) -> tuple[int, list[Buffer]]:
        """Return what is alive in the computations that an instruction runs."""
        names = {"while": "body", "call": "to_apply", "conditional": "branch_computations"}
        called = instruction.called.get(names.get(instruction.opcode, ""), ())
        peaks = [self.of(name) for name in called if name in self._module.computations]
        return max(peaks, key=lambda peak: peak[0], default=(0, []))

    @staticmethod
    def _reused(
        instruction: Instruction, dying: Sequence[Buffer], alive: Mapping[Buffer, int]
    ) -> int:
        """Return the bytes of a dying operand that the result of a fusion can take over."""
        if instruction.opcode != "fusion" or "kind=kLoop" not in instruction.rest:
            return 0
        sizes = {alive[b] for b in dying if b[1] != instruction.name}
        return max((a.num_bytes for a in instruction.arrays if a.num_bytes in sizes), default=0)

    def _buffers(
        self, computation: str, body: Sequence[Instruction]
    ) -> dict[str, tuple[frozenset[Buffer], ...]]:
        """Return the buffers behind every array that every instruction gives."""
        held: dict[str, tuple[frozenset[Buffer], ...]] = {}
        for instruction in body:
            reads = [held[name] for name in instruction.operands if name in held]
            held[instruction.name] = self._behind(computation, instruction, reads)
        return held

    def _behind(
        self,
        computation: str,
        instruction: Instruction,
        reads: Sequence[tuple[frozenset[Buffer], ...]],
    ) -> tuple[frozenset[Buffer], ...]:
        number, opcode = len(instruction.arrays), instruction.opcode
        nothing = (frozenset[Buffer](),) * number
        if opcode == "parameter" or opcode in _NOTHING:
            return nothing
        if opcode == "get-tuple-element":
            index = int(instruction.rest.partition("index=")[2].split(",")[0].split()[0])
            if number == 1 and index < len(reads[0]):
                return (reads[0][index],)
            return (frozenset(_flat(reads[0])),) * number
        if opcode in _NAMES or opcode.endswith("-done"):
            every = tuple(leaf for read in reads for leaf in read)
            return every if len(every) == number else (frozenset(_flat(every)),) * number
        own = [frozenset({(computation, instruction.name, i)}) for i in range(number)]
        again = _READ_BY_START.get(opcode, number)
        if again < number and len(reads) == 1 == len(reads[0]):
            own[again] = reads[0][0]
        place = self._place_of_update(instruction)
        if place is not None and place < len(reads) and len(reads[place]) == 1 == number:
            return (reads[place][0],)
        return tuple(
            leaf if array.space == _DEVICE else frozenset()
            for leaf, array in zip(own, instruction.arrays, strict=True)
        )

    def _place_of_update(self, instruction: Instruction) -> int | None:
        """Return which operand is changed in place, if one is."""
        if instruction.opcode in _IN_PLACE:
            return 0
        if instruction.opcode != "fusion" or len(instruction.arrays) != 1:
            return None
        inner = self._module.computations.get(instruction.called["calls"][0], ())
        root = next((i for i in inner if i.is_root), None)
        table = {i.name: i for i in inner}
        while root is not None and root.opcode in ("bitcast", "copy", "convert"):
            root = table.get(root.operands[0])
        if root is None or root.opcode not in _IN_PLACE:
            return None
        source = table.get(root.operands[0])
        while source is not None and source.opcode in ("bitcast", "convert"):
            source = table.get(source.operands[0])
        if source is None or source.opcode != "parameter":
            return None
        return int(source.rest.split()[0].rstrip(")"))


def _flat(leaves: Sequence[frozenset[Buffer]]) -> list[Buffer]:
    return [buffer for leaf in leaves for buffer in leaf]


# Memory of a compiled program, and what compilers say where there is too little.

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TPU = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", re.IGNORECASE)
_EXCEEDS = re.compile(
    r"\(([\d.]+)([KMGT]?)i?B?\) exceeds available \w+ \(([\d.]+)([KMGT]?)i?B?\)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """Bytes on one device, as the compiler counts them.

    Args:
      arguments: Of the state and the batch that go in.
      outputs: Of what comes out and is not in the place of an argument.
      temporaries: Of all that lives within a step beside them, where most is alive.
      host: Of what waits in the memory of the host.
    """

    arguments: int
    outputs: int
    temporaries: int
    host: int = 0

    @property
    def needed(self) -> int:
        """All that a device must have room for."""
        return self.arguments + self.outputs + self.temporaries


def memory_of(compiled: Any) -> CompiledMemory | None:
    """Return the memory of a compiled program; None where the compiler does not tell.

    The temporaries that a TPU's compiler counts hold the places of donated arguments a second time;
    what it compares with the memory of the device, and refuses, is its peak. That in turn counts
    what lives in the memory of a core, which decides for small programs only; so the less of both
    is taken. Elsewhere temporaries are what is allocated beside the arguments.

    Args:
      compiled: What `Lowered.compile` returns.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    arguments = stats.argument_size_in_bytes
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    temporaries = stats.temp_size_in_bytes
    if _platform_of(compiled) == "tpu":
        temporaries = min(temporaries, max(0, stats.peak_memory_in_bytes - arguments - outputs))
    host = stats.host_argument_size_in_bytes + stats.host_temp_size_in_bytes
    return CompiledMemory(arguments, outputs, temporaries, host)


def _platform_of(compiled: Any) -> str:
    """Return the platform that a program is compiled for, which may be absent."""
    shardings = jax.tree.leaves(compiled.output_shardings)
    return next(iter(shardings[0].device_set)).platform if shardings else ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """What a compiler says of a program that does not fit.

    Args:
      needed: Bytes that the program needs on one device; None where it is not said.
      limit: Bytes that there are; None where it is not said.
      line: The compiler's own words, in one line.
    """

    needed: int | None
    limit: int | None
    line: str


def refusal(error: Exception) -> Refusal | None:
    """Return what a compiler's error says of memory; None where it is about something else.

    Args:
      error: What `Lowered.compile` raised.
    """
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" not in text:
        return None
    found = _TPU.search(text) or _EXCEEDS.search(text)
    if found is None:
        return Refusal(None, None, text[:200])
    used, unit, limit, limit_unit = found.groups()
    return Refusal(_bytes(used, unit), _bytes(limit, limit_unit), found.group())


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit.upper()])
