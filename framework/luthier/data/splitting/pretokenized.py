"""Records that hold tokens already, as rows of tokens."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.packed import TokenNode
from luthier.data.packing import Packing
from luthier.data.sources.records import Records
from luthier.data.sources.source import MAX_PROBLEMS
from luthier.data.stream import Stream, token_dtype
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Pretokenized(TokenNode):
    """Documents whose tokens are a field of records, packed into rows of one length.

    All records are read at the first use, and their tokens kept as one array. Batches are those of
    every `TokenNode`.

    Args:
      records: The records.
      tokenizer: The vocabulary that the tokens are of; it is not asked to encode anything.
      length: L, the targets for which a row has room.
      packing: How documents share rows.
      field: The name of the field that holds the tokens.

    Raises:
      DataError: at first use, when records cannot be read, or a field is missing or no list of
        tokens of the vocabulary.
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
        parts = [part for document in documents for part in (bos, document, eos)]
        tokens = np.concatenate(parts).astype(token_dtype(self.tokenizer.vocab_size))
        num_targets = np.array([len(document) + 1 for document in documents], np.int64)
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
        """Return the unigram and the bigram entropy of the decoded text, in nats per byte."""
        stream, counts = self.stream, ByteCounts()
        for stop, size in zip(np.cumsum(stream.num_targets + 1), stream.num_targets, strict=True):
            tokens = stream.tokens[stop - size : stop - 1]
            counts.add([self.tokenizer.decode(tokens.tolist()).encode("utf-8", "surrogateescape")])
        return counts.unigram_entropy(), counts.bigram_entropy()

    def _tokens(self, index: int) -> np.ndarray:
        value = self.records.value(index, self.field)
        tokens = np.asarray(value).reshape(-1)
        where = f"{self.records.name(index)}: field {self.field!r}"
        if len(tokens) and tokens.dtype.kind not in "iu":
            what = f"{where} is no list of tokens but {type(value).__name__}"
            raise DataError(Problem(what, remedy="name a field of tokens"))
        size = self.tokenizer.vocab_size
        beyond = tokens[(tokens < 0) | (tokens >= size)] if len(tokens) else tokens
        if len(beyond):
            what = f"{where} has a token beyond the vocabulary's {size}: {beyond[0]}"
            raise DataError(Problem(what, remedy="set the tokenizer to that of the tokens"))
        return tokens.astype(np.int64)
