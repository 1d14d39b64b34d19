"""Packing of documents into rows: plans, and rows that are assembled on demand.

All documents are one stream of tokens: `bos d1 ... eos bos d2 ... eos ...`. A document with t
targets (its tokens and `eos`) takes t + 1 places, and a chunk that starts at place s with n targets
has inputs s..s + n - 1 and targets s + 1..s + n. So a plan only has to say, for each chunk, where
it starts and how long it is, and rows are made by indexing; no token is ever copied into rows
beforehand.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import heapq
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from luthier.data.order import Visit
from luthier.data.sources.source import Source, blocks
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

# A corpus as one array of tokens.


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """All documents, one after another, each between its start and its end token.

    Args:
      tokens: uint16 (int32 for vocabularies over 65,536) [tokens], stored once.
      num_targets: The tokens of each document and its end token; int64 [documents].
      num_bytes: The bytes of all documents.
    """

    tokens: np.ndarray
    num_targets: np.ndarray
    num_bytes: int


def encode_checked(
    source: Source, tokenizer: Tokenizer, start: int, documents: Sequence[bytes]
) -> Sequence[np.ndarray]:
    """Return the tokens of documents, after checking the bytes that they stand for.

    Args:
      source: The source of the documents, for messages.
      tokenizer: Tokenizer of the texts.
      start: The index of the first of them.
      documents: The documents.

    Raises:
      DataError: when the tokenizer drops or adds bytes without declaring it.
    """
    # Losses are compared between tokenizers in bits per byte, with the bytes of each target token.
    # A tokenizer that silently normalizes text would make that figure wrong without any other sign;
    # the sum over a document is cheap beside encoding it, so that every document is checked.
    byte_lengths, prefix = tokenizer.byte_lengths, tokenizer.prefix_bytes
    encoded = tokenizer.encode_many(documents)
    if not tokenizer.keeps_bytes:
        return encoded
    for index, (document, tokens) in enumerate(zip(documents, encoded, strict=True), start):
        stands_for = int(byte_lengths[tokens].sum()) - (prefix if len(tokens) else 0)
        if stands_for != len(document):
            what = f"{source.name(index)}: {len(document)} bytes became tokens for {stands_for}"
            remedy = "use a tokenizer that keeps every byte"
            raise DataError(Problem(f"{what} bytes", remedy=remedy))
    return encoded


def token_dtype(vocab_size: int) -> type[np.generic]:
    """Return the smallest dtype for tokens: uint16, or int32 for more than 65,536."""
    return np.uint16 if vocab_size <= 65536 else np.int32


def tokenize(
    source: Source,
    tokenizer: Tokenizer,
    observe: Callable[[Sequence[bytes]], None] | None = None,
) -> Stream:
    """Read and tokenize all documents.

    Args:
      source: The documents.
      tokenizer: The tokens of a document must stand for exactly its bytes.
      observe: Sees the documents, a few megabytes at a time.

    Returns:
      The tokens of all documents in one array, a start and an end token around each; the number of
      targets of each document, int64; and the number of bytes that were read.

    Raises:
      DataError: when documents cannot be read, or the tokenizer drops or adds bytes.

    Example:
      >>> from luthier import data
      >>> stream = data.tokenize(data.Documents([b"to", b"be"]), data.Bytes())
      >>> print(stream.tokens, stream.num_targets)
      [256 116 111 257 256  98 101 257] [3 3]
    """
    # One array for the whole corpus, grown as it fills, since the total is not known beforehand. A
    # list of arrays would need its memory twice when they are joined.
    dtype = token_dtype(tokenizer.vocab_size)
    tokens, used, num_bytes = np.empty(1 << 16, dtype), 0, 0
    counts: list[int] = []
    for start, documents in blocks(source):
        num_bytes += sum(map(len, documents))
        if observe:
            observe(documents)
        for encoded in encode_checked(source, tokenizer, start, documents):
            stop = used + len(encoded) + 2
            if stop > len(tokens):
                # Grown in place: realloc moves pages, not bytes.
                tokens.resize(max(stop, len(tokens) + len(tokens) // 4), refcheck=False)
            tokens[used] = tokenizer.bos
            tokens[used + 1 : stop - 1] = encoded
            tokens[stop - 1] = tokenizer.eos
            counts.append(len(encoded) + 1)
            used = stop
    tokens.resize(used, refcheck=False)
    return Stream(tokens, np.array(counts, np.int64), num_bytes)


# How documents share the rows of a batch; swap the node.
#
# Every document is a run of targets (its tokens, then the end token). A row has room for `length`
# of them. A chunk is a run of targets of one document in one row; what no chunk covers is padding.


@dataclasses.dataclass(frozen=True, eq=False)
class RowPlan:
    """The assignment of chunks to rows.

    Chunks are listed row by row, in their order within it.

    Args:
      row_starts: Row r has the chunks row_starts[r]..row_starts[r + 1] - 1; int64 [rows + 1].
      starts: The position of the first input of a chunk in the token stream; int64 [chunks].
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
        """Return a fingerprint of the plan and of its corpus.

        Args:
          corpus: A fingerprint of the tokens and the length.

        Returns:
          Hexadecimal digits.
        """
        hasher = hashlib.blake2b(corpus.encode(), digest_size=16)
        for part in (self.row_starts, self.starts, self.lengths, self.ids):
            hasher.update(np.ascontiguousarray(part).data)
        return hasher.hexdigest()


