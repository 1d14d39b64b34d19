"""Parser of HLO text, as compilers print it: computations, instructions, loops and their trips.

The text is the only form of a compiled program that all backends give; XLA's own sums
(`cost_analysis`) count the body of a loop once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping

from luthier.layers.declared import is_unbalanced

_ITEM_BYTES = {
    "pred": 1, "s2": 1, "u2": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2,
    "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8,
    "c128": 16, "f4e2m1fn": 0.5,
}  # fmt: skip
# One line of HLO text is one instruction:
#   [ROOT] %name = shape opcode(operands), attribute=..., calls=%computation, metadata={...}
# and one computation is a block of them: `%name (parameters) -> shape {`, up to a line with `}`.
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|branch_computations)=(\{[^}]*\}|%?[^\s,)]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SCOPE = re.compile(r'op_name="([^"]*)"')
_SPACE = re.compile(r"S\((\d+)\)")
# The instructions that multiply matrices: by themselves or within a fusion, and the libraries that
# the GPU compiler calls instead of its own kernels.
_PRODUCTS = ("dot", "convolution", "ragged-dot")
_LIBRARIES = re.compile(r'custom_call_target="__(cublas|cudnn)')


@dataclasses.dataclass(frozen=True)
class HloArray:
    """Shape and type of one array of a device.

    Args:
      dtype: Type, as XLA writes it.
      shape: Sizes of the dimensions.
      space: Memory space: 0 is the device's, 5 the host's, others are on the chip.
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
      opcode: Its operation.
      arrays: Its results; several where it returns a tuple.
      operands: Names of the instructions that it reads.
      called: Names of the computations that it runs, by their role.
      rest: Its attributes, as they are printed.
      is_root: Whether it is the result of its computation.
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
        """Bytes of its results."""
        return sum(array.num_bytes for array in self.arrays)

    @property
    def scope(self) -> str:
        """Origin in the traced program: the name scopes around it, then the operation."""
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
    def _callers(self) -> dict[str, tuple[Instruction, str]]:
        """The fusion or asynchronous start that runs a computation, and where that stands."""
        return {
            name: (instruction, holder)
            for holder, body in self.computations.items()
            for instruction in body
            for name in instruction.called.get("calls", ())
        }

    @functools.cached_property
    def loop_bodies(self) -> frozenset[str]:
        """The computations that are the bodies of loops."""
        every = (i for body in self.computations.values() for i in body)
        return frozenset(i.called["body"][0] for i in every if i.opcode == "while")

    def fused_by(self, computation: str) -> str:
        """Return the name of the fusion that runs a computation; empty if there is none.

        Args:
          computation: Its name.
        """
        caller = self._callers.get(computation)
        return caller[0].name if caller and caller[0].opcode == "fusion" else ""

    def scheduled(self, instruction: Instruction, computation: str) -> tuple[Instruction, str]:
        """Return what the device starts for an instruction: itself, or the fusion that runs it.

        Args:
          instruction: The instruction.
          computation: The computation that it belongs to.

        Returns:
          The instruction that is started, and the computation in whose order that stands.
        """
        while computation in self._callers:
            instruction, computation = self._callers[computation]
        return instruction, computation

    def multiplies(self, instruction: Instruction) -> bool:
        """Return whether an instruction multiplies matrices, by itself or in what it calls.

        Args:
          instruction: The instruction.
        """
        return self._runs(instruction, _is_product, {})

    def scatters(self, instruction: Instruction) -> bool:
        """Return whether an instruction scatters, by itself or in what it calls.

        Args:
          instruction: The instruction.
        """
        return self._runs(instruction, lambda inner: inner.opcode == "scatter", {})

    def _runs(
        self,
        instruction: Instruction,
        is_wanted: Callable[[Instruction], bool],
        known: dict[str, bool],
    ) -> bool:
        if is_wanted(instruction):
            return True
        for role in ("calls", "body", "branch_computations", "to_apply"):
            # `to_apply` of a reduction is its operator for two scalars.
            if role == "to_apply" and instruction.opcode != "call":
                continue
            for name in instruction.called.get(role, ()):
                if name not in known:
                    body = self.computations.get(name, ())
                    known[name] = any(self._runs(inner, is_wanted, known) for inner in body)
                if known[name]:
                    return True
        return False

    def trips(self, loop: Instruction) -> int:
        """Return how often the body of a loop runs, where the load of experts is balanced.

        It is 1 where that is unknown.

        Args:
          loop: A `while` instruction.
        """
        if is_unbalanced(loop.scope):
            return 0
        # Compilers annotate loops of known length; where one has not (yet), the condition compares
        # the counter with a constant.
        known = _TRIPS.search(loop.rest)
        if known:
            return int(known.group(1))
        return _counted(self.computations.get(loop.called["condition"][0], ()))

    def walk(self) -> Iterator[tuple[Instruction, int, str]]:
        """Yield the instructions that run, how often, and the computation that they belong to.

        Loops, branches and calls are entered, and so are fusions and asynchronous starts; what
        reductions apply to their elements is not.
        """
        yield from self._walk(self.entry, 1)

    def _walk(self, computation: str, times: int) -> Iterator[tuple[Instruction, int, str]]:
        for instruction in self.computations.get(computation, ()):
            yield instruction, times, computation
            if instruction.opcode == "while":
                body, trips = instruction.called["body"][0], self.trips(instruction)
                if trips:
                    yield from self._walk(body, times * trips)
                continue
            # `to_apply` of a reduction is its operator for two scalars, and no code of its own.
            for role in ("calls", "branch_computations", "to_apply"):
                if role == "to_apply" and instruction.opcode != "call":
                    continue
                for name in instruction.called.get(role, ()):
                    yield from self._walk(name, times)


def _is_product(instruction: Instruction) -> bool:
    is_library = instruction.opcode == "custom-call" and _LIBRARIES.search(instruction.rest)
    return instruction.opcode in _PRODUCTS or bool(is_library)


def parse(text: str) -> Module:
    """Return a compiled program from its printed form.

    Args:
      text: The result of `Compiled.as_text`.
    """
    # Lines that are neither the head of a computation, nor an instruction, nor a `}` (the module's
    # own head, comments) are skipped.
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
    # Not one regular expression: shapes of tuples nest, and operands may contain parentheses, so
    # both ends are found by counting. Calls are searched before the metadata, whose names are free
    # text.
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
    """Return the arrays of a printed shape, including those of nested tuples.

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
    return start + _closing(line[start + 1 :]) + 2


def _closing(text: str) -> int:
    depth = 1
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position
    return len(text)


def _counted(condition: tuple[Instruction, ...]) -> int:
    """Return the bound that a loop's counter is compared with."""
    # The loops of `lax.scan` count from zero in steps of one, so the constant in the comparison is
    # the number of turns.
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
