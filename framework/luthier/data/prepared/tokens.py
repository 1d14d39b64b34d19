"""Tokens of many shards as one stream that is never in memory as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from luthier.data.stream import Stream
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
        edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        # Runs in one part: rows are runs of tokens.
        for start, stop in itertools.pairwise([0, *edges.tolist(), len(positions)]):
            if start < stop:
                number = numbers[start]
                part = self._parts[number]
                first = self._ends[number] - len(part)
                tokens[start:stop] = part[positions[start:stop] - first]
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            what = f"{self._name}: holds tokens that are not in its vocabulary"
            remedy = "`luthier data prepare DIR --verify` tells which shard is damaged"
            raise DataError(Problem(what, remedy=remedy))
        return tokens


class ShardedStream(Stream):
    """A stream whose tokens stay on disk, and whose documents are read when they are asked for.

    Args:
      tokens: The tokens.
      read_targets: Returns the targets of each document, int64 [documents].
      num_bytes: The bytes of all documents.
    """

    def __init__(
        self, tokens: ShardedTokens, read_targets: Callable[[], np.ndarray], num_bytes: int
    ):
        # The fields of a frozen dataclass; an attribute could not be set.
        self.__dict__.update(tokens=cast(np.ndarray, tokens), num_bytes=num_bytes)
        self.__dict__.update(read_targets=read_targets)

    @property
    def num_targets(self) -> np.ndarray:  # type: ignore[override]
        """The tokens of each document and its end token; int64 [documents]; read at each use."""
        return self.__dict__["read_targets"]()