class Packing(abc.ABC):
    """Assigns documents to rows.

    `Prepared` keeps the plans of a class that itself defines its `REVISION`. Its `repr` holds its
    settings, and a change of the code that changes plans raises the number.
    """

    REVISION: ClassVar[int] = 0

    @abc.abstractmethod
    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan for documents of these numbers of targets.

        Args:
          num_targets: The targets of each document, each >= 1; int64 [documents]. In the token
            stream a document takes one place more (the start token in front).
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """

    def rows(
        self,
        stream: Stream,
        length: int,
        byte_lengths: np.ndarray,
        prefix_bytes: int = 0,
        corpus: str = "",
        plan: RowPlan | None = None,
    ) -> PackedRows:
        """Return the rows of a corpus; packings with a different layout of tokens override it.

        Args:
          stream: The tokens.
          length: The number of targets in a row.
          byte_lengths: The bytes that each token stands for, int32 [V].
          prefix_bytes: The bytes that the first token of a document counts too many.
          corpus: A fingerprint of the tokens, where it is known.
          plan: The result of `plan` for them, if it is known; None computes it.

        Returns:
          The rows, which are cut from the stream when they are read.
        """
        if plan is None:
            plan = self.plan(stream.num_targets, length)
        return PackedRows(stream, plan, byte_lengths, length, prefix_bytes, corpus)


@dataclasses.dataclass(frozen=True)
class Concatenate(Packing):
    """Documents follow one another and are cut every `length`: only the last row has padding.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or not"])
      >>> data.Packed(source, data.Bytes(), length=8, packing=data.Concatenate()).num_rows
      2
    """

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; a document is cut wherever a row ends.

        Args:
          num_targets: The targets of each document; int64 [documents].
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """
        # Without a loop over documents: corpora have hundreds of millions. Counted in targets, one
        # after another, a chunk begins wherever a document or a row does. Merging two rising
        # sequences of numbers gives all edges; where a document begins with a row, there is one
        # edge for both.
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
        # So far edges count targets. In the stream each document has one more place in front (its
        # `bos`): a chunk of the i-th document (from 0) lies i places further back than its target
        # count says.
        edges += np.cumsum(is_document) - 1
        return RowPlan(
            row_starts=np.append(row_starts, len(edges)),
            starts=edges,
            lengths=lengths,
            ids=np.arange(1, len(edges) + 1, dtype=np.int32),
        )


