"""How documents share the rows of a batch; swap the node.

Every document is a run of targets (its tokens, then the end token). A row has room for `length` of
them. A chunk is a run of targets of one document in one row; what no chunk covers is padding.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import heapq
from typing import ClassVar

import numpy as np

from luthier.data.rows import PackedRows
from luthier.data.stream import Stream


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Which chunks stand in which row.

    Chunks are listed row by row, in the order in which they stand in it.

    Args:
      row_starts: Row r has the chunks row_starts[r]..row_starts[r + 1] - 1; int64 [rows + 1].
      starts: Where the inputs of a chunk start in the token stream; int64 [chunks].
      lengths: The targets of a chunk; int32 [chunks].
      ids: The number of a chunk in the order of the corpus, from 1; int32 [chunks].
      opens: Whether a chunk begins its document, where that is known; bool [chunks].
    """

    row_starts: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    ids: np.ndarray
    opens: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.row_starts) - 1

    @property
    def num_targets(self) -> int:
        """The targets of all chunks."""
        return int(self.lengths.sum())

    @property
    def largest_id(self) -> int:
        """The largest number of a chunk."""
        return int(self.ids.max(initial=0))

    def digest(self, corpus: str) -> str:
        """Return a fingerprint of the plan and of what it is of.

        Args:
          corpus: What tells the tokens and the length apart.
        """
        hasher = hashlib.blake2b(corpus.encode(), digest_size=16)
        for part in (self.row_starts, self.starts, self.lengths, self.ids):
            hasher.update(np.ascontiguousarray(part).data)
        return hasher.hexdigest()


class Packing(abc.ABC):
    """Lays documents out in rows.

    `Prepared` keeps the plans of a class that itself says its `REVISION`. Its `repr` tells its
    settings, and a change of the code that changes plans raises the number.
    """

    REVISION: ClassVar[int] = 0

    @abc.abstractmethod
    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan for documents of these numbers of targets.

        Args:
          num_targets: The targets of each document, each >= 1; int64 [documents]. In the token
            stream a document takes one place more (the start token in front).
          length: The targets for which a row has room.
        """

    def rows(
        self,
        stream: Stream,
        length: int,
        byte_lengths: np.ndarray,
        prefix_bytes: int = 0,
        corpus: str = "",
        plan: Plan | None = None,
    ) -> PackedRows:
        """Return the rows of a corpus; what lays tokens out in another way overrides it.

        Args:
          stream: The tokens.
          length: The targets for which a row has room.
          byte_lengths: The bytes that each token stands for, int32 [V].
          prefix_bytes: The bytes that the first token of a document counts too many.
          corpus: A fingerprint of the tokens, where it is known.
          plan: What `plan` returned for them before; None makes it.
        """
        if plan is None:
            plan = self.plan(stream.num_targets, length)
        return PackedRows(stream, plan, byte_lengths, length, prefix_bytes, corpus)


@dataclasses.dataclass(frozen=True)
class Concatenate(Packing):
    """Documents follow one another and are cut every `length`: only the last row has padding."""

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; a document is cut wherever a row ends."""
        ends = np.cumsum(num_targets)
        total = int(ends[-1])
        num_rows = -(-total // length)
        # Documents and rows begin in rising order: each document's place among the chunks is how
        # many documents begin before it, and how many rows that begin with no document.
        begins = ends - num_targets
        rows_before = -(-begins // length)
        both = rows_before * length == begins
        places = np.arange(len(begins)) + rows_before - (np.cumsum(both) - both)
        is_document = np.zeros(len(begins) + num_rows - int(both.sum()), bool)
        is_document[places] = True
        is_row = ~is_document
        is_row[places[both]] = True
        row_starts = np.flatnonzero(is_row)
        edges = np.empty(len(is_row), np.int64)
        edges[places] = begins
        edges[row_starts] = np.arange(num_rows, dtype=np.int64) * length
        lengths = np.diff(edges, append=total).astype(np.int32)
        edges += np.cumsum(is_document) - 1
        return Plan(
            row_starts=np.append(row_starts, len(edges)),
            starts=edges,
            lengths=lengths,
            ids=np.arange(1, len(edges) + 1, dtype=np.int32),
        )


@dataclasses.dataclass(frozen=True)
class Unpacked(Packing):
    """One chunk of at most `length` targets a row, padded: the reference for the other ways."""

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; a document is cut every `length` of its own targets."""
        starts, lengths = _chunks(num_targets, length)
        return _by_row(starts, lengths, np.arange(len(starts)))


@dataclasses.dataclass(frozen=True)
class FirstFit(Packing):
    """Chunks of at most `length` targets, each whole in the first row that has room for it.

    The chunks, with their numbers, are those of `Unpacked`.

    Source: Johnson 1973, Near-optimal bin packing algorithms (first fit).
    """

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; full chunks have a row each, the ends of documents share rows."""
        starts, lengths = _chunks(num_targets, length)
        rows = np.arange(len(lengths))
        ends = np.flatnonzero(lengths < length)
        rows[ends] = ends[_first_fit(lengths[ends], length)]
        return _by_row(starts, lengths, rows)


def _chunks(num_targets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start in the stream and the length of each chunk, documents cut every `length`."""
    counts = -(-num_targets // length)
    document = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    stream_starts = np.cumsum(num_targets + 1) - (num_targets + 1)
    lengths = np.minimum(num_targets[document] - offset, length)
    return stream_starts[document] + offset, lengths.astype(np.int32)


def _by_row(starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> Plan:
    """Return the plan in which chunk i, from the corpus's order, is in a row named by rows[i]."""
    order = np.argsort(rows, kind="stable")
    _, row_starts = np.unique(rows[order], return_index=True)
    return Plan(
        row_starts=np.append(row_starts, len(order)),
        starts=starts[order],
        lengths=lengths[order],
        ids=(order + 1).astype(np.int32),
    )


def _first_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Return, for each item, the index of the item that opened its bin; O(capacity) an item."""
    none = len(lengths)
    first_by_room = np.full(capacity + 1, none)  # the earliest bin with exactly this much room
    bins_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    opened = np.empty(len(lengths), np.int64)
    for item, length in enumerate(lengths.tolist()):
        room = length + int(first_by_room[length:].argmin())
        bin_ = int(first_by_room[room])
        if bin_ == none:
            bin_, room = item, capacity
        else:
            heapq.heappop(bins_by_room[room])
            first_by_room[room] = bins_by_room[room][0] if bins_by_room[room] else none
        opened[item] = bin_
        left = room - length
        if left:  # a full bin is never looked at again
            heapq.heappush(bins_by_room[left], bin_)
            first_by_room[left] = bins_by_room[left][0]
    return opened
