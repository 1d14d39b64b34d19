"""Rows of a packed corpus, assembled when they are asked for.

Shapes: B rows, L length of a row, E chunks in the batch, N targets in the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np

from luthier.data.order import Visit
from luthier.data.packing import Plan
from luthier.data.stream import Stream

INT_ENTRIES = ("inputs", "targets", "segments", "positions", "documents", "target_bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """The rows of a plan over a token stream.

    Args:
      stream: The tokens.
      plan: Which chunks stand in which row.
      byte_lengths: The bytes that each token stands for, int32 [V].
      length: L.
      prefix_bytes: The bytes that the first token of a document counts too many
        (`Tokenizer.prefix_bytes`).
    """

    stream: Stream
    plan: Plan
    byte_lengths: np.ndarray
    length: int
    prefix_bytes: int = 0

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.plan.num_rows

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`: the chunks."""
        return len(self.plan.ids)

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        hasher = hashlib.blake2b(f"{self.length}".encode(), digest_size=16)
        plan = self.plan
        for part in (self.stream.tokens, plan.row_starts, plan.starts, plan.lengths, plan.ids):
            hasher.update(f"{part.dtype.str}{part.shape}".encode())
            hasher.update(np.ascontiguousarray(part).data)
        return hasher.hexdigest()

    @functools.cached_property
    def _opens(self) -> np.ndarray:
        """Whether a chunk begins its document; bool [chunks]."""
        ends = np.cumsum(self.stream.num_targets + 1)
        return np.isin(self.plan.starts, ends - self.stream.num_targets - 1)

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Not looked at: text is the same in every epoch.

        Returns:
          inputs, targets, segments, positions, documents, target_bytes, all int32 [B, L], and
          weights, float32 [B, L]; padding is 0 in all of them.
        """
        plan, length = self.plan, self.length
        first = plan.row_starts[rows]
        counts = np.where(rows >= 0, plan.row_starts[rows + 1] - first, 0)
        row_E = np.repeat(np.arange(len(rows)), counts)
        segment_E = _count_up(counts)
        chunk_E = first[row_E] + segment_E
        length_E = plan.lengths[chunk_E].astype(np.int64)
        before_E = np.cumsum(length_E) - length_E
        row_before = np.append(before_E, 0)[np.cumsum(counts) - counts]
        place_E = row_E * length + before_E - row_before[row_E]

        index_N = np.arange(int(length_E.sum()))
        position_N = index_N - np.repeat(before_E, length_E)
        input_N = index_N + np.repeat(plan.starts[chunk_E] - before_E, length_E)
        place_N: np.ndarray | slice = slice(None)
        if len(index_N) < len(rows) * length:
            place_N = index_N + np.repeat(place_E - before_E, length_E)

        target_N = self.stream.tokens[input_N + 1]
        bytes_N = self.byte_lengths[target_N]
        if self.prefix_bytes:
            first = before_E[self._opens[chunk_E]]
            bytes_N[first] = np.maximum(bytes_N[first] - self.prefix_bytes, 0)
        shape = (len(rows), length)
        batch = {name: np.zeros(shape, np.int32) for name in INT_ENTRIES}
        batch["weights"] = np.zeros(shape, np.float32)
        for name, values_N in (
            ("inputs", self.stream.tokens[input_N]),
            ("targets", target_N),
            ("weights", np.float32(1)),
            ("segments", np.repeat((segment_E + 1).astype(np.int32), length_E)),
            ("positions", position_N),
            ("documents", np.repeat(plan.ids[chunk_E], length_E)),
            ("target_bytes", bytes_N),
        ):
            batch[name].reshape(-1)[place_N] = values_N
        return batch


def batch_spec(global_batch_size: int, length: int) -> dict[str, tuple[tuple[int, int], np.dtype]]:
    """Return shape and dtype of every entry of a batch, from the sizes alone."""
    shape = (global_batch_size, length)
    spec = {name: (shape, np.dtype(np.int32)) for name in INT_ENTRIES}
    return {**spec, "weights": (shape, np.dtype(np.float32))}


def _count_up(counts: np.ndarray) -> np.ndarray:
    """Return 0..counts[0] - 1, 0..counts[1] - 1, and so on, in one array."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
