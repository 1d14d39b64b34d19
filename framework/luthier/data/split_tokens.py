"""Rows of plain tokens as in seqio and Pax: splitting, and shifting to inputs and targets.

Shapes: B rows, L length.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from typing import ClassVar

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.order import Visit
from luthier.data.packed import TokenNode
from luthier.data.packing import PackedRows, Packing, RowPlan, Stream, token_dtype
from luthier.data.sources.records import Records
from luthier.data.sources.source import MAX_PROBLEMS
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


class Shift(abc.ABC):
    """Makes inputs and targets of rows of tokens, so that each target is the next token.

    `LOST` is the number of tokens of a row that are not targets.
    """

    LOST: ClassVar[int]

    @abc.abstractmethod
    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the inputs.

        Args:
          tokens_BL: Tokens, 0 in padding; int32 [B, L].
          segments_BL: The segment of each token, from 1 in each row, 0 for padding; int32 [B, L].
        """

    @abc.abstractmethod
    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the targets; arguments are those of `inputs`."""

    @abc.abstractmethod
    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return the value of each target token at its place, 0 where there is no target.

        Args:
          values_BL: One number for each token, 0 in padding, [B, L].
        """


@dataclasses.dataclass(frozen=True)
class ShiftRight(Shift):
    """Every token is a target; inputs are the tokens, one later, each segment after `start`.

    Args:
      start: The token before the first token of a segment (`bos_id`).

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> tokens_BL, segments_BL = np.array([[5, 6, 7]]), np.array([[1, 1, 1]])
      >>> shift = data.ShiftRight(start=1)
      >>> print(shift.inputs(tokens_BL, segments_BL), shift.targets(tokens_BL, segments_BL))
      [[1 5 6]] [[5 6 7]]

    Source: seqio 0.0.17, `utils.make_autoregressive_inputs`, as `LanguageModelFeatures` of
      Paxml 1.4.0 has it without `reverse_bos_padding`.
    """

    LOST: ClassVar[int] = 0
    RANGES: ClassVar[dict[str, str]] = {"start": "0 <= x"}

    start: int = 0

    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens, one later; the start token begins each segment, 0 is padding.

        Args:
          tokens_BL: Tokens, int32 [B, L].
          segments_BL: Number of the document of each token, 0 for padding, int32 [B, L].

        Returns:
          Int32 [B, L].
        """
        # A shift over the whole row would give a segment's first token the last one of the segment
        # before as its input; wherever the number changes, the start token comes instead.
        before = np.zeros_like(segments_BL)
        before[:, 1:] = segments_BL[:, :-1]
        later = np.zeros_like(tokens_BL)
        later[:, 1:] = tokens_BL[:, :-1]
        return np.where(before == segments_BL, later, self.start) * (segments_BL > 0)

    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens.

        Args:
          tokens_BL: Tokens, int32 [B, L].
          segments_BL: Number of the document of each token, 0 for padding, int32 [B, L].

        Returns:
          Int32 [B, L].
        """
        return tokens_BL

    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return the values.

        Args:
          values_BL: A value of each token [B, L].

        Returns:
          [B, L].
        """
        return values_BL


@dataclasses.dataclass(frozen=True)
class ShiftLeft(Shift):
    """Inputs are the tokens, and targets the tokens one earlier: the first one is never a target.

    The last token of a segment predicts the first of the next one, with weight. A full row ends
    with the target `end`, which has no weight.

    Args:
      end: The last target of a row (`eos_id`).

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> tokens_BL, segments_BL = np.array([[5, 6, 7]]), np.array([[1, 1, 1]])
      >>> shift = data.ShiftLeft(end=1)
      >>> print(shift.inputs(tokens_BL, segments_BL), shift.targets(tokens_BL, segments_BL))
      [[5 6 7]] [[6 7 1]]

    Source: Paxml 1.4.0, `seqio_input.LanguageModelFeatures` with `reverse_bos_padding`.

    Deviation: padding is 0 in all entries; there, a row of padding has one target, without weight.
    """

    LOST: ClassVar[int] = 1
    RANGES: ClassVar[dict[str, str]] = {"end": "0 <= x"}

    end: int = 1

    def inputs(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens.

        Args:
          tokens_BL: Tokens, int32 [B, L].
          segments_BL: Number of the document of each token, 0 for padding, int32 [B, L].

        Returns:
          Int32 [B, L].
        """
        return tokens_BL

    def targets(self, tokens_BL: np.ndarray, segments_BL: np.ndarray) -> np.ndarray:
        """Return the tokens, one earlier, and the end at the end of each row.

        Args:
          tokens_BL: Tokens, int32 [B, L].
          segments_BL: Number of the document of each token, 0 for padding, int32 [B, L].

        Returns:
          Int32 [B, L].
        """
        # Shifted over the whole row, segments included: that is what Paxml does, and a model
        # trained there expects it. Rows of padding must stay zero, so only real rows get the end.
        earlier = self.of_targets(tokens_BL)
        earlier[:, -1] = np.where(segments_BL[:, 0] > 0, self.end, 0)
        return earlier

    def of_targets(self, values_BL: np.ndarray) -> np.ndarray:
        """Return the values, one earlier.

        Args:
          values_BL: A value of each token [B, L].

        Returns:
          [B, L].
        """
        earlier = np.zeros_like(values_BL)
        earlier[:, :-1] = values_BL[:, 1:]
        return earlier


