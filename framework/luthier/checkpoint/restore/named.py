"""Sources that use luthier's own names: other runs, and safetensors written under plain names.

Layers are found whether they are scanned, unrolled or in cycles there: a parameter of one form is
put together from the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np

from luthier.checkpoint.foreign.layers import Cycles, Slot, guess, slots
from luthier.checkpoint.foreign.layout import Index, Shape
from luthier.checkpoint.restore.source import Found, Piece, Target, Wanted
from luthier.errors import Problem

Read = Callable[[str, Index], np.ndarray]


def find(there: Mapping[str, tuple[Shape, str]], read: Read, wanted: Wanted, where: str) -> Found:
    """Find parameters among arrays of the same names.

    Args:
      there: Shapes and dtypes of the source's arrays, by name.
      read: Returns a block of one of them.
      wanted: What is looked for.
      where: What the source is called in problems.
    """
    search = _Search(there, read, where)
    problems: list[Problem] = []
    pieces: dict[str, Piece | list[Piece]] = {}
    sources = dict(wanted.taken.values())
    cycles = Cycles.find({name: target.stacked for name, target in sources.items()})
    for name, (source, target) in wanted.taken.items():
        pieces[name], wrong = search.pieces(name, source, target, cycles)
        problems += wrong
    left = {source for source, _ in wanted.skipped.values()}
    for name in sorted(set(there) - search.used):
        if name not in left and not wanted.is_skipped(name):
            shape, dtype = there[name]
            what = f"{name} {dtype}{list(shape)} of {where} has no place to go"
            problems.append(Problem(what, remedy="leave it unread: Skip(pattern)"))
    return Found(problems, pieces)


class _Search:
    """Looks up arrays by name and shape, and remembers which were used."""

    def __init__(self, there: Mapping[str, tuple[Shape, str]], read: Read, where: str):
        self._there, self._read, self._where = there, read, where
        self._slots = slots(guess({name: shape for name, (shape, _) in there.items()}))
        self.used: set[str] = set()

    def pieces(
        self, name: str, source: str, target: Target, cycles: Cycles
    ) -> tuple[Piece | list[Piece], list[Problem]]:
        """Return the piece or pieces of a parameter, and what is wrong."""
        if source in self._there and self._there[source][0] == target.shape:
            return self._piece(source, None), []
        layers = list(cycles.slots(source, target.stacked))
        problems: list[Problem] = []
        found = []
        for layer, own in layers:
            slot = self._slots.get(layer)
            called = name if name == source else f"{name} ({source} there)"
            if slot is None:
                at = "" if len(layers) == 1 else f" at {layer}"
                what = f"{called} {list(target.shape)} is not in {self._where}{at}"
                problems.append(Problem(what))
            elif slot.shape != own.shape:
                self.used.add(slot.parameter)
                what = f"{called} is {list(own.shape)} here, and {layer} {list(slot.shape)}"
                problems.append(Problem(f"{what} in {self._where}"))
            else:
                found.append(self._piece(slot.parameter, slot))
        is_whole = len(layers) == 1 and layers[0][1].index is None
        return found[0] if is_whole and found else found, problems

    def _piece(self, parameter: str, slot: Slot | None) -> Piece:
        self.used.add(parameter)
        dtype = self._there[parameter][1]
        if slot is None or slot.index is None:
            return Piece(parameter, dtype, functools.partial(self._read, parameter))
        layer = slot.index

        def read(index: Index) -> np.ndarray:
            return self._read(parameter, (slice(layer, layer + 1), *index))[0]

        return Piece(f"{parameter}[{layer}]", dtype, read)
