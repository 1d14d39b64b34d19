"""Memory of a compiled program: the arrays that are alive at its peak, and the compiler's totals.

The compiler gives totals only (`memory_analysis`). The arrays are found from its schedule, which is
the order of the instructions in its HLO text. Buffers of arguments and results are not counted:
they are known by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from luthier.planner.compiled.hlo import HloArray, Instruction, Module

# Instructions whose results are their operands' buffers, by another name.
_RENAMES = ("get-tuple-element", "tuple", "bitcast")
_NAMES = ("parameter", *_RENAMES, "while", "optimization-barrier")
_NOTHING = ("constant", "after-all", "partition-id", "replica-id", "iota")
_IN_PLACE = ("dynamic-update-slice", "scatter")
# Asynchronous copies return their operand among their results: at which index.
_READ_BY_START = {
    "copy-start": 1,
    "slice-start": 0,
    "all-gather-start": 0,
    "collective-permute-start": 0,
}
_DEVICE = 0

Buffer = tuple[str, str, int]
"""Computation, instruction, and index of the result of the instruction."""


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """An array that is alive at the peak.

    Args:
      array: Its shape and type on one device.
      scope: Origin in the traced program: the name scopes around it, then the operation.
      opcode: The instruction that allocates it.
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
    """Liveness analysis of HLO: the peak of each computation, once."""

    def __init__(self, module: Module):
        self._module = module
        self._known: dict[str, tuple[int, list[Buffer]]] = {}

    def of(self, computation: str) -> tuple[int, list[Buffer]]:
        """Return the most bytes that are alive in a computation, and what is alive then."""
        if computation not in self._known:
            self._known[computation] = self._peak(computation)
        return self._known[computation]

    def _peak(self, computation: str) -> tuple[int, list[Buffer]]:
        # A sweep over the schedule. `held` maps each name to the buffers behind it (aliases through
        # tuples, loops and updates in place are resolved), so a buffer's last use is that of any of
        # its names. While an instruction runs, the peak of what it calls is added. Results of the
        # entry are outputs, which are counted elsewhere; those of an inner computation are alive to
        # its end. Only own buffers count here: those of the caller are counted there.
        body = self._module.computations[computation]
        held = self._buffers(computation, body)
        last: dict[Buffer, int] = {}
        for position, instruction in enumerate(body):
            # Naming a member of a tuple reads neither it nor the others.
            for name in () if instruction.opcode in _RENAMES else instruction.operands:
                last |= dict.fromkeys(_flat(held.get(name, ())), position)
        results = {b for i in body if i.is_root for b in _flat(held[i.name])}
        is_entry = computation == self._module.entry
        # A root that is not a tuple is read by nobody here: the buffer is that of the call.
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
        """Return the peak of the computations that an instruction runs, and the buffers of it."""
        # Fusions are not entered: inside, values are in registers.
        names = {"while": "body", "call": "to_apply", "conditional": "branch_computations"}
        called = instruction.called.get(names.get(instruction.opcode, ""), ())
        peaks = [self.of(name) for name in called if name in self._module.computations]
        return max(peaks, key=lambda peak: peak[0], default=(0, []))

    @staticmethod
    def _reused(
        instruction: Instruction, dying: Sequence[Buffer], alive: Mapping[Buffer, int]
    ) -> int:
        """Return the bytes of a dying operand that the result of a fusion can take over."""
        # Buffer assignment lets an elementwise (loop) fusion write over an operand of the same
        # size.
        if instruction.opcode != "fusion" or "kind=kLoop" not in instruction.rest:
            return 0
        sizes = {alive[b] for b in dying if b[1] != instruction.name}
        return max((a.num_bytes for a in instruction.arrays if a.num_bytes in sizes), default=0)

    def _buffers(
        self, computation: str, body: Sequence[Instruction]
    ) -> dict[str, tuple[frozenset[Buffer], ...]]:
        """Return the buffers behind every result of every instruction."""
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
        """Return the buffers behind each result of an instruction."""
        # In order: what allocates nothing; one member of a tuple; names for what exists (when
        # members cannot be matched one to one, each result stands for all: too long alive, never
        # too short); copies that return their operand; updates in place. All else allocates, unless
        # its memory is on the chip or on the host.
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
        # The result of a `-start` has the operand in it, at a place that depends on the opcode.
        # Several operands stay counted twice: too much, never too little.
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
        """Return the index of the operand that is updated in place, if one is."""
        # A fusion updates in place if its root, behind shape and dtype changes, is an update of one
        # of its parameters, behind the same: then XLA gives both one buffer.
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


# Totals by the compiler, and its errors where memory does not suffice.

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TPU = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", re.IGNORECASE)
_EXCEEDS = re.compile(
    r"\(([\d.]+)([KMGT]?)i?B?\) exceeds available \w+ \(([\d.]+)([KMGT]?)i?B?\)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """Bytes on one device, as the compiler counts them.

    Args:
      arguments: Bytes of the state and the batch.
      outputs: Bytes of results that do not reuse the buffer of a donated argument.
      temporaries: Bytes of temporaries at the peak.
      host: Bytes that are offloaded to the memory of the host.
    """

    arguments: int
    outputs: int
    temporaries: int
    host: int = 0

    @property
    def needed(self) -> int:
        """Bytes that a device needs in all."""
        return self.arguments + self.outputs + self.temporaries


def memory_of(compiled: Any) -> CompiledMemory | None:
    """Return the memory of a compiled program; None where the compiler gives none.

    Args:
      compiled: The result of `Lowered.compile`.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    arguments = stats.argument_size_in_bytes
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    temporaries = stats.temp_size_in_bytes
    # The temporaries that the TPU compiler counts include donated arguments a second time; what it
    # compares with the device's memory, and refuses, is its peak. The peak in turn includes what is
    # in the memory of a core, which matters for small programs only. So the smaller of the two is
    # taken. On other platforms temporaries are what is allocated beside the arguments.
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
    """A compiler's error about a program that does not fit.

    Args:
      needed: Bytes that the program needs on one device; None where the error does not have it.
      limit: Bytes that are available; None where the error does not have it.
      line: The compiler's own message, in one line.
    """

    needed: int | None
    limit: int | None
    line: str


def refusal(error: Exception) -> Refusal | None:
    """Return the error of a compiler that ran out of memory; None where it is about something else.

    Args:
      error: The exception that `Lowered.compile` raised.
    """
    # JAX has one exception for all errors of XLA, so kind and numbers are in its text only; `_TPU`
    # and `_EXCEEDS` are the wordings that are known.
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
