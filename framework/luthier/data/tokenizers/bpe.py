"""Byte-level byte pair encoding: reading a vocabulary, and training one."""

from __future__ import annotations

import abc
import dataclasses
import difflib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from luthier.data.sources.files import read_file
from luthier.data.sources.source import Source, blocks
from luthier.data.tokenizers.tokenizer import Tokenizer, encode_parts, spelled, text_parts, to_bytes
from luthier.errors import DataError, Problem
from luthier.storage import replacing

if TYPE_CHECKING:
    import tokenizers


PROBE = "To be,  or\tnot\n\n\x00 to be: naïve e\u0301 ﬁ 東京 123\r\n 🎻 "
_TRAIN = "train one with `luthier data train-tokenizer`"


class ByteLevelBpe(Tokenizer):
    """A byte-level BPE vocabulary in any file format.

    Every byte of every document is encoded: a text round-trips exactly, a character may be split
    over tokens (each counts its own bytes), and a byte that is not part of valid UTF-8 becomes
    the token of that single byte. Text that looks like a special token is encoded as text.

    A subclass is a frozen dataclass with the fields `path`, `bos_token` and `eos_token`.
    """

    path: str
    bos_token: str
    eos_token: str

    @abc.abstractmethod
    def _load(self) -> tokenizers.Tokenizer:
        """Read the vocabulary."""

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = self._load()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Otherwise a document that contains `<eos>` as text would end in the middle.
        tokenizer.encode_special_tokens = True
        problems = missing_specials(tokenizer, self.path, self.bos_token, self.eos_token)
        if not set(alphabet()) <= set(tokenizer.get_vocab()):
            problems.append(Problem(f"{self.path}: not byte-level BPE", remedy=_TRAIN))
        if problems:
            raise DataError(problems)
        return tokenizer

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes that each token stands for."""
        # Vocabularies spell bytes by printable characters (`alphabet`). Added tokens are the
        # exception: they hold their text as it is, and the special ones among them stand for no
        # bytes.
        to_byte = {character: byte for byte, character in enumerate(alphabet())}
        vocabulary = self._tokenizer.get_vocab()
        added = self._tokenizer.get_added_tokens_decoder()
        pieces = [b""] * (max(vocabulary.values()) + 1)
        for piece, token in vocabulary.items():
            if token in added:
                pieces[token] = b"" if added[token].special else added[token].content.encode()
                continue
            if not set(piece) <= set(to_byte):
                what = f"{self.path}: not byte-level BPE (its token {token} is {piece!r})"
                raise DataError(Problem(what, remedy=_TRAIN))
            pieces[token] = bytes(to_byte[character] for character in piece)
        # Normalizers and prefix spaces change bytes, and bits per byte would be wrong; rather than
        # to know all of their kinds, a text on which they all do something is encoded.
        tokens = self._tokenizer.encode(PROBE, add_special_tokens=False).ids
        if b"".join(pieces[token] for token in tokens) != PROBE.encode():
            what = f"{self.path}: changes text (a normalizer or a prefix space)"
            raise DataError(Problem(what, remedy=_TRAIN))
        return pieces

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self._pieces)

    @functools.cached_property
    def bos(self) -> int:
        """The token that begins a document."""
        return self._tokenizer.get_vocab()[self.bos_token]

    @functools.cached_property
    def eos(self) -> int:
        """The token that ends a document."""
        return self._tokenizer.get_vocab()[self.eos_token]

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]; 0 for special tokens."""
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @functools.cached_property
    def _byte_tokens(self) -> list[int]:
        vocabulary = self._tokenizer.get_vocab()
        return [vocabulary[character] for character in alphabet()]

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text; bytes that are not UTF-8 become single-byte tokens."""
        return self.encode_many([to_bytes(text)])[0].tolist()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; invalid UTF-8 (half a character) shows as U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes exactly; special tokens stand for nothing."""
        return spelled(self._pieces, tokens)

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, int32, encoded on all cores."""
        return encode_parts(
            documents,
            lambda texts: [
                encoding.ids
                for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ],
            self._byte_tokens,
        )


@dataclasses.dataclass(frozen=True)
class Bpe(ByteLevelBpe):
    """A byte-level BPE vocabulary in a Hugging Face `tokenizers` JSON file.

    Every byte of every document is encoded: a text round-trips exactly, a character may be split
    over tokens (each counts its own bytes), and a byte that is not part of valid UTF-8 becomes
    the token of that single byte. Text that looks like a special token is encoded as text.

    Args:
      path: The JSON file.
      bos_token: The special token of the file that begins a document (GPT-2: `<|endoftext|>`).
      eos_token: The special token of the file that ends a document.

    Raises:
      DataError: at first use, when the file is missing or damaged, is not byte-level BPE, changes
        text (a normalizer, a prefix space), or lacks the special tokens.

    Source: Sennrich, Haddow and Birch 2016, arXiv:1508.07909; Radford et al. 2019 (the byte-level
      alphabet of GPT-2).
    """

    path: str
    bos_token: str = "<bos>"
    eos_token: str = "<eos>"

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """The file, which holds a whole tokenizer."""
        return {"tokenizer.json": self.path}

    def _load(self) -> tokenizers.Tokenizer:
        return read_tokenizer(self.path)


@dataclasses.dataclass(frozen=True)
class BpeMerges(ByteLevelBpe):
    """A byte-level BPE vocabulary in the two files of GPT-2: tokens, and merges in their order.

    Args:
      path: The JSON file from token to number (`encoder.json`, `vocab.json`).
      merges: The text file of merges (`vocab.bpe`, `merges.txt`).
      bos_token: The token of the file that begins a document.
      eos_token: The token of the file that ends a document.

    Raises:
      DataError: as `Bpe` does.

    Source: Radford et al. 2019, Language models are unsupervised multitask learners.
    """

    path: str
    merges: str
    bos_token: str = "<|endoftext|>"
    eos_token: str = "<|endoftext|>"

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """The two files of GPT-2."""
        return {"vocab.json": self.path, "merges.txt": self.merges}

    def _load(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers

        files = [os.path.expanduser(path) for path in (self.path, self.merges)]
        for file in files:
            read_file(file)
        try:
            backend = Backend(models.BPE.from_file(*files))
        except Exception as error:  # the Rust side raises a bare Exception
            what = f"{self.path}, {self.merges}: not the files of a BPE vocabulary: {error}"
            raise DataError(Problem(what, remedy="name `vocab.json` and `merges.txt`")) from None
        # The two files hold tokens and merges only; what GPT-2's code does around them is set here.
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        known = backend.get_vocab()
        # A token of the file becomes special, so that it is encoded as text where a document spells
        # it; one that is missing is not added (its number would be new) but reported by
        # `_tokenizer`.
        specials = dict.fromkeys([self.bos_token, self.eos_token])
        backend.add_special_tokens([token for token in specials if token in known])
        return backend


def train_bpe(
    source: Source,
    vocab_size: int,
    path: str,
    *,
    bos_token: str = "<bos>",
    eos_token: str = "<eos>",
) -> Bpe:
    """Train a byte-level BPE vocabulary on a source and write it; the same input, the same file.

    Args:
      source: The documents; hold out what you evaluate on.
      vocab_size: The number of tokens, the 256 bytes and the two special tokens included.
      path: The JSON file to write; folders are made, an old file is replaced at the end.
      bos_token: The name of the special token that begins a document.
      eos_token: The name of the special token that ends a document.

    Returns:
      The tokenizer, reading from `path`.

    Raises:
      DataError: when `vocab_size` is too small for the bytes or too large for the corpus, or the
        file cannot be written.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be or not to be"])
      >>> tokenizer = data.train_bpe(source, 260, "bpe.json")
      >>> tokenizer.vocab_size, tokenizer.decode(tokenizer.encode("to be"))
      (260, 'to be')

    Source: Sennrich, Haddow and Birch 2016, arXiv:1508.07909, algorithm 1; pre-tokens and byte
      alphabet of Radford et al. 2019 (GPT-2).
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    specials = list(dict.fromkeys([bos_token, eos_token]))
    if vocab_size < 256 + len(specials):
        what = f"a byte-level vocabulary of {vocab_size} tokens is too small"
        raise DataError(Problem(what, remedy=f"ask for at least {256 + len(specials)} tokens"))
    # The trainer counts words and merges the most frequent pair again and again; ties are broken by
    # the numbers of the tokens, so the result depends on the input alone. All 256 bytes are in the
    # alphabet whether they occur or not: later text may have any of them.
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=specials,
        initial_alphabet=alphabet(),
    )
    # The trainer stops without a word where no pair is left to merge. A model with a table larger
    # than its vocabulary would carry rows that are never trained.
    backend.train_from_iterator(_texts(source), trainer)
    reached = backend.get_vocab_size()
    if reached < vocab_size:
        what = f"the corpus has only enough for {reached} tokens, not {vocab_size}"
        raise DataError(Problem(what, remedy=f"ask for at most {reached} tokens, or add text"))
    _write(path, backend.to_str(pretty=True))
    return Bpe(path, bos_token, eos_token)


