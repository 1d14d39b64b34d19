"""Parameters by layer, whatever the stack: scanned, unrolled, or in cycles.

The same layers are `blocks.mlp.kernel` with a leading axis where they are scanned,
`blocks.3.mlp.kernel` where they are unrolled, and `blocks.cycle.1.mlp.kernel` where a few kinds
take turns. A *slot* is the place of one layer's array, under the unrolled name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from luthier.checkpoint.foreign.layout import Shape

_BLOCKS = re.compile(r"((?:.*?\.)?blocks)\.(.+)")
_CYCLE = re.compile(r"cycle\.(\d+)\.(.+)")
_REST = re.compile(r"rest\.(\d+)\.(.+)")


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where the array of one layer is.

    Args:
      parameter: Name of the parameter that holds it.
      index: Its place on the leading axis of the parameter; None where it is the whole of it.
      shape: Its shape, without the leading axis.
    """

    parameter: str
    index: int | None
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A parameter, as far as its layers are looked at.

    Args:
      shape: Its whole shape.
      is_stacked: Whether its first axis is that of the layers.
    """

    shape: Shape
    is_stacked: bool = False


@dataclasses.dataclass(frozen=True)
class Cycles:
    """How many kinds of layers take turns in each stack, and how often: `{stack: (kinds, turns)}`.

    Args:
      of: Kinds and turns by the name of the stack, such as `blocks`.
    """

    of: Mapping[str, tuple[int, int]]

    @classmethod
    def find(cls, parameters: Mapping[str, Stacked]) -> Cycles:
        """Look at the names and shapes of all parameters."""
        found: dict[str, tuple[int, int]] = {}
        for name, parameter in parameters.items():
            match = _BLOCKS.fullmatch(name)
            inside = match and _CYCLE.fullmatch(match[2])
            if match and inside:
                kinds, turns = found.get(match[1], (0, 1))
                turns = parameter.shape[0] if parameter.is_stacked else turns
                found[match[1]] = (max(kinds, int(inside[1]) + 1), turns)
        return cls(found)

    def slots(self, name: str, parameter: Stacked) -> Iterator[tuple[str, Slot]]:
        """Yield the unrolled name and the slot of every layer in a parameter, in its order."""
        match = _BLOCKS.fullmatch(name)
        if match is None:
            yield name, Slot(name, None, parameter.shape)
            return
        stack, inside = match[1], match[2]
        first, every = 0, 1
        if cycle := _CYCLE.fullmatch(inside):
            first, every, inside = int(cycle[1]), self.of[stack][0], cycle[2]
        elif rest := _REST.fullmatch(inside):
            kinds, turns = self.of.get(stack, (0, 0))
            first, inside = kinds * turns + int(rest[1]), rest[2]
        elif not parameter.is_stacked:
            yield name, Slot(name, None, parameter.shape)
            return
        if not parameter.is_stacked:
            yield f"{stack}.{first}.{inside}", Slot(name, None, parameter.shape)
            return
        for index in range(parameter.shape[0]):
            slot = Slot(name, index, parameter.shape[1:])
            yield f"{stack}.{first + index * every}.{inside}", slot


def slots(parameters: Mapping[str, Stacked]) -> dict[str, Slot]:
    """Return the slots of all parameters by unrolled name."""
    cycles = Cycles.find(parameters)
    found: dict[str, Slot] = {}
    for name, parameter in parameters.items():
        found.update(cycles.slots(name, parameter))
    return found


def guess(shapes: Mapping[str, Shape]) -> dict[str, Stacked]:
    """Return which parameters are stacked where only names and shapes are known."""
    return {name: Stacked(shape, _looks_stacked(name)) for name, shape in shapes.items()}


def is_stacked(axes: Iterable[str | None] | None) -> bool:
    """Return whether the logical axes of a parameter begin with that of the layers."""
    return axes is not None and next(iter(axes), None) == "layers"


def _looks_stacked(name: str) -> bool:
    match = _BLOCKS.fullmatch(name)
    if match is None:
        return False
    first = match[2].partition(".")[0]
    return not first.isdigit() and first != "rest"
