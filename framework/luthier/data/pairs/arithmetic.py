"""Generated preferences: sums, of which one answer is right."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import ClassVar, Literal

import numpy as np

from luthier.data.pairs.sources import PreferenceSource
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Arithmetic(PreferenceSource):
    """Prompts `A+B=` with the right sum chosen and a wrong one rejected.

    A and B are drawn from 0 to `largest`; the wrong answer differs by 1 to 9. Which split a prompt
    belongs to is decided by a hash of its text (1 in 10 is held out), so that no held-out prompt is
    ever trained on.

    Args:
      count: The number of prompts; one may come more than once.
      largest: The largest number that is added.
      seed: Of the numbers.
      split: `train` or `test`.
    """

    RANGES: ClassVar[dict[str, str]] = {"count": "1 <= x", "largest": "9 <= x", "seed": "0 <= x"}
    STREAM: ClassVar[tuple[str, ...]] = ("seed", "split", "largest")

    count: int = 2000
    largest: int = 99
    seed: int = 0
    split: Literal["train", "test"] = "train"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, bytes, bytes]:
        if self.split not in ("train", "test"):
            what = f"Arithmetic has no split {self.split!r}"
            raise DataError(Problem(what, remedy="it has 'train' and 'test'"))
        if not 0 <= index < self.count:
            raise IndexError(index)
        held_out = int(self.split == "test")
        random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * index + held_out]))
        while True:
            a, b = (int(number) for number in random.integers(0, self.largest + 1, 2))
            if _is_held_out(f"{a}+{b}=") == bool(held_out):
                break
        distance = int(random.integers(1, 10))
        wrong = a + b + (distance if random.integers(2) or a + b < distance else -distance)
        return f"{a}+{b}=".encode(), f"{a + b}".encode(), f"{wrong}".encode()

    def name(self, index: int) -> str:
        """Return `prompt N`, counted from 1."""
        return f"prompt {index + 1}"


def _is_held_out(prompt: str) -> bool:
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 10 == 0
