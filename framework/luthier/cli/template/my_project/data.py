"""A data set of your own: sums of two numbers, written out."""

from __future__ import annotations

import dataclasses
import zlib
from functools import cached_property
from typing import ClassVar, Literal

from luthier.data import Source


@dataclasses.dataclass(frozen=True)
class Sums(Source):
    """Every sum of two numbers below a limit, as `17+25=24`: the answer's digits come reversed.

    Reversed, because a carry goes from the last digit to the first. One sum in ten is held out.

    Args:
      limit: Both numbers are from 0 to limit - 1.
      split: `train`, or `held_out`.
    """

    RANGES: ClassVar[dict[str, str]] = {"limit": "2 <= x <= 1000"}

    limit: int
    split: Literal["train", "held_out"] = "train"

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The numbers to add; made at the first use, so that building the graph costs nothing."""
        numbers = range(self.limit)
        held_out = self.split == "held_out"
        return [(a, b) for a in numbers for b in numbers if _is_held_out(a, b) == held_out]

    def __len__(self) -> int:
        """Return the number of sums."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> bytes:
        """Return one sum as text."""
        a, b = self.pairs[index]
        return f"{a}+{b}={str(a + b)[::-1]}".encode()

    def name(self, index: int) -> str:
        """Return the name of this sum for error messages."""
        a, b = self.pairs[index]
        return f"{a}+{b}"


def _is_held_out(a: int, b: int) -> bool:
    return zlib.crc32(f"{a}+{b}".encode()) % 10 == 0
