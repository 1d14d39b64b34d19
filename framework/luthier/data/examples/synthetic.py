"""Rows of random tokens, to measure speed and memory independently of the data.

Shapes: B rows, L length.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import ClassVar

import numpy as np

from luthier.data.node import DataNode, Spec
from luthier.data.order import Draws, Visit
from luthier.data.packing import INT_ENTRIES, batch_spec


@dataclasses.dataclass(frozen=True)
class RandomRows:
    """Rows whose tokens are drawn on demand: nothing is stored.

    Args:
      vocab_size: Size of the vocabulary; all tokens are below it.
      length: L.
      num_rows: The number of rows.
      seed: Seed of the tokens.
    """

    vocab_size: int
    length: int
    num_rows: int
    seed: int

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`: a row is a document."""
        return self.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        return hashlib.blake2b(repr(self).encode(), digest_size=16).hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Draw rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: a row is the same in every epoch, whatever the seed of the run.

        Returns:
          Entries [B, L] as those of `TokenNode`.
        """
        # A visit of its own, epoch 0 and the node's seed: the data of a benchmark must not change
        # with the seed of the run. One token more than the length, as inputs and targets overlap.
        draws = Draws(rows, Visit(np.zeros_like(rows), self.seed))
        tokens = (draws.uniform(self.length + 1) * self.vocab_size).astype(np.int32)
        real = np.broadcast_to(rows[:, None] >= 0, (len(rows), self.length))
        # Every row is one document without an end token, so all entries follow from the number of
        # the row; broadcasting makes them [B, L], and multiplying by `real` clears padding.
        entries = {
            "inputs": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "segments": real,
            "positions": np.arange(self.length)[None, :],
            "documents": rows[:, None] + 1,
            "target_bytes": real,
        }
        batch = {name: (entries[name] * real).astype(np.int32) for name in INT_ENTRIES}
        return {**batch, "weights": real.astype(np.float32)}


@dataclasses.dataclass(frozen=True)
class Synthetic(DataNode):
    """Random tokens, each row a document of its own: batches as those of `Packed`, of no text.

    Tokens are drawn evenly from the vocabulary, so that no model does better than its logarithm in
    nats per token. A token counts as one byte.

    Args:
      vocab_size: Size of the vocabulary; all tokens are below it.
      length: L, the targets of a row.
      num_rows: The rows of an epoch.
      seed: Seed of the tokens; the order of the rows is that of the run.

    Example:
      >>> from luthier import data
      >>> rows = data.Synthetic(vocab_size=16, length=4, num_rows=8)
      >>> rows.describe()
      {'rows': 8, 'length': 4, 'vocab_size': 16}
    """

    RANGES: ClassVar[dict[str, str]] = {
        **DataNode.RANGES,
        "vocab_size": "1 <= x",
        "length": "1 <= x",
        "num_rows": "1 <= x",
        "seed": "0 <= x",
    }
    # Two nodes with equal values here draw the same tokens, which is a mistake for training and
    # evaluation data (`graph/validation`). The number of rows does not change a row.
    STREAM: ClassVar[tuple[str, ...]] = ("seed", "vocab_size", "length")

    vocab_size: int
    length: int
    num_rows: int = 1 << 20
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.num_rows} synthetic rows of {self.length} tokens"

    @functools.cached_property
    def rows(self) -> RandomRows:
        """The rows by number."""
        return RandomRows(self.vocab_size, self.length, self.num_rows, self.seed)

    @property
    def tokens_per_row(self) -> int:
        """The targets of a row: all of them."""
        return self.length

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; nothing is drawn.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        return batch_spec(global_batch_size, self.length)  # type: ignore[return-value]

    def describe(self) -> dict[str, int]:
        """Return `rows`, `length` and `vocab_size`.

        Returns:
          Sizes by name.
        """
        return {"rows": self.num_rows, "length": self.length, "vocab_size": self.vocab_size}
