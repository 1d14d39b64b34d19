"""The protocol of tokenizers, and bytes as tokens."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

SPACE = "\u2581"  # stands for a space inside the vocabularies that have no byte-level alphabet
_NOT_TEXT = re.compile("([\udc80-\udcff]+)")


class Tokenizer(abc.ABC):
    """Turns text into tokens and back, and knows how many bytes each token stands for.

    A tokenizer of your own subclasses this and is cheap to construct (no file is opened before
    the first use). The tokens of a document must stand for exactly its bytes: losses per byte are
    computed from `byte_lengths`, and `Packed` refuses a tokenizer that drops or adds bytes, unless
    it says so (`keeps_bytes`).
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

    # The bytes of a token are counted from its spelling; a space that the tokenizer itself adds in
    # front is in the spelling of the first token, and has to come off again, once a document.
    @property
    def prefix_bytes(self) -> int:
        """Bytes that the first token of a document counts too many, as for a space in front."""
        return 0

    @property
    def keeps_bytes(self) -> bool:
        """Whether the tokens of a document stand for exactly its bytes.

        Where they do not (a vocabulary that lowercases), losses per byte are per byte of what the
        tokens spell.
        """
        return True

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """Paths of its files, by the names under which other libraries look for each; often empty.

        An export copies them beside the weights.
        """
        return {}

    @abc.abstractmethod
    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text, without `bos` and `eos`.

        Args:
          text: A text; `str` is taken as UTF-8.

        Returns:
          Token ids.
        """

    @abc.abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; special ones and those beyond the vocabulary have none.

        Args:
          tokens: Token ids.

        Returns:
          The text.
        """

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, each an integer array.

        Args:
          documents: The documents, as bytes.

        Returns:
          An integer array [tokens] for each document.
        """
        return [np.asarray(self.encode(document), np.int32) for document in documents]


def to_bytes(text: str | bytes) -> bytes:
    """Return text as UTF-8; bytes that a command line could not decode come back as they were."""
    # Python decodes arguments of the command line with `surrogateescape`, which is undone here.
    # Other lone surrogates (from JSON, say) have no bytes that they came from and are encoded as
    # they are.
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def spelled(pieces: Sequence[bytes], tokens: Iterable[int]) -> bytes:
    """Return the bytes of tokens; one beyond the vocabulary, as a larger model draws, has none.

    Args:
      pieces: The bytes of each token of the vocabulary.
      tokens: The tokens.
    """
    return b"".join(pieces[token] for token in map(int, tokens) if token < len(pieces))


def text_parts(document: bytes) -> Iterator[str | bytes]:
    """Yield the runs of valid UTF-8 as `str` and the bytes between them as `bytes`."""
    # Libraries take text only. `surrogateescape` turns each invalid byte into a code point that
    # valid text cannot have, by which the text is split. Valid documents, nearly all, take the
    # short way.
    try:
        yield document.decode("utf-8")
    except UnicodeDecodeError:
        for part in _NOT_TEXT.split(document.decode("utf-8", "surrogateescape")):
            if _NOT_TEXT.fullmatch(part):
                yield part.encode("utf-8", "surrogateescape")
            elif part:
                yield part


def parts_without_markers(document: bytes) -> Iterator[str | bytes]:
    """Yield texts without U+2581, and the bytes of that character and of what is not UTF-8."""
    for part in text_parts(document):
        if isinstance(part, bytes):
            yield part
            continue
        for piece in re.split(f"({SPACE}+)", part):
            if piece:
                yield piece.encode("utf-8") if piece[0] == SPACE else piece


def encode_parts(
    documents: Sequence[bytes],
    encode_texts: Callable[[list[str]], Iterable[Sequence[int]]],
    byte_tokens: Sequence[int],
    split: Callable[[bytes], Iterator[str | bytes]] = text_parts,
) -> list[np.ndarray]:
    """Return the tokens of documents some bytes of which are not text.

    Args:
      documents: The documents.
      encode_texts: Returns the tokens of many texts, in their order; called once.
      byte_tokens: The token of each single byte; 256 of them.
      split: Cuts a document into texts and runs of bytes to encode one by one.

    Returns:
      The tokens of each document, int32 [tokens].
    """
    parts = [list(split(document)) for document in documents]
    texts = [part for document in parts for part in document if isinstance(part, str)]
    # One call for all texts, because libraries run in parallel over a list; the generator is
    # consumed in the same order below.
    encoded = (np.array(tokens, np.int32) for tokens in encode_texts(texts))
    return [
        np.concatenate(
            [np.empty(0, np.int32)]
            + [
                next(encoded)
                if isinstance(part, str)
                else np.array([byte_tokens[byte] for byte in part], np.int32)
                for part in document
            ]
        )
        for document in parts
    ]


# Bytes as tokens.


@dataclasses.dataclass(frozen=True)
class Bytes(Tokenizer):
    """One token a byte: 0..255 are the bytes, 256 begins a document, 257 ends it.

    Any bytes can be encoded, UTF-8 or not, and come back as they were. The vocabulary has exactly
    258 tokens; where a mesh needs another multiple, the embedding pads itself (its
    `pad_to_multiple`).

    Example:
      >>> from luthier import data
      >>> tokenizer = data.Bytes()
      >>> tokenizer.encode("To be"), tokenizer.vocab_size
      ([84, 111, 32, 98, 101], 258)
      >>> tokenizer.decode([84, 111])
      'To'
    """

    vocab_size: ClassVar[int] = 258  # type: ignore[misc]
    bos: ClassVar[int] = 256  # type: ignore[misc]
    eos: ClassVar[int] = 257  # type: ignore[misc]

    @property
    def byte_lengths(self) -> np.ndarray:
        """One for each byte, 0 for the special tokens; int32 [258]."""
        return np.repeat(np.array([1, 0], np.int32), [256, 2])

    def encode(self, text: str | bytes) -> list[int]:
        """Return the bytes of a text (UTF-8 for `str`).

        Args:
          text: A text; `str` is taken as UTF-8.

        Returns:
          Token ids.
        """
        return list(to_bytes(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; invalid UTF-8 shows as U+FFFD.

        Args:
          tokens: Token ids.

        Returns:
          The text.
        """
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes exactly; special tokens stand for nothing.

        Args:
          tokens: Token ids.

        Returns:
          The bytes.
        """
        return bytes(int(token) for token in tokens if token < 256)

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the documents as views of their bytes, uint8.

        Args:
          documents: The documents, as bytes.

        Returns:
          An integer array [tokens] for each document.
        """
        # Nothing is copied; `tokenize` widens the numbers when it writes them into the stream.
        return [np.frombuffer(document, np.uint8) for document in documents]
