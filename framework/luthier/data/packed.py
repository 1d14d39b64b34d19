"""A corpus of text as rows of tokens: the data node for language models."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.node import DataNode
from luthier.data.packing import PackedRows, Packing, RowPlan, Stream, batch_spec, tokenize
from luthier.data.sources.source import Source, blocks
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


class TokenNode(DataNode):
    """A data node whose rows are packed from one stream of tokens.

    A batch is a dict of [B, L] arrays: `inputs`, `targets`, `segments` (from 1 in each row),
    `positions` (from 0 in each segment), `documents` (the number of the chunk in the corpus, from
    1), `target_bytes` (the bytes that the target stands for), all int32, and `weights`, float32;
    padding is 0 in all of them. Every token of a document is a target exactly once, the first one
    predicted from the start token, and the end token is a target too.

    A subclass is a frozen dataclass with the fields `length` and `packing`.
    """

    RANGES: ClassVar[dict[str, str]] = {**DataNode.RANGES, "length": "1 <= x"}

    # Declared here and made fields by the subclasses, whose constructors have them at other places.
    length: int
    packing: Packing

    @property
    @abc.abstractmethod
    def stream(self) -> Stream:
        """The tokens of the corpus."""

    @property
    @abc.abstractmethod
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]."""

    @property
    def prefix_bytes(self) -> int:
        """The bytes that the first token of a document counts too many."""
        return 0

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the tokens, where it is known without reading them, else empty."""
        return ""

    @abc.abstractmethod
    def entropies(self) -> tuple[float, float]:
        """Return the unigram and the bigram entropy of the corpus, in nats per byte."""

    @functools.cached_property
    def rows(self) -> PackedRows:
        """The rows of an epoch, by number; reads and tokenizes the corpus."""
        return self._pack()

    def _pack(self, plan: RowPlan | None = None) -> PackedRows:
        if self.length < 1:
            raise DataError(Problem(f"rows of {self.length} tokens", remedy="set length >= 1"))
        # `plan` is passed only where there is one: a packing of the user's own may override `rows`
        # without that argument.
        stream = self.stream
        settings = (self.byte_lengths, self.prefix_bytes, self.fingerprint)
        if plan is None:
            return self.packing.rows(stream, self.length, *settings)
        return self.packing.rows(stream, self.length, *settings, plan)

    @property
    def num_documents(self) -> int:
        """The documents of the corpus."""
        return len(self.stream.num_targets)

    @property
    def tokens_per_row(self) -> int:
        """The most targets that a row can have."""
        return self.length

    def batch_spec(self, global_batch_size: int) -> dict[str, tuple[tuple[int, int], np.dtype]]:
        """Return shape and dtype of every entry of the global batch; no data is read."""
        return batch_spec(global_batch_size, self.length)

    def describe(self) -> dict[str, int | float]:
        """Return the size of the corpus and its entropies.

        Returns:
          `documents`, `bytes`, `targets` (with the end tokens among them), `rows`, `length`,
          `vocab_size`, `bytes_per_token` (without end tokens), `fill` (the fraction of the rows
          that is targets), and `unigram_entropy` and `bigram_entropy` of this corpus's bytes, in
          nats per byte.
        """
        # Tokens that carry bytes are all but one start and one end token a document. `fill` is the
        # part of the computation that is not spent on padding.
        stream, targets = self.rows.stream, self.rows.num_targets
        documents = self.num_documents
        own = len(stream.tokens) - documents  # each has its start token beside its targets
        unigram, bigram = self.entropies()
        return {
            "documents": documents,
            "bytes": stream.num_bytes,
            "targets": targets,
            "rows": self.num_rows,
            "length": self.length,
            "vocab_size": len(self.byte_lengths),
            "bytes_per_token": stream.num_bytes / max(own - documents, 1),
            "fill": targets / (self.num_rows * self.length),
            "unigram_entropy": unigram,
            "bigram_entropy": bigram,
        }


@dataclasses.dataclass(frozen=True)
class Packed(TokenNode):
    """Documents, tokenized and packed into rows of one length.

    Nothing is read before the first use; then the corpus is tokenized once and kept as one array.
    Batches are those of every `TokenNode`.

    Args:
      source: The documents.
      tokenizer: Tokenizer of the texts.
      length: L, the number of targets in a row.
      packing: Assigns documents to rows.

    Raises:
      DataError: at first use, when the data is missing, unreadable or too small.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or not"])
      >>> rows = data.Packed(source, data.Bytes(), length=4, packing=data.Concatenate())
      >>> batch = next(iter(rows.batches(global_batch_size=2)))
      >>> print(batch["inputs"])
      [[256 116 111  32]
       [ 98 101 256 111]]
      >>> print(batch["targets"])
      [[116 111  32  98]
       [101 257 111 114]]
    """

    source: Source
    tokenizer: Tokenizer
    length: int
    packing: Packing

    def __str__(self) -> str:
        return f"{self.source} has {self.num_rows} rows of {self.length} tokens"

    @functools.cached_property
    def stream(self) -> Stream:
        """The tokens of the corpus; read and tokenized at first use."""
        # Kept for the life of the node: 2 bytes a token, 2 GB for a billion. Corpora that are too
        # large for that, or used in several runs, are prepared once (`Prepared`).
        return tokenize(self.source, self.tokenizer)

    @property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]."""
        return self.tokenizer.byte_lengths

    @property
    def prefix_bytes(self) -> int:
        """The bytes that the first token of a document counts too many."""
        return self.tokenizer.prefix_bytes

    @functools.cached_property
    def _byte_counts(self) -> ByteCounts:
        # A pass over the source of its own, made only where a description asks for it.
        counts = ByteCounts()
        for _, documents in blocks(self.source):
            counts.add(documents)
        return counts

    def entropies(self) -> tuple[float, float]:
        """Return the unigram and the bigram entropy of the corpus, in nats per byte.

        Returns:
          Two numbers, in nats per byte.
        """
        return self._byte_counts.unigram_entropy(), self._byte_counts.bigram_entropy()
