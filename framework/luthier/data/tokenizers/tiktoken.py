"""Vocabularies in the format of tiktoken: ranks, a pattern, and special tokens."""

from __future__ import annotations

import base64
import dataclasses
import difflib
import functools
import gzip
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.data.requirements import require
from luthier.data.sources.files import read_file
from luthier.data.tokenizers.tokenizer import Tokenizer, encode_parts, spelled, to_bytes
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Tiktoken(Tokenizer):
    """A byte-level BPE vocabulary whose file has one token and its rank a line.

    Any bytes are encoded and come back as they were; a byte that is not part of valid UTF-8
    becomes the token of that single byte. Text that looks like a special token is encoded as text.

    Args:
      path: The file of ranks: base64 of the token's bytes, a space, the rank; `.gz` is unpacked.
      pattern: The regular expression that cuts text into words before merging, as published with
        the vocabulary.
      special_tokens: The numbers of the special tokens by name.
      bos_token: The special token that begins a document.
      eos_token: The special token that ends a document.

    Raises:
      DataError: at first use, when the file is missing or damaged, the pattern is not a regular
        expression, or special tokens are missing or have the number of another token.

    Source: Sennrich, Haddow and Birch 2016, arXiv:1508.07909.
    """

    path: str
    pattern: str
    special_tokens: Mapping[str, int]
    bos_token: str = "<|endoftext|>"
    eos_token: str = "<|endoftext|>"

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """The file of ranks, under a name that no library takes for a whole tokenizer."""
        return {"tokenizer.tiktoken" + (".gz" if self.path.endswith(".gz") else ""): self.path}

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: the vocabulary is read again in other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _ranks(self) -> dict[bytes, int]:
        # The file has neither the pattern nor the special tokens, which users copy from elsewhere:
        # what can be checked against the ranks is, since a wrong number would be another token's.
        ranks = _read_ranks(self.path)
        by_rank = {rank: token for token, rank in ranks.items()}
        problems = [
            Problem(
                f"{self.path}: special token {name!r} has number {number} of {by_rank[number]!r}"
            )
            for name, number in self.special_tokens.items()
            if number in by_rank
        ]
        names = list(self.special_tokens)
        problems += [
            Problem(
                f"{self.path}: no special token {name!r}",
                nearest=tuple(difflib.get_close_matches(name, names)),
                remedy="list it in `special_tokens` with its number",
            )
            # Usually one name is both: it is reported once.
            for name in dict.fromkeys((self.bos_token, self.eos_token))
            if name not in names
        ]
        if missing := sum(bytes([byte]) not in ranks for byte in range(256)):
            what = f"{self.path}: {missing} of the 256 bytes have no token"
            problems.append(Problem(what, remedy="use a byte-level vocabulary"))
        if problems:
            raise DataError(problems)
        return ranks

    @functools.cached_property
    def _encoding(self) -> Any:
        library = require("tiktoken", "tiktoken", "reading tiktoken vocabularies")
        ranks = self._ranks
        try:
            return library.Encoding(
                # Without special tokens, so that text that looks like one is encoded as text.
                self.path,
                pat_str=self.pattern,
                mergeable_ranks=ranks,
                special_tokens={},
            )
        # A pattern that Rust's regular expressions do not know fails here, at first use.
        except Exception as error:  # the Rust side raises several kinds
            what = f"{self.path}: the pattern cannot be used: {error}"
            raise DataError(Problem(what, remedy="set `pattern` as published")) from None

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes that each token stands for."""
        # Numbers may have gaps (reserved special tokens); these spell nothing.
        last = max([*self._ranks.values(), *self.special_tokens.values()])
        pieces = [b""] * (last + 1)
        for piece, token in self._ranks.items():
            pieces[token] = piece
        return pieces

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones and gaps in the numbers included."""
        return len(self._pieces)

    @property
    def bos(self) -> int:
        """The token that begins a document."""
        # For its checks: without them, a missing name would be a KeyError.
        self._ranks  # noqa: B018
        return self.special_tokens[self.bos_token]

    @property
    def eos(self) -> int:
        """The token that ends a document."""
        self._ranks  # noqa: B018
        return self.special_tokens[self.eos_token]

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]; 0 for special tokens."""
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @functools.cached_property
    def _byte_tokens(self) -> list[int]:
        return [self._ranks[bytes([byte])] for byte in range(256)]

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
        """Return the bytes exactly; special tokens stand for nothing.

        Args:
          tokens: Token ids.

        Returns:
          The bytes.
        """
        return spelled(self._pieces, tokens)

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, int32, encoded on all cores.

        Args:
          documents: The documents, as bytes.

        Returns:
          An integer array [tokens] for each document.
        """
        threads = os.cpu_count() or 1
        return encode_parts(
            documents,
            lambda texts: self._encoding.encode_ordinary_batch(texts, num_threads=threads),
            self._byte_tokens,
        )


def _read_ranks(path: str) -> dict[bytes, int]:
    # The format of tiktoken's `load_tiktoken_bpe`, read here because that one keeps a cache by
    # path, in which a file that was replaced would not be noticed.
    content = read_file(os.path.expanduser(path))
    ranks: dict[bytes, int] = {}
    try:
        lines = (gzip.decompress(content) if path.endswith(".gz") else content).splitlines()
    except (OSError, EOFError) as error:
        raise DataError(Problem(f"{path}: cannot be unpacked: {error}")) from None
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:  # that of base64 is one too
            what = f"{path}:{number}: not a token and its rank: {error}"
            raise DataError(Problem(what, remedy="name a file of ranks")) from None
    if len(set(ranks.values())) != len(ranks):
        raise DataError(Problem(f"{path}: several tokens have one rank", remedy="copy it again"))
    return ranks
