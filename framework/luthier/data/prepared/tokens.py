"""Tokens of many shards as one array that is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class ShardedTokens:
    """A one-dimensional array in parts, which are memory-mapped; it can be indexed by positions.

    Args:
      parts: The parts, one after another; all of one dtype.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = self._parts[0].dtype

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens."""
        return (int(self._ends[-1]),)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the tokens at positions, int64 [n]."""
        numbers = np.searchsorted(self._ends, positions, side="right")
        tokens = np.empty(len(positions), self.dtype)
        for number in np.unique(numbers):
            part = self._parts[number]
            here = numbers == number
            tokens[here] = part[positions[here] - (self._ends[number] - len(part))]
        return tokens