@dataclasses.dataclass(frozen=True)
class Unpacked(Packing):
    """One chunk of at most `length` targets a row, padded: the reference for the other ways.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or not"])
      >>> data.Packed(source, data.Bytes(), length=8, packing=data.Unpacked()).num_rows
      2
    """

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; a document is cut every `length` of its own targets.

        Args:
          num_targets: The targets of each document; int64 [documents].
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """
        starts, lengths = _chunks(num_targets, length)
        return _by_row(starts, lengths, np.arange(len(starts)))


@dataclasses.dataclass(frozen=True)
class FirstFit(Packing):
    """Chunks of at most `length` targets, each whole in the first row that has room for it.

    The chunks, with their numbers, are those of `Unpacked`.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or"])
      >>> data.Packed(source, data.Bytes(), length=9, packing=data.FirstFit()).num_rows
      1

    Source: Johnson 1973, Near-optimal bin packing algorithms (first fit).
    """

    REVISION: ClassVar[int] = 1

    def plan(self, num_targets: np.ndarray, length: int) -> RowPlan:
        """Return the plan; full chunks have a row each, the ends of documents share rows.

        Args:
          num_targets: The targets of each document; int64 [documents].
          length: The number of targets in a row.

        Returns:
          The plan: the documents, or parts of them, of each row.
        """
        starts, lengths = _chunks(num_targets, length)
        rows = np.arange(len(lengths))
        # A full chunk fills a row and can share none: only the ends of documents are packed, which
        # leaves the slow loop a fraction of the chunks. The row of a chunk is named by the chunk
        # that opened it, so that rows come out in the order of the corpus.
        ends = np.flatnonzero(lengths < length)
        rows[ends] = ends[_first_fit(lengths[ends], length)]
        return _by_row(starts, lengths, rows)


def _chunks(num_targets: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start in the stream and the length of each chunk, documents cut every `length`."""
    # The k-th chunk of a document starts k * length into it; the last one has what is left.
    # `offset` counts up within each document, by subtracting the number of its first chunk from a
    # running one.
    counts = -(-num_targets // length)
    document = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    stream_starts = np.cumsum(num_targets + 1) - (num_targets + 1)
    lengths = np.minimum(num_targets[document] - offset, length)
    return stream_starts[document] + offset, lengths.astype(np.int32)


def _by_row(starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> RowPlan:
    """Return the plan in which chunk i, from the corpus's order, is in a row named by rows[i]."""
    # Names of rows need not be consecutive: they are sorted and told apart by where they change.
    # The sort is stable, so that chunks of a row stay in the order of the corpus.
    order = np.argsort(rows, kind="stable")
    _, row_starts = np.unique(rows[order], return_index=True)
    return RowPlan(
        row_starts=np.append(row_starts, len(order)),
        starts=starts[order],
        lengths=lengths[order],
        ids=(order + 1).astype(np.int32),
    )


def _first_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Return, for each item, the index of the item that opened its bin; O(capacity) an item."""
    none = len(lengths)
    # First fit in O(capacity) for each item instead of O(bins): for every amount of room, the
    # earliest bin with exactly that much. The earliest bin that fits is the minimum over all
    # sufficient amounts, by one vectorized `argmin`; bins of equal room wait in a heap by their
    # number.
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


# Rows of a packed corpus, assembled on demand.
#
# Shapes: B rows, L length of a row, E chunks in the batch, N targets in the batch.

INT_ENTRIES = ("inputs", "targets", "segments", "positions", "documents", "target_bytes")


class Places(NamedTuple):
    """The positions of the chunks of some rows in a batch.

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
      plan: The assignment of chunks to rows.
      byte_lengths: The bytes that each token stands for, int32 [V].
      length: L.
      prefix_bytes: The bytes that the first token of a document counts too many
        (`Tokenizer.prefix_bytes`).
      corpus: A fingerprint of the tokens, where it is known; without it all of them are read.
    """

    stream: Stream
    plan: RowPlan
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
        # With a fingerprint of the tokens, a corpus of terabytes need not be read at every start.
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
        """Return the position of the first chunk of each document in the token stream.

        Args:
          num_targets: The targets of each document, int64 [documents].
        """
        return np.cumsum(num_targets + 1) - num_targets - 1

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` has an effect: the tokens are in an object store."""
        return hasattr(self.stream.tokens, "prefetch")

    def prefetch(self, rows: np.ndarray) -> bool:
        """Begin to read the tokens of rows that will be wanted soon.

        Args:
          rows: As of `gather`.

        Returns:
          Whether there was room for all of them.
        """
        _, _, chunk_E = self._chunks(rows)
        first_E = self.plan.starts[chunk_E]
        # The last target is one place further than the last input.
        last_E = first_E + self.plan.lengths[chunk_E]
        tokens: Any = self.stream.tokens
        return tokens.prefetch(first_E, last_E)

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Ignored: text is the same in every epoch.

        Returns:
          inputs, targets, segments, positions, documents, target_bytes, all int32 [B, L], and
          weights, float32 [B, L]; padding is 0 in all of them.
        """
        # Everything is flat over the N targets of the batch, chunk after chunk, and scattered into
        # the batch once: no Python loop over rows or chunks. `first_E` turns a running index over
        # all targets into a place in the stream: within chunk e, place = start_e + (index -
        # before_e).
        plan, at = self.plan, self._places(rows)
        first_E = plan.starts[at.chunk_E] - at.before_E
        position_N = at.index_N - np.repeat(at.before_E, at.length_E)
        input_N = at.index_N + np.repeat(first_E, at.length_E)

        target_N = self.stream.tokens[input_N + 1]
        bytes_N = self.byte_lengths[target_N]
        if self.prefix_bytes:
            first = at.before_E[self.opens[at.chunk_E]]
            # Tokenizers such as SentencePiece's put a space in front of a document that the text
            # does not have; without this, bits per byte would be too low.
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

    def _chunks(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the number of chunks of each row, and row and number in the plan of each chunk."""
        # Chunks of the wanted rows, flattened: repeat each row by its number of chunks, then count
        # up within it. The same trick gives the targets of chunks. A row of padding (-1) has no
        # chunks; `row_starts[-1]` is a valid look-up whose result is multiplied away by its count
        # of 0.
        first = self.plan.row_starts[rows]
        counts = np.where(rows >= 0, self.plan.row_starts[rows + 1] - first, 0)
        row_E = np.repeat(np.arange(len(rows)), counts)
        return counts, row_E, first[row_E] + _count_up(counts)

    def _places(self, rows: np.ndarray) -> Places:
        """Return the places of the chunks of rows in the batch of these rows."""
        plan, length = self.plan, self.length
        counts, row_E, chunk_E = self._chunks(rows)
        segment_E = _count_up(counts)
        length_E = plan.lengths[chunk_E].astype(np.int64)
        before_E = np.cumsum(length_E) - length_E
        # The 0 is for trailing rows without chunks, whose first index would be one past the end.
        row_before = np.append(before_E, 0)[np.cumsum(counts) - counts]
        # A chunk starts in the flat batch at its row's start plus the targets before it in that
        # row.
        place_E = row_E * length + before_E - row_before[row_E]
        index_N = np.arange(int(length_E.sum()))
        # Rows that are full, as nearly all of `Concatenate` are, need no scatter.
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
