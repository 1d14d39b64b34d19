"""How pairs of sequences share the rows of a batch; swap the node."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import numpy as np


class PairPacking(abc.ABC):
    """Lays pairs out in rows, which have room for S input tokens and T targets."""

    @abc.abstractmethod
    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair, from 0 without a gap; int64 [pairs].

        Args:
          input_lengths: The input tokens of each pair, at most S; int64 [pairs].
          target_lengths: The targets of each pair, at most T; int64 [pairs].
          room: S and T.
        """


@dataclasses.dataclass(frozen=True)
class OnePair(PairPacking):
    """One pair a row: the reference for the other way."""

    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair."""
        return np.arange(len(input_lengths))


@dataclasses.dataclass(frozen=True)
class PackPairs(PairPacking):
    """Each pair in the first row with room for both of its sides, of the last rows begun.

    Args:
      open_rows: How many rows are looked at; the rest count as full.

    Source: Johnson 1973, Near-optimal bin packing algorithms (first fit), in two dimensions.
    """

    RANGES: ClassVar[dict[str, str]] = {"open_rows": "1 <= x"}

    open_rows: int = 64

    def rows(
        self, input_lengths: np.ndarray, target_lengths: np.ndarray, room: tuple[int, int]
    ) -> np.ndarray:
        """Return the row of each pair."""
        needs = np.stack([input_lengths, target_lengths], axis=1)
        left = np.zeros((self.open_rows, 2), np.int64)
        numbers = np.full(self.open_rows, -1)
        placed = np.empty(len(needs), np.int64)
        begun = 0
        for pair, need in enumerate(needs):
            fits = np.flatnonzero(np.all(left >= need, axis=1) & (numbers >= 0))
            if len(fits):
                slot = fits[np.argmin(numbers[fits])]
            else:
                slot = begun % self.open_rows
                left[slot], numbers[slot], begun = room, begun, begun + 1
            left[slot] -= need
            placed[pair] = numbers[slot]
        return placed