# Rows of tokens whose inputs and targets a shift makes.
#
# Shapes: B rows, L length, E chunks in the batch, N tokens in the batch.


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftedRows(PackedRows):
    """The rows of a plan whose chunks are runs of the tokens of documents.

    Chunks with one number, which follow one another in a row, are one segment: its positions run
    on from one to the next.

    Args:
      shift: Makes inputs and targets from the tokens.
    """

    shift: Shift = ShiftLeft()

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`: the segments."""
        return self.plan.largest_id

    @property
    def num_targets(self) -> int:
        """The targets of all rows that have weight."""
        return super().num_targets - self.shift.LOST * self.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        parts = f"{super().digest}{self.shift}".encode()
        return hashlib.blake2b(parts, digest_size=16).hexdigest()

    def first_inputs(self, num_targets: np.ndarray) -> np.ndarray:
        """Return the position of the first token of each document in the token stream.

        Args:
          num_targets: The targets of each document, int64 [documents].
        """
        return np.cumsum(num_targets + 1) - num_targets

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: text is the same in every epoch.

        Returns:
          What `PackedRows.gather` does; `segments`, `positions` and `documents` are those of the
          tokens.
        """
        # As `PackedRows.gather`, with two differences: a chunk is a run of tokens and not of
        # targets, so no token is taken one further; and a segment may consist of several chunks,
        # whose positions run on. Inputs and targets come from the rows of tokens at the end.
        plan, at = self.plan, self._places(rows)
        first_E = plan.starts[at.chunk_E] - at.before_E
        token_N = self.stream.tokens[at.index_N + np.repeat(first_E, at.length_E)]
        bytes_N = self.byte_lengths[token_N]
        if self.prefix_bytes:
            first = at.before_E[self.opens[at.chunk_E]]
            bytes_N[first] = np.maximum(bytes_N[first] - self.prefix_bytes, 0)
        id_E = plan.ids[at.chunk_E]
        # A segment may be several chunks, one of each document in it; a new one begins at a row's
        # first chunk and wherever the number changes.
        opens_E = (at.segment_E == 0) | (id_E != np.roll(id_E, 1))
        segment_E = np.cumsum(opens_E)
        start_E = at.before_E[opens_E][segment_E - 1]
        before_row_E = (segment_E[at.segment_E == 0] - 1)[np.cumsum(at.segment_E == 0) - 1]

        shape = (len(rows), self.length)
        entries = {}
        for name, values_N in (
            ("tokens", token_N),
            ("segments", np.repeat(segment_E - before_row_E, at.length_E)),
            ("positions", at.index_N - np.repeat(start_E, at.length_E)),
            ("documents", np.repeat(id_E, at.length_E)),
            ("bytes", bytes_N),
        ):
            entries[name] = np.zeros(shape, np.int32)
            entries[name].reshape(-1)[at.place_N] = values_N
        tokens, segments = entries["tokens"], entries["segments"]
        return {
            "inputs": self.shift.inputs(tokens, segments),
            "targets": self.shift.targets(tokens, segments),
            "segments": segments,
            "positions": entries["positions"],
            "documents": entries["documents"],
            "target_bytes": self.shift.of_targets(entries["bytes"]),
            "weights": self.shift.of_targets((segments > 0).astype(np.float32)),
        }


# Packings whose rows are cut from joined documents, without start and end tokens.


class ShiftedPacking(Packing):
    """A packing of the tokens of documents alone, whose chunks are numbered by segment.

    A subclass is a frozen dataclass with the field `shift`.
    """

    shift: Shift

    @abc.abstractmethod
    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; the tokens of a document are its targets without the end token."""

    def rows(
        self,
        stream: Stream,
        length: int,
        byte_lengths: np.ndarray,
        prefix_bytes: int = 0,
        corpus: str = "",
        plan: RowPlan | None = None,
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
      shift: Makes inputs and targets from the tokens.
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

    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; places count the tokens of documents, one after another.

        Args:
          num_targets: The targets of each document; int64 [documents].
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """
        # Places here count the tokens of documents only. In the stream each document has two more,
        # its start and its end token, and the start comes first: `begins + 2 * document + 1`.
        ends = np.cumsum(num_targets - 1)
        last = np.arange(self.documents_per_group, len(ends), self.documents_per_group) - 1
        edges = np.concatenate([[0], ends[last], ends[-1:]])
        counts = -(-np.diff(edges) // length)
        group = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = edges[group] + number * length
        lengths = np.minimum(edges[group + 1] - starts, length)
        row = np.cumsum(_opens_row(lengths, length)) - 1

        # Chunks: the parts of each segment that belong to one document. They begin where a segment
        # or a document (that is not empty) begins; `union1d` merges both and drops what coincides.
        begins = np.union1d(starts, (ends - num_targets + 1)[num_targets > 1])
        document = np.searchsorted(ends, begins, side="right")
        segment = np.searchsorted(starts, begins, side="right") - 1
        chunk_row = row[segment]
        return RowPlan(
            row_starts=np.searchsorted(chunk_row, np.arange(len(np.unique(row)) + 1)),
            starts=begins + 2 * document + 1,
            lengths=np.diff(begins, append=ends[-1]).astype(np.int32),
            ids=(segment + 1).astype(np.int32),
        )


@dataclasses.dataclass(frozen=True)
class TrimTokens(ShiftedPacking):
    """One document a row: its first `length` tokens, padded. Empty documents are left out.

    Args:
      shift: Makes inputs and targets from the tokens.

    Source: seqio 0.0.17, `utils.trim_and_pad_dataset`, as in the evaluation of Paxml 1.4.0.
    """

    REVISION: ClassVar[int] = 1

    shift: Shift = ShiftLeft()

    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; what is beyond `length` is never seen.

        Args:
          num_targets: The targets of each document; int64 [documents].
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """
        # Behind the start token; the end token, which is one of the targets, is not among the
        # tokens.
        starts = np.cumsum(num_targets + 1) - num_targets
        lengths = np.minimum(num_targets - 1, length)
        real = lengths > 0
        return RowPlan(
            row_starts=np.arange(int(real.sum()) + 1),
            starts=starts[real],
            lengths=lengths[real].astype(np.int32),
            ids=np.arange(1, int(real.sum()) + 1, dtype=np.int32),
        )


def _opens_row(lengths: np.ndarray, length: int) -> np.ndarray:
    """Return whether each segment begins a row: it does not fit into the last one.

    seqio packs `length` segments at a time, so that the first of them begins a row, too.
    """
    # A loop, since each decision depends on the one before; but full segments always have a row of
    # their own, so that it runs over the last segments of groups only.
    opens = np.ones(len(lengths), bool)
    before, fill = -1, 0
    for index in np.flatnonzero(lengths < length).tolist():
        size = int(lengths[index])
        # Only the segment right before can be shared with: seqio packs as it goes and never looks
        # back.
        fits = index == before + 1 and index % length and fill + size <= length
        opens[index] = not fits
        before, fill = index, size + (fill if fits else 0)
    return opens


# Records that hold tokens already, as rows of tokens.


@dataclasses.dataclass(frozen=True)
class Pretokenized(TokenNode):
    """Documents whose tokens are a field of records, packed into rows of one length.

    All records are read at the first use, and their tokens kept as one array. Batches are those of
    every `TokenNode`.

    Args:
      records: The records.
      tokenizer: The vocabulary of the tokens; it does not encode anything.
      length: L, the number of targets in a row.
      packing: Assigns documents to rows.
      field: The name of the field that holds the tokens.

    Raises:
      DataError: at first use, when records cannot be read, or a field is missing or is not a list
        of tokens of the vocabulary.
    """

    records: Records
    tokenizer: Tokenizer
    length: int
    packing: Packing
    field: str = "ids"

    def __str__(self) -> str:
        return f"{self.records} has {self.num_rows} rows of {self.length} tokens"

    @functools.cached_property
    def stream(self) -> Stream:
        """The tokens of all records; read at first use."""
        # All records are tried, and up to MAX_PROBLEMS reported at once: a wrong field shows in
        # every record, a few bad records only in some.
        documents: list[np.ndarray] = []
        problems: list[Problem] = []
        for index in range(len(self.records)):
            try:
                documents.append(self._tokens(index))
            except DataError as error:
                problems.extend(error.problems)
            if len(problems) >= MAX_PROBLEMS:
                break
        if problems:
            raise DataError(problems)
        if not documents:
            raise DataError(Problem(f"{self.records} has no records", remedy="name others"))
        bos, eos = [self.tokenizer.bos], [self.tokenizer.eos]
        # The layout of every stream, although the records may have no start and end tokens of their
        # own: packings that use them find them, and `ShiftedPacking` skips them.
        parts = [part for document in documents for part in (bos, document, eos)]
        tokens = np.concatenate(parts).astype(token_dtype(self.tokenizer.vocab_size))
        # The end token is a target, the start token is none.
        num_targets = np.array([len(document) + 1 for document in documents], np.int64)
        # The text itself is not there: its bytes are those that the tokens stand for, a prefix
        # space of each document included.
        num_bytes = int(self.byte_lengths[tokens].sum())
        return Stream(tokens, num_targets, num_bytes)

    @property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]."""
        return self.tokenizer.byte_lengths

    @property
    def prefix_bytes(self) -> int:
        """The bytes that the first token of a document counts too many."""
        return self.tokenizer.prefix_bytes

    def entropies(self) -> tuple[float, float]:
        """Return the unigram and the bigram entropy of the decoded text, in nats per byte.

        Returns:
          Two numbers, in nats per byte.
        """
        stream, counts = self.stream, ByteCounts()
        for stop, size in zip(np.cumsum(stream.num_targets + 1), stream.num_targets, strict=True):
            tokens = stream.tokens[stop - size : stop - 1]
            counts.add([self.tokenizer.decode(tokens.tolist()).encode("utf-8", "surrogateescape")])
        return counts.unigram_entropy(), counts.bigram_entropy()

    def _tokens(self, index: int) -> np.ndarray:
        # Checked against the vocabulary here: a token beyond it would be clamped by the look-up on
        # the device, and train on the wrong embedding without a sign.
        value = self.records.value(index, self.field)
        tokens = np.asarray(value).reshape(-1)
        where = f"{self.records.name(index)}: field {self.field!r}"
        if len(tokens) and tokens.dtype.kind not in "iu":
            what = f"{where} is not a list of tokens but {type(value).__name__}"
            raise DataError(Problem(what, remedy="name a field of tokens"))
        size = self.tokenizer.vocab_size
        beyond = tokens[(tokens < 0) | (tokens >= size)] if len(tokens) else tokens
        if len(beyond):
            what = f"{where} has a token beyond the vocabulary's {size}: {beyond[0]}"
            raise DataError(Problem(what, remedy="set the tokenizer to that of the tokens"))
        return tokens.astype(np.int64)
