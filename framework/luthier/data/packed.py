"""A corpus of text as rows of tokens: the data node of language models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.packing import Packing
from luthier.data.rows import PackedRows, batch_spec
from luthier.data.sources.source import Source, blocks
from luthier.data.stream import tokenize
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

if TYPE_CHECKING:
    from luthier.data.loader import ShuffledIterator


@dataclasses.dataclass(frozen=True)
class Packed:
    """Documents, tokenized and packed into rows of one length.

    Nothing is read before the first use; then the corpus is tokenized once and kept as one array.
    A batch is a dict of [B, L] arrays: `inputs`, `targets`, `segments` (from 1 in each row),
    `positions` (from 0 in each segment), `documents` (the number of the chunk in the corpus, from
    1), `target_bytes` (the bytes that the target stands for), all int32, and `weights`, float32;
    padding is 0 in all of them. Every token of a document is a target exactly once, the first one
    predicted from the start token, and the end token is a target too.

    Args:
      source: The documents.
      tokenizer: Turns them into tokens.
      length: L, the targets for which a row has room.
      packing: How documents share rows.
      num_threads: Threads that assemble batches ahead of time; 0 assembles them when asked for.
      prefetch_batches: How many batches they are ahead.

    Raises:
      DataError: at first use, when the data is missing, unreadable or too small.
    """

    RANGES: ClassVar[dict[str, str]] = {
        "length": "1 <= x",
        "num_threads": "0 <= x",
        "prefetch_batches": "1 <= x",
    }

    source: Source
    tokenizer: Tokenizer
    length: int
    packing: Packing
    num_threads: int = 1
    prefetch_batches: int = 4

    @functools.cached_property
    def rows(self) -> PackedRows:
        """The rows of an epoch, by number; reads and tokenizes the corpus."""
        if self.length < 1:
            raise DataError(Problem(f"rows of {self.length} tokens", remedy="set length >= 1"))
        stream = tokenize(self.source, self.tokenizer)
        plan = self.packing.plan(stream.num_targets, self.length)
        return PackedRows(stream, plan, self.tokenizer.byte_lengths, self.length)

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return self.rows.num_rows

    @property
    def tokens_per_row(self) -> int:
        """The most targets that a row can have."""
        return self.length

    def batch_spec(self, global_batch_size: int) -> dict[str, tuple[tuple[int, int], np.dtype]]:
        """Return shape and dtype of every entry of the global batch; no data is read."""
        return batch_spec(global_batch_size, self.length)

    def iterator(
        self,
        *,
        global_batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
    ) -> ShuffledIterator:
        """Return the endless training batches of one process.

        The global order depends on the data and the seed alone (`order.shuffled_rows`); the batch
        of step s is its rows [s * B, (s + 1) * B), and each process has an equal part.

        Args:
          global_batch_size: B, the rows of all processes together.
          seed: Of the order of rows.
          process_index: Which process this is.
          process_count: How many there are.

        Returns:
          A Grain iterator, whose `get_state` is JSON-able and fits any number of processes.

        Raises:
          DataError: when B is not a multiple of the processes, or an epoch has fewer than B rows.
        """
        problems = _check_sizes(global_batch_size, process_index, process_count)
        if self.num_rows < global_batch_size:
            size = f"{self.num_rows} rows of {self.length} tokens"
            what = f"{self.source} has {size}, too few for a batch of {global_batch_size} rows"
            remedy = "add data, or lower the global batch size or the length"
            problems.append(Problem(what, remedy=remedy))
        if problems:
            raise DataError(problems)
        from luthier.data import loader

        return loader.shuffled(
            self.rows,
            seed=seed,
            global_batch_size=global_batch_size,
            process_index=process_index,
            process_count=process_count,
            num_threads=self.num_threads,
            prefetch_batches=self.prefetch_batches,
        )

    def batches(
        self, *, global_batch_size: int, process_index: int = 0, process_count: int = 1
    ) -> Iterator[dict[str, np.ndarray]]:
        """Return every row exactly once, in order, for evaluation; padding has weight 0.

        Args:
          global_batch_size: The rows of all processes together.
          process_index: Which process this is.
          process_count: How many there are; each has as many batches as the others.

        Raises:
          DataError: when the batch is not a multiple of the processes.
        """
        problems = _check_sizes(global_batch_size, process_index, process_count)
        if problems:
            raise DataError(problems)
        from luthier.data import loader

        return loader.once(
            self.rows,
            global_batch_size=global_batch_size,
            process_index=process_index,
            process_count=process_count,
            num_threads=self.num_threads,
            prefetch_batches=self.prefetch_batches,
        )

    @functools.cached_property
    def _byte_counts(self) -> ByteCounts:
        counts = ByteCounts()
        for _, documents in blocks(self.source):
            counts.add(documents)
        return counts

    def describe(self) -> dict[str, int | float]:
        """Return the size of the corpus and what it costs without a model.

        Returns:
          `documents`, `bytes`, `targets` (with one end token a document), `rows`, `length`,
          `vocab_size`, `bytes_per_token` (end tokens left out), `fill` (the part of the rows that
          is not padding), and `unigram_entropy` and `bigram_entropy` of this corpus's bytes, in
          nats per byte.
        """
        stream = self.rows.stream
        documents, targets = len(stream.num_targets), int(stream.num_targets.sum())
        return {
            "documents": documents,
            "bytes": stream.num_bytes,
            "targets": targets,
            "rows": self.num_rows,
            "length": self.length,
            "vocab_size": self.tokenizer.vocab_size,
            "bytes_per_token": stream.num_bytes / max(targets - documents, 1),
            "fill": targets / (self.num_rows * self.length),
            "unigram_entropy": self._byte_counts.unigram_entropy(),
            "bigram_entropy": self._byte_counts.bigram_entropy(),
        }


def _check_sizes(global_batch_size: int, process_index: int, process_count: int) -> list[Problem]:
    if global_batch_size < 1:
        what = f"a global batch of {global_batch_size} rows"
        return [Problem(what, remedy="set it to 1 or more")]
    if global_batch_size % process_count:
        what = f"a global batch of {global_batch_size} rows cannot be shared by {process_count}"
        remedy = f"choose a multiple of {process_count}"
        return [Problem(f"{what} processes equally", remedy=remedy)]
    if not 0 <= process_index < process_count:
        return [Problem(f"process {process_index} of {process_count} does not exist")]
    return []
