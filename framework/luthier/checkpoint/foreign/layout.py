"""How the dimensions of a foreign tensor are those of a parameter of ours, in words.

`(heads head_dim) embed -> embed heads head_dim` says that a foreign matrix has heads and head_dim
merged in its rows, and that ours has them apart, after embed. Reading from left to right is a
reshape, a transpose; from right to left it is undone. Any part of our array is read from one
block of the foreign tensor.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]
Index = tuple[slice, ...]
Fetch = Callable[[Index], np.ndarray]

_GROUP = re.compile(r"\(([^()]*)\)|(\S+)")


@dataclasses.dataclass(frozen=True)
class Layout:
    """An invertible rearrangement of dimensions.

    Args:
      text: `foreign -> ours`, names of dimensions separated by blanks; merged ones in brackets,
        the first varies slowest; `1` is a dimension of size one. Without an arrow both are alike.

    Raises:
      ValueError: The two sides do not name the same dimensions once each.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse what cannot be inverted."""
        left, right = (sorted(sum(side, ())) for side in self._sides)
        if left != right or len(set(left)) != len(left) or any(len(g) > 1 for g in self._sides[1]):
            raise ValueError(f"{self.text!r} is no rearrangement of dimensions")

    @functools.cached_property
    def _sides(self) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
        foreign, _, ours = self.text.partition("->")
        return _groups(foreign), _groups(ours or foreign)

    @property
    def rank(self) -> int:
        """The number of dimensions of ours."""
        return len(self._sides[1])

    def foreign_shape(self, shape: Sequence[int], limits: Mapping[str, int]) -> Shape:
        """Return the shape of the foreign tensor.

        Args:
          shape: The shape of ours.
          limits: For dimensions that are padded in ours, their size without.
        """
        sizes = self._sizes(shape, limits)
        return tuple(math.prod(sizes[name] for name in group) for group in self._sides[0])

    def read(
        self, fetch: Fetch, shape: Sequence[int], index: Index, limits: Mapping[str, int]
    ) -> np.ndarray:
        """Return a part of our array; reads no more of the foreign tensor than one block.

        Args:
          fetch: Returns a block of the foreign tensor.
          shape: The shape of ours, whole.
          index: The part, with a start and a stop in every dimension.
          limits: For dimensions that are padded in ours, their size without; padding is zero.
        """
        foreign, ours = self._sides
        sizes = self._sizes(shape, limits)
        ranges: dict[str, tuple[int, int]] = {}
        for group, part in zip(ours, index, strict=True):
            for name in group:
                ranges[name] = (min(part.start, sizes[name]), min(part.stop, sizes[name]))
        wanted = tuple(part.stop - part.start for part in index)
        there = tuple(_extent(ranges, group) for group in ours)
        if not math.prod(there) or not math.prod(wanted):
            return np.zeros(wanted, np.float32)
        blocks = [_block(group, sizes, ranges) for group in foreign]
        block = fetch(tuple(slice(start, stop) for start, stop, _, _ in blocks))
        block = block.reshape([n for *_, extents, _ in blocks for n in extents])
        block = block[tuple(part for *_, parts in blocks for part in parts)]
        found = block.transpose(self._order()).reshape(there)
        if there == wanted:
            return found
        return np.pad(found, [(0, w - n) for w, n in zip(wanted, there, strict=True)])

    def write(self, array: np.ndarray, limits: Mapping[str, int]) -> np.ndarray:
        """Return the foreign tensor of our array.

        Args:
          array: Ours, whole.
          limits: For dimensions that are padded in ours, their size without.
        """
        ours = self._sides[1]
        shape = self.foreign_shape(array.shape, limits)
        sizes = self._sizes(array.shape, limits)
        kept = array[tuple(slice(0, _extent_of(sizes, group)) for group in ours)]
        atoms = [name for group in ours for name in group]
        apart = kept.reshape([sizes[name] for name in atoms])
        back = np.argsort(self._order())
        return np.ascontiguousarray(apart.transpose(back).reshape(shape))

    def _order(self) -> list[int]:
        atoms = [name for group in self._sides[0] for name in group]
        return [atoms.index(name) for group in self._sides[1] for name in group]

    def _sizes(self, shape: Sequence[int], limits: Mapping[str, int]) -> dict[str, int]:
        ours = self._sides[1]
        if len(shape) != len(ours):
            raise ValueError(f"{self.text!r} does not describe {len(shape)} dimensions")
        sizes = {n: size for group, size in zip(ours, shape, strict=True) for n in group}
        return {name: min(size, limits.get(name, size)) for name, size in sizes.items()}


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    found = []
    for match in _GROUP.finditer(text):
        names = match[1].split() if match[1] is not None else [match[2]]
        found.append(tuple(name for name in names if name != "1"))
    return tuple(found)


def _extent(ranges: Mapping[str, tuple[int, int]], group: Sequence[str]) -> int:
    return math.prod(ranges[name][1] - ranges[name][0] for name in group)


def _extent_of(sizes: Mapping[str, int], group: Sequence[str]) -> int:
    return math.prod(sizes[name] for name in group)


def _block(
    group: Sequence[str], sizes: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> tuple[int, int, list[int], list[slice]]:
    """Return start and stop of the block that holds the ranges, its extents, and what is kept."""
    start, extents, parts = 0, [], []
    stop = 1
    for place, name in enumerate(group):
        first, last = ranges[name]
        inner = math.prod(sizes[other] for other in group[place + 1 :])
        start += first * inner
        stop = start + (last - first) * inner
        extents.append(last - first)
        parts.append(slice(0, last - first))
        if last - first > 1:
            rest = group[place + 1 :]
            extents += [sizes[other] for other in rest]
            parts += [slice(*ranges[other]) for other in rest]
            break
    return start, stop, extents, parts
