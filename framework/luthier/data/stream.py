"""A corpus as one array of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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


def encode_checked(
    source: Source, tokenizer: Tokenizer, start: int, documents: Sequence[bytes]
) -> Sequence[np.ndarray]:
    """Return the tokens of documents, after a look at the bytes that they stand for.

    Args:
      source: Where the documents are from, for messages.
      tokenizer: Turns them into tokens.
      start: The index of the first of them.
      documents: The documents.

    Raises:
      DataError: when the tokenizer drops or adds bytes and does not say so.
    """
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

    Raises:
      DataError: when documents cannot be read, or the tokenizer drops or adds bytes.
    """
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
