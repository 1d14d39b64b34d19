"""Rows of a packed corpus, assembled when they are asked for.

Shapes: B rows, L length of a row, E chunks in the batch, N targets in the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from luthier.data.order import Visit
from luthier.data.stream import Stream

if TYPE_CHECKING:
    from luthier.data.packing import Plan

INT_ENTRIES = ("inputs", "targets", "segments", "positions", "documents", "target_bytes")


class Places(NamedTuple):
    """Where the chunks of some rows stand in a batch.

    Args:
      chunk_E: The chunk.
      row_E: Its row in the batch.
      segment_E: Its number in the row, from 0.
      length_E: Its targets.
      before_E: The targets of all chunks before it.
      index_N: 0..N - 1.
      place_N: Where each target stands in the flat batch; a slice where they fill it.
    """

    chunk_E: np.ndarray
    row_E: np.ndarray
    segment_E: np.ndarray
    length_E: np.ndarray
    before_E: np.ndarray
    index_N: np.ndarray
    place_N: np.ndarray | slice


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
      corpus: A fingerprint of the tokens, where it is known; without it all of them are read.
    """

    stream: Stream
    plan: Plan
    byte_lengths: np.ndarray
    length: int
    prefix_bytes: int = 0
    corpus: str = ""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.plan.num_rows

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`: the chunks."""
        return len(self.plan.ids)

    @property
    def most_documents(self) -> int:
        """The most chunks of documents in a row."""
        return int(np.diff(self.plan.row_starts).max(initial=0))

    @property
    def num_targets(self) -> int:
        """The targets of all rows."""
        return self.plan.num_targets

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        plan = self.plan
        if self.corpus:
            return plan.digest(f"{self.corpus}{self.length}")
        hasher = hashlib.blake2b(f"{self.length}".encode(), digest_size=16)
        for part in (self.stream.tokens, plan.row_starts, plan.starts, plan.lengths, plan.ids):
            hasher.update(f"{part.dtype.str}{part.shape}".encode())
            hasher.update(np.ascontiguousarray(part).data)
        return hasher.hexdigest()

    @functools.cached_property
    def opens(self) -> np.ndarray:
        """Whether a chunk begins its document; bool [chunks]."""
        if self.plan.opens is not None:
            return self.plan.opens
        return np.isin(self.plan.starts, self.first_inputs(self.stream.num_targets))

    def first_inputs(self, num_targets: np.ndarray) -> np.ndarray:
        """Return where the first chunk of each document starts in the token stream.

        Args:
          num_targets: The targets of each document, int64 [documents].
        """
        return np.cumsum(num_targets + 1) - num_targets - 1

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Not looked at: text is the same in every epoch.

        Returns:
          inputs, targets, segments, positions, documents, target_bytes, all int32 [B, L], and
          weights, float32 [B, L]; padding is 0 in all of them.
        """
        plan, at = self.plan, self._places(rows)
        first_E = plan.starts[at.chunk_E] - at.before_E
        position_N = at.index_N - np.repeat(at.before_E, at.length_E)
        input_N = at.index_N + np.repeat(first_E, at.length_E)

        target_N = self.stream.tokens[input_N + 1]
        bytes_N = self.byte_lengths[target_N]
        if self.prefix_bytes:
            first = at.before_E[self.opens[at.chunk_E]]
            bytes_N[first] = np.maximum(bytes_N[first] - self.prefix_bytes, 0)
        shape = (len(rows), self.length)
        batch = {name: np.zeros(shape, np.int32) for name in INT_ENTRIES}
        batch["weights"] = np.zeros(shape, np.float32)
        for name, values_N in (
            ("inputs", self.stream.tokens[input_N]),
            ("targets", target_N),
            ("weights", np.float32(1)),
            ("segments", np.repeat((at.segment_E + 1).astype(np.int32), at.length_E)),
            ("positions", position_N),
            ("documents", np.repeat(plan.ids[at.chunk_E], at.length_E)),
            ("target_bytes", bytes_N),
        ):
            batch[name].reshape(-1)[at.place_N] = values_N
        return batch

    def _places(self, rows: np.ndarray) -> Places:
        """Return where the chunks of rows stand in the batch of these rows."""
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
        place_N: np.ndarray | slice = slice(None)
        if len(index_N) < len(rows) * length:
            place_N = index_N + np.repeat(place_E - before_E, length_E)
        return Places(chunk_E, row_E, segment_E, length_E, before_E, index_N, place_N)


def batch_spec(global_batch_size: int, length: int) -> dict[str, tuple[tuple[int, int], np.dtype]]:
    """Return shape and dtype of every entry of a batch, from the sizes alone."""
    shape = (global_batch_size, length)
    spec = {name: (shape, np.dtype(np.int32)) for name in INT_ENTRIES}
    return {**spec, "weights": (shape, np.dtype(np.float32))}


def _count_up(counts: np.ndarray) -> np.ndarray:
    """Return 0..counts[0] - 1, 0..counts[1] - 1, and so on, in one array."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
