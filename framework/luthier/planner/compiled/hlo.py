"""Compiled programs as the compiler prints them: computations, instructions, loops and their trips.

Only the printed form is the same on all backends; XLA's own sums count the body of a loop once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_ITEM_BYTES = {
    "pred": 1, "s2": 1, "u2": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2,
    "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8,
    "c128": 16, "f4e2m1fn": 0.5,
}  # fmt: skip
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|branch_computations)=(\{[^}]*\}|%?[^\s,)]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SCOPE = re.compile(r'op_name="([^"]*)"')
_SPACE = re.compile(r"S\((\d+)\)")


@dataclasses.dataclass(frozen=True)
class HloArray:
    """Shape and type of one array of a device.

    Args:
      dtype: Type, as XLA writes it.
      shape: Sizes of the dimensions.
      space: Memory that it is in: 0 is the device's, 5 the host's, others are on the chip.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @functools.cached_property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        size = _ITEM_BYTES.get(self.dtype, 1 if self.dtype.startswith("f8") else 0)
        return math.ceil(math.prod(self.shape) * size)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
      name: Its name.
      opcode: What it does.
      arrays: What it gives; several where it gives a tuple.
      operands: Names of what it reads.
      called: Names of the computations that it runs, by their role.
      rest: Its attributes, as they are printed.
      is_root: Whether it gives the result of its computation.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    called: Mapping[str, tuple[str, ...]]
    rest: str
    is_root: bool

    @functools.cached_property
    def num_bytes(self) -> int:
        """Bytes of what it gives."""
        return sum(array.num_bytes for array in self.arrays)

    @property
    def scope(self) -> str:
        """Where in the program it comes from: the names around it, then the operation."""
        found = _SCOPE.search(self.rest)
        return found.group(1) if found else ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Args:
      entry: The computation that runs first.
      computations: Instructions in their order, by computation.
    """

    entry: str
    computations: Mapping[str, tuple[Instruction, ...]]

    @functools.cached_property
    def tables(self) -> dict[str, dict[str, Instruction]]:
        """Instructions by name, by computation."""
        return {n: {i.name: i for i in body} for n, body in self.computations.items()}

    @functools.cached_property
    def _fusions(self) -> dict[str, str]:
        """The name of the fusion that runs a computation, by the computation."""
        return {
            name: instruction.name
            for body in self.computations.values()
            for instruction in body
            if instruction.opcode == "fusion"
            for name in instruction.called.get("calls", ())
        }

    def fused_by(self, computation: str) -> str:
        """Return the name of the fusion that runs a computation; nothing where none does.

        Args:
          computation: Its name.
        """
        return self._fusions.get(computation, "")

    def trips(self, loop: Instruction) -> int:
        """Return how often the body of a loop runs; 1 where nobody can tell.

        Args:
          loop: A `while` instruction.
        """
        known = _TRIPS.search(loop.rest)
        if known:
            return int(known.group(1))
        return _counted(self.computations.get(loop.called["condition"][0], ()))

    def walk(self) -> Iterator[tuple[Instruction, int, str]]:
        """Yield the instructions that run, how often, and the computation that they stand in.

        Loops, branches and calls are entered, and so are fusions and asynchronous starts; what
        reductions apply to their elements is not.
        """
        yield from self._walk(self.entry, 1)

    def _walk(self, computation: str, times: int) -> Iterator[tuple[Instruction, int, str]]:
        for instruction in self.computations.get(computation, ()):
            yield instruction, times, computation
            if instruction.opcode == "while":
                body = instruction.called["body"][0]
                yield from self._walk(body, times * self.trips(instruction))
                continue
            for role in ("calls", "branch_computations", "to_apply"):
                if role == "to_apply" and instruction.opcode != "call":
                    continue
                for name in instruction.called.get(role, ()):
                    yield from self._walk(name, times)


def parse(text: str) -> Module:
    """Return a compiled program from its printed form.

    Args:
      text: What `Compiled.as_text` returns.
    """
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name, body = "", "", list[Instruction]()
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name, body = head.group(2), []
            entry = name if head.group(1) else entry
        elif line.startswith("}"):
            computations[name] = tuple(body)
        elif line.startswith(" "):
            instruction = _instruction(line)
            if instruction is not None:
                body.append(instruction)
    return Module(entry, computations)


def _instruction(line: str) -> Instruction | None:
    named = _NAME.match(line)
    if named is None:
        return None
    position = named.end()
    end = _end_of_shape(line, position)
    shape, after = line[position:end], line[end:].lstrip()
    opcode, _, after = after.partition("(")
    closing = _closing(after)
    given, rest = after[:closing], after[closing + 1 :]
    operands = tuple(re.findall(r"%([^\s,()]+)", given))
    if opcode in ("parameter", "constant"):
        operands, rest = (), f"{given} {rest}"
    called = {}
    for role, names in _CALLED.findall(rest.partition("metadata=")[0]):
        called[role] = tuple(n.strip().lstrip("%") for n in names.strip("{}").split(","))
    is_root = bool(named.group(1))
    return Instruction(named.group(2), opcode, arrays_of(shape), operands, called, rest, is_root)


def arrays_of(text: str) -> tuple[HloArray, ...]:
    """Return the arrays of a printed shape, those of tuples within tuples too.

    Args:
      text: A shape, such as `(f32[2,3]{1,0}, s32[])`.
    """
    found = []
    for dtype, dims, layout in _ARRAY.findall(text):
        space = _SPACE.search(layout)
        sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
        found.append(HloArray(dtype, sizes, int(space.group(1)) if space else 0))
    return tuple(found)


def _end_of_shape(line: str, start: int) -> int:
    if line[start] != "(":
        return line.index(" ", start)
    depth = 0
    for position in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if depth == 0:
            return position + 1
    return len(line)


def _closing(text: str) -> int:
    depth = 1
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position
    return len(text)


def _counted(condition: tuple[Instruction, ...]) -> int:
    """Return the bound that a loop's counter is compared with, from zero in steps of one."""
    table = {instruction.name: instruction for instruction in condition}
    root = next((i for i in condition if i.is_root), None)
    while root is not None and root.opcode == "fusion":  # the comparison alone, fused
        root = next((table[o] for o in root.operands if table[o].opcode == "constant"), None)
    if root is None:
        return 1
    reads = [root] if root.opcode == "constant" else [table.get(name) for name in root.operands]
    for read in reads:
        if read is not None and read.opcode == "constant":
            number = re.match(r"-?\d+", read.rest)
            return max(int(number.group()), 1) if number else 1
    return 1
