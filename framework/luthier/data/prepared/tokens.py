"""Tokens of many shards as one array that is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luthier.errors import DataError, Problem


class ShardedTokens:
    """A one-dimensional array in parts, which are memory-mapped; it can be indexed by positions.

    Args:
      parts: The parts, one after another; all of one dtype.
      vocab_size: Every token is below it.
      name: What they are, for messages.
    """

    def __init__(self, parts: Sequence[np.ndarray], vocab_size: int, name: str):
        self._vocab_size, self._name = vocab_size, name
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
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            what = f"{self._name}: holds tokens that are not in its vocabulary"
            remedy = "`luthier data prepare DIR --verify` tells which shard is damaged"
            raise DataError(Problem(what, remedy=remedy))
        return tokens