def missing_specials(
    tokenizer: tokenizers.Tokenizer, path: str, bos_token: str, eos_token: str
) -> list[Problem]:
    """Return the problems of special tokens that a vocabulary does not have."""
    vocabulary = tokenizer.get_vocab()
    problems = []
    for name in sorted({bos_token, eos_token} - set(vocabulary)):
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        there = ", ".join(added) or "none"
        problems.append(
            Problem(
                f"{path}: no special token {name!r} (it has: {there})",
                nearest=tuple(difflib.get_close_matches(name, added, n=3)),
                remedy="name its special tokens with `bos_token` and `eos_token`",
            )
        )
    return problems


def read_tokenizer(path: str, edit: Callable[[str], str] = str) -> tokenizers.Tokenizer:
    """Read a Hugging Face `tokenizers` JSON file.

    Args:
      path: The file.
      edit: Changes its content before it is used.

    Raises:
      DataError: when it cannot be read or is not such a file.
    """
    # Read here and not by the library's `from_file`: its errors are bare exceptions that do not say
    # whether the file is missing.
    import tokenizers

    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            content = file.read()
    except OSError as error:
        what = f"{path}: the tokenizer cannot be read: {error.strerror or error}"
        raise DataError(Problem(what, remedy=_TRAIN)) from None
    except UnicodeDecodeError:
        raise DataError(Problem(f"{path}: not a tokenizer file", remedy=_TRAIN)) from None
    try:
        return tokenizers.Tokenizer.from_str(edit(content))
    except Exception as error:  # the Rust side raises a bare Exception
        what = f"{path}: not a tokenizer file: {error}"
        raise DataError(Problem(what, remedy=_TRAIN)) from None


