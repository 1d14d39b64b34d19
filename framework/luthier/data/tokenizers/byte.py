"""Bytes as tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from luthier.data.tokenizers.tokenizer import Tokenizer, to_bytes


@dataclasses.dataclass(frozen=True)
class Bytes(Tokenizer):
    """One token a byte: 0..255 are the bytes, 256 begins a document, 257 ends it.

    Any bytes can be encoded, UTF-8 or not, and come back as they were. The vocabulary has exactly
    258 tokens; where a mesh needs another multiple, the embedding pads itself (its
    `pad_to_multiple`).
    """

    vocab_size: ClassVar[int] = 258  # type: ignore[misc]
    bos: ClassVar[int] = 256  # type: ignore[misc]
    eos: ClassVar[int] = 257  # type: ignore[misc]

    @property
    def byte_lengths(self) -> np.ndarray:
        """One for each byte, 0 for the special tokens; int32 [258]."""
        return np.repeat(np.array([1, 0], np.int32), [256, 2])

    def encode(self, text: str | bytes) -> list[int]:
        """Return the bytes of a text (UTF-8 for `str`)."""
        return list(to_bytes(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; what is not UTF-8 shows as U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes exactly; special tokens stand for nothing."""
        return bytes(int(token) for token in tokens if token < 256)

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the documents as views of their bytes, uint8."""
        return [np.frombuffer(document, np.uint8) for document in documents]
