"""What a tokenizer is."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence

import numpy as np


class Tokenizer(abc.ABC):
    """Turns text into tokens and back, and knows how many bytes each token stands for.

    A tokenizer of your own subclasses this and is cheap to construct (no file is opened before
    the first use). The tokens of a document must stand for exactly its bytes: losses per byte are
    computed from `byte_lengths`, and `Packed` refuses a tokenizer that drops or adds bytes.
    """

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """The number of tokens; every token is in 0..vocab_size - 1."""

    @property
    @abc.abstractmethod
    def bos(self) -> int:
        """The token from which the first token of a document is predicted."""

    @property
    @abc.abstractmethod
    def eos(self) -> int:
        """The token that ends a document."""

    @property
    @abc.abstractmethod
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]; 0 for special tokens."""

    @abc.abstractmethod
    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text, without `bos` and `eos`."""

    @abc.abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; special tokens stand for nothing."""

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, each an integer array."""
        return [np.asarray(self.encode(document), np.int32) for document in documents]


def to_bytes(text: str | bytes) -> bytes:
    """Return text as UTF-8; bytes that a command line could not decode come back as they were."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