def _write(path: str, content: str) -> None:
    path = os.path.expanduser(path)
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
        with replacing(path) as file:
            file.write(content.encode())
    except OSError as error:
        what = f"{path}: the tokenizer cannot be written: {error.strerror or error}"
        raise DataError(Problem(what, remedy="choose a path that can be written")) from None


# Training sees text only; bytes that are not UTF-8 are single-byte tokens in any case.
def _texts(source: Source) -> Iterator[str]:
    for _, documents in blocks(source):
        for document in documents:
            yield from (part for part in text_parts(document) if isinstance(part, str))


@functools.cache
def alphabet() -> list[str]:
    """The printable character that represents each byte, as in GPT-2."""
    # Printable Latin-1 characters stand for themselves; the other 68 bytes (controls, space, ...)
    # get the code points from 256 on, in their order. The files of GPT-2 depend on exactly this
    # map.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


# A byte-level BPE vocabulary that is learned when it is first needed.


@dataclasses.dataclass(frozen=True)
class TrainedBpe(ByteLevelBpe):
    """A byte-level BPE vocabulary, learned from a source at the first use; there is no file.

    The vocabulary depends on the documents and the settings alone, so every process and every
    resumed run learns the same one. It takes about a second for each 5 MB of text; for a large
    corpus write it to a file once (`train_bpe`, `luthier data train-tokenizer`), and use `Bpe`.

    Args:
      source: The documents to learn from; hold out what you evaluate on.
      vocab_size: The number of tokens, the 256 bytes and the two special tokens included.
      bos_token: The name of the special token that begins a document.
      eos_token: The name of the special token that ends a document.

    Raises:
      DataError: at first use, when `vocab_size` is too small for the bytes or too large for the
        documents, or these cannot be read.

    Source: Sennrich, Haddow and Birch 2016, arXiv:1508.07909, algorithm 1.
    """

    RANGES: ClassVar[dict[str, str]] = {"vocab_size": "257 <= x"}

    source: Source
    vocab_size: int = 4096  # type: ignore[misc]
    bos_token: str = "<bos>"
    eos_token: str = "<eos>"

    @property
    def path(self) -> str:  # type: ignore[override]
        """The name of the vocabulary in messages."""
        return f"the vocabulary of {self.source}"

    def _load(self) -> tokenizers.Tokenizer:
        # Through a file, so that a trained vocabulary and one that is read take the same path and
        # the same checks.
        with tempfile.TemporaryDirectory(prefix="luthier-bpe-") as folder:
            names = {"bos_token": self.bos_token, "eos_token": self.eos_token}
            file = str(Path(folder) / "tokenizer.json")
            return read_tokenizer(train_bpe(self.source, self.vocab_size, file, **names).path)
