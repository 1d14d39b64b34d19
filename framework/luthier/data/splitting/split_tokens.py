"""Packings whose rows are cut from joined documents, without start and end tokens."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from luthier.data.packing import Packing, Plan
from luthier.data.splitting.shifted_rows import ShiftedRows
from luthier.data.splitting.shifts import Shift, ShiftLeft
from luthier.data.stream import Stream


class ShiftedPacking(Packing):
    """A packing of the tokens of documents alone, whose chunks are numbered by segment.

    A subclass is a frozen dataclass with the field `shift`.
    """

    shift: Shift

    @abc.abstractmethod
    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; the tokens of a document are its targets without the end token."""

    def rows(
        self,
        stream: Stream,
        length: int,
        byte_lengths: np.ndarray,
        prefix_bytes: int = 0,
        corpus: str = "",
        plan: Plan | None = None,
    ) -> ShiftedRows:
        """Return the rows of a corpus; arguments are those of `Packing.rows`."""
        if plan is None:
            plan = self.plan(stream.num_targets, length)
        settings = (byte_lengths, length, prefix_bytes, corpus)
        return ShiftedRows(stream, plan, *settings, shift=self.shift)


@dataclasses.dataclass(frozen=True)
class SplitTokens(ShiftedPacking):
    """Documents are joined in groups, and each group is cut into segments of `length` tokens.

    Nothing stands between the documents of a segment, which see one another. The last segment of a
    group is shorter; it shares a row with the next one where that has room.

    Args:
      shift: How inputs and targets come from the tokens.
      documents_per_group: Documents that are joined; 4096 in Paxml's C4 data.

    Source: T5 0.9.4, `preprocessors.reduce_concat_tokens` and `split_tokens_to_targets_length`;
      seqio 0.0.17, `utils.trim_and_pack_dataset`; as in Paxml 1.4.0, `C4UnsupervisedDataset`.
    Deviation: rows are packed in the order of the corpus, and whole rows are shuffled; there,
      segments are shuffled in a buffer first. Tokens that are 0 stay.
    """

    RANGES: ClassVar[dict[str, str]] = {"documents_per_group": "1 <= x"}
    REVISION: ClassVar[int] = 1

    shift: Shift = ShiftLeft()
    documents_per_group: int = 4096

    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; places count the tokens of documents, one after another."""
        ends = np.cumsum(num_targets - 1)
        last = np.arange(self.documents_per_group, len(ends), self.documents_per_group) - 1
        edges = np.concatenate([[0], ends[last], ends[-1:]])
        counts = -(-np.diff(edges) // length)
        group = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = edges[group] + number * length
        lengths = np.minimum(edges[group + 1] - starts, length)
        row = np.cumsum(_opens_row(lengths, length)) - 1

        # Chunks: what each segment has of each document.
        begins = np.union1d(starts, (ends - num_targets + 1)[num_targets > 1])
        document = np.searchsorted(ends, begins, side="right")
        segment = np.searchsorted(starts, begins, side="right") - 1
        chunk_row = row[segment]
        return Plan(
            row_starts=np.searchsorted(chunk_row, np.arange(len(np.unique(row)) + 1)),
            starts=begins + 2 * document + 1,
            lengths=np.diff(begins, append=ends[-1]).astype(np.int32),
            ids=(segment + 1).astype(np.int32),
        )


@dataclasses.dataclass(frozen=True)
class TrimTokens(ShiftedPacking):
    """One document a row: its first `length` tokens, padded. Empty documents are left out.

    Args:
      shift: How inputs and targets come from the tokens.

    Source: seqio 0.0.17, `utils.trim_and_pad_dataset`, as in the evaluation of Paxml 1.4.0.
    """

    REVISION: ClassVar[int] = 1

    shift: Shift = ShiftLeft()

    def plan(self, num_targets: np.ndarray, length: int) -> Plan:
        """Return the plan; what is beyond `length` is never seen."""
        starts = np.cumsum(num_targets + 1) - num_targets
        lengths = np.minimum(num_targets - 1, length)
        real = lengths > 0
        return Plan(
            row_starts=np.arange(int(real.sum()) + 1),
            starts=starts[real],
            lengths=lengths[real].astype(np.int32),
            ids=np.arange(1, int(real.sum()) + 1, dtype=np.int32),
        )


def _opens_row(lengths: np.ndarray, length: int) -> np.ndarray:
    """Return whether each segment begins a row: it does not fit into the last one.

    seqio packs `length` segments at a time, so that the first of them begins a row, too.
    """
    opens = np.ones(len(lengths), bool)
    before, fill = -1, 0
    for index in np.flatnonzero(lengths < length).tolist():
        size = int(lengths[index])
        fits = index == before + 1 and index % length and fill + size <= length
        opens[index] = not fits
        before, fill = index, size + (fill if fits else 0)
    return opens
