"""A corpus as one array of tokens."""

from __future__ import annotations

import dataclasses

import numpy as np

from luthier.data.sources.source import Source, blocks
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


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


def tokenize(source: Source, tokenizer: Tokenizer) -> Stream:
    """Read and tokenize all documents.

    Args:
      source: The documents.
      tokenizer: The tokens of a document must stand for exactly its bytes.

    Raises:
      DataError: when documents cannot be read, or the tokenizer drops or adds bytes.
    """
    byte_lengths = tokenizer.byte_lengths
    dtype = np.uint16 if tokenizer.vocab_size <= 65536 else np.int32
    tokens, used, num_bytes = np.empty(1 << 16, dtype), 0, 0
    counts: list[int] = []
    for start, documents in blocks(source):
        for index, encoded in enumerate(tokenizer.encode_many(documents), start):
            size = len(documents[index - start])
            if (stands_for := int(byte_lengths[encoded].sum())) != size:
                what = f"{source.name(index)}: {size} bytes became tokens for {stands_for} bytes"
                raise DataError(Problem(what, remedy="use a tokenizer that keeps every byte"))
            stop = used + len(encoded) + 2
            if stop > len(tokens):
                # Grown in place: realloc moves pages, not bytes.
                tokens.resize(max(stop, len(tokens) + len(tokens) // 4), refcheck=False)
            tokens[used] = tokenizer.bos
            tokens[used + 1 : stop - 1] = encoded
            tokens[stop - 1] = tokenizer.eos
            counts.append(len(encoded) + 1)
            used, num_bytes = stop, num_bytes + size
    tokens.resize(used, refcheck=False)
    return Stream(tokens, np.array(counts, np.int64), num_bytes)
