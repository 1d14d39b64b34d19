"""SentencePiece vocabularies."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.data.messages import message_class
from luthier.data.requirements import require
from luthier.data.sources.files import read_file
from luthier.data.tokenizers.tokenizer import (
    SPACE,
    Tokenizer,
    encode_parts,
    parts_without_markers,
    spelled,
    to_bytes,
)
from luthier.errors import DataError, Problem

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclasses.dataclass(frozen=True)
class SentencePiece(Tokenizer):
    """A SentencePiece vocabulary (`.model`), with exact bytes.

    Where the model puts a space in front of a document, its tokens count one byte too many, which
    `prefix_bytes` reports. A byte that is not part of valid UTF-8, and the character U+2581 that
    stands for a space inside the model, become the tokens of their single bytes. Text that looks
    like a control token is encoded as text.

    Args:
      path: The model file; its normalization must keep text as it is (`identity`, without removal
        of extra whitespace), and it needs byte fallback or characters for all of the text.
      bos_token: The control token that begins a document.
      eos_token: The control token that ends a document.

    Raises:
      DataError: at first use, when the file is missing or damaged, changes text, or lacks the
        special tokens.

    Source: Kudo and Richardson 2018, arXiv:1808.06226.
    """

    path: str
    bos_token: str = "<s>"
    eos_token: str = "</s>"

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """The model file."""
        return {"tokenizer.model": self.path}

    @functools.cached_property
    def _model(self) -> tuple[Any, bool]:
        """The processor, without a space in front, and whether the model wants one."""
        library = require("sentencepiece", "sentencepiece", "reading SentencePiece vocabularies")
        proto = read_file(os.path.expanduser(self.path))
        try:
            model = _parse(proto)
            has_prefix, problem = _normalization(model)
            # Switched off here; `encode_many` puts the space in front. A document whose bytes are
            # not all text is encoded in several parts, each of which would get a space of its own.
            model.normalizer_spec.add_dummy_prefix = False
            processor = library.SentencePieceProcessor(model_proto=model.SerializeToString())
        except (ValueError, RuntimeError, OSError) as error:
            what = f"{self.path}: not a SentencePiece model: {error}"
            raise DataError(Problem(what, remedy="name a `.model` file")) from None
        if problem:
            remedy = "train it with normalization `identity` and without removal of whitespace"
            raise DataError(Problem(f"{self.path}: {problem}", remedy=remedy))
        problems = [
            Problem(f"{self.path}: no token {token!r}", remedy="set `bos_token` and `eos_token`")
            for token in dict.fromkeys((self.bos_token, self.eos_token))
            if processor.id_to_piece(processor.piece_to_id(token)) != token
        ]
        if problems:
            raise DataError(problems)
        return processor, has_prefix

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: the model is read again in other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def vocab_size(self) -> int:
        """The number of tokens, control tokens included."""
        return len(self._pieces)

    @functools.cached_property
    def bos(self) -> int:
        """The token that begins a document."""
        return int(self._model[0].piece_to_id(self.bos_token))

    @functools.cached_property
    def eos(self) -> int:
        """The token that ends a document."""
        return int(self._model[0].piece_to_id(self.eos_token))

    @property
    def prefix_bytes(self) -> int:
        """1 where the model puts a space in front of a document, else 0."""
        return int(self._model[1])

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes that each token stands for."""
        processor, pieces = self._model[0], []
        for token in range(processor.get_piece_size()):
            piece = processor.id_to_piece(token)
            # Byte fallback spells a byte as `<0x0A>`; U+2581 stands for a space inside pieces.
            # Control tokens and the unknown one have a spelling that is no text.
            if processor.is_byte(token):
                match = _BYTE.fullmatch(piece)
                pieces.append(bytes([int(match[1], 16)]) if match else b"")
            elif processor.is_control(token) or processor.is_unknown(token):
                pieces.append(b"")
            else:
                pieces.append(piece.replace(SPACE, " ").encode("utf-8"))
        return pieces

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]; 0 for control tokens."""
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @functools.cached_property
    def _byte_tokens(self) -> list[int]:
        """The token of each byte, or the unknown token, which stands for no bytes."""
        # A model without byte fallback then fails the check of bytes (`encode_checked`) at the
        # first document that needs one, and works on all others.
        processor = self._model[0]
        return [int(processor.piece_to_id(f"<0x{byte:02X}>")) for byte in range(256)]

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text; bytes that are not UTF-8 become single-byte tokens.

        Args:
          text: A text; `str` is taken as UTF-8.

        Returns:
          Token ids.
        """
        return self.encode_many([to_bytes(text)])[0].tolist()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; invalid UTF-8 (half a character) shows as U+FFFD.

        Args:
          tokens: Token ids.

        Returns:
          The text.
        """
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes exactly, without the space that the model puts in front.

        Args:
          tokens: Token ids.

        Returns:
          The bytes.
        """
        text = spelled(self._pieces, tokens)
        return text.removeprefix(b" ") if self.prefix_bytes else text

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, int32, encoded on all cores.

        Args:
          documents: The documents, as bytes.

        Returns:
          An integer array [tokens] for each document.
        """
        # An empty document gets no space: it has no first token to count it in.
        processor, has_prefix = self._model
        if has_prefix:
            documents = [b" " + document if document else document for document in documents]
        return encode_parts(
            documents,
            lambda texts: processor.encode(texts, num_threads=os.cpu_count() or 1),
            self._byte_tokens,
            parts_without_markers,
        )


# The part of sentencepiece's src/sentencepiece_model.proto that decides if text is kept as it is.
_MODEL = {
    "TrainerSpec": [(24, "treat_whitespace_as_suffix", "bool")],
    "NormalizerSpec": [
        (2, "precompiled_charsmap", "bytes"),
        (3, "add_dummy_prefix", "bool=true"),
        (4, "remove_extra_whitespaces", "bool=true"),
        (5, "escape_whitespaces", "bool=true"),
    ],
    "ModelProto": [(2, "trainer_spec", "TrainerSpec"), (3, "normalizer_spec", "NormalizerSpec")],
}


def _parse(proto: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return message_class("proto2", _MODEL, "ModelProto").FromString(proto)
    except DecodeError as error:  # which is not a ValueError
        raise ValueError(error) from None


def _normalization(model: Any) -> tuple[bool, str]:
    """Return whether a space is put in front, and the problem of a model that changes text."""
    # Read from the settings of the model, for which the processor has no accessor. Encoding a probe
    # would miss a normalization that leaves the probe as it is.
    settings = model.normalizer_spec
    if settings.precompiled_charsmap:
        return False, "its normalization changes characters"
    if settings.remove_extra_whitespaces:
        return False, "it removes extra whitespace"
    if not settings.escape_whitespaces or model.trainer_spec.treat_whitespace_as_suffix:
        return False, "it does not treat whitespace as a prefix of words"
    return bool(settings.add_dummy_prefix), ""
