"""Tokenizers of published models, in Hugging Face JSON files: WordPiece, Unigram, BPE."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.data.tokenizers.bpe import PROBE, alphabet, missing_specials, read_tokenizer
from luthier.data.tokenizers.tokenizer import (
    SPACE,
    Tokenizer,
    encode_parts,
    parts_without_markers,
    spelled,
    text_parts,
    to_bytes,
)
from luthier.errors import DataError

if TYPE_CHECKING:
    import tokenizers

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclasses.dataclass(frozen=True)
class TokenizerJson(Tokenizer):
    """The tokenizer of a published model, from its `tokenizer.json`.

    Vocabularies that keep every byte (byte-level, or byte fallback with spaces as U+2581) have
    exact `byte_lengths`; a space that the tokenizer puts in front of a document is counted in
    `prefix_bytes`. Others (lowercased WordPiece, normalized Unigram) do not keep bytes, and declare
    it with `keeps_bytes`: a token then counts the bytes that it spells. Text that looks like a
    special token is encoded as text.

    Args:
      path: The JSON file.
      bos_token: The token that begins a document (BERT: `[CLS]`).
      eos_token: The token that ends a document (BERT: `[SEP]`).

    Raises:
      DataError: at first use, when the file is missing or damaged, or lacks the special tokens.

    Deviation: a space is put in front of every document that is not empty; Hugging Face's
      `Metaspace` leaves it out where the document begins with a space, which loses that byte.
    """

    path: str
    bos_token: str = "<s>"
    eos_token: str = "</s>"

    @property
    def vocabulary_files(self) -> Mapping[str, str]:
        """The file, which holds a whole tokenizer."""
        return {"tokenizer.json": self.path}

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: the vocabulary is read again in other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _loaded(self) -> tuple[tokenizers.Tokenizer, bool, dict[str, Any]]:
        """The tokenizer without a space in front, whether it wants one, and its JSON."""
        # The prefix space is taken out of the JSON and put in front by `encode_many`: a document is
        # encoded in several parts where bytes are no text, and the tokenizer would put a space
        # before each part.
        contents: list[dict[str, Any]] = []
        wanted: list[bool] = []

        # `read_tokenizer` owns the errors of reading; its hook is the place to look at the JSON.
        def edit(text: str) -> str:
            contents.append(json.loads(text))
            edited, has_prefix = _without_prefix(contents[0])
            wanted.append(has_prefix)
            return json.dumps(edited)

        tokenizer = read_tokenizer(self.path, edit)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        problems = missing_specials(tokenizer, self.path, self.bos_token, self.eos_token)
        if problems:
            raise DataError(problems)
        return tokenizer, wanted[0], contents[0]

    @property
    def prefix_bytes(self) -> int:
        """1 where the tokenizer puts a space in front of a document, else 0."""
        return int(self._loaded[1])

    @functools.cached_property
    def keeps_bytes(self) -> bool:  # type: ignore[override]
        """Whether the tokens of a text stand for exactly its bytes."""
        # By trying, on a text with every difficulty, since normalizers of all kinds may be nested.
        tokens = self.encode_many([PROBE.encode("utf-8")])[0]
        text = b"".join(self._pieces[token] for token in tokens)
        return text == b" " * self.prefix_bytes + PROBE.encode("utf-8")

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self._pieces)

    @functools.cached_property
    def bos(self) -> int:
        """The token that begins a document."""
        return self._loaded[0].get_vocab()[self.bos_token]

    @functools.cached_property
    def eos(self) -> int:
        """The token that ends a document."""
        return self._loaded[0].get_vocab()[self.eos_token]

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        """Whether the characters of tokens stand for bytes, as in GPT-2."""
        # Wherever it is nested (in a Sequence, say): the parts are searched as text.
        content = self._loaded[2]
        parts = [content.get(name) for name in ("pre_tokenizer", "decoder")]
        return '"ByteLevel"' in json.dumps(parts)

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes that each token spells."""
        # The order of the cases matters: an added token may also look like a byte or a word, and a
        # model with byte fallback may have `<0x41>` beside a piece "A". WordPiece marks
        # continuations (`##ing`) by a prefix that is no text.
        tokenizer, _, content = self._loaded
        model = content.get("model", {})
        vocabulary, added = tokenizer.get_vocab(), tokenizer.get_added_tokens_decoder()
        to_byte = {character: byte for byte, character in enumerate(alphabet())}
        continuing = model.get("continuing_subword_prefix") or ""
        pieces = [b""] * (max(vocabulary.values()) + 1)
        for piece, token in vocabulary.items():
            byte = _BYTE.fullmatch(piece) if model.get("byte_fallback") else None
            if token in added:
                pieces[token] = b"" if added[token].special else added[token].content.encode()
            elif piece in (model.get("unk_token"), self.bos_token, self.eos_token):
                pieces[token] = b""
            elif byte:
                pieces[token] = bytes([int(byte[1], 16)])
            elif self._is_byte_level and set(piece) <= set(to_byte):
                pieces[token] = bytes(to_byte[character] for character in piece)
            else:
                pieces[token] = piece.removeprefix(continuing).replace(SPACE, " ").encode()
        return pieces

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token spells, int32 [vocab_size]; 0 for special tokens."""
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @functools.cached_property
    def _byte_tokens(self) -> list[int] | None:
        """The token of each single byte, or None where the vocabulary has no such tokens."""
        vocabulary = self._loaded[0].get_vocab()
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        names = alphabet() if self._is_byte_level else fallback
        if all(name in vocabulary for name in names):
            return [vocabulary[name] for name in names]
        return None

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text.

        Args:
          text: A text; `str` is taken as UTF-8.

        Returns:
          Token ids.
        """
        return self.encode_many([to_bytes(text)])[0].tolist()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text; where bytes are not kept, as the tokenizer's own decoder spells it.

        Args:
          tokens: Token ids.

        Returns:
          The text.
        """
        tokens = [int(token) for token in tokens]
        if not self.keeps_bytes:
            return self._loaded[0].decode(tokens)
        text = spelled(self._pieces, tokens)
        return text.removeprefix(b" " * self.prefix_bytes).decode("utf-8", "replace")

    def encode_many(self, documents: Sequence[bytes]) -> Sequence[np.ndarray]:
        """Return the tokens of many documents, int32, encoded on all cores.

        Args:
          documents: The documents, as bytes.

        Returns:
          An integer array [tokens] for each document.
        """
        tokenizer, has_prefix, _ = self._loaded
        if has_prefix:
            documents = [b" " + document if document else document for document in documents]

        def encode(texts: list[str]) -> list[list[int]]:
            encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [encoding.ids for encoding in encoded]

        # Without tokens for bytes, invalid UTF-8 is lost; such a vocabulary does not keep bytes
        # anyway.
        if self._byte_tokens is None:
            texts = [document.decode("utf-8", "replace") for document in documents]
            return [np.array(tokens, np.int32) for tokens in encode(texts)]
        is_byte_level = self._byte_tokens[ord("!")] == tokenizer.token_to_id("!")
        return encode_parts(
            documents,
            encode,
            self._byte_tokens,
            text_parts if is_byte_level else parts_without_markers,
        )


def _without_prefix(content: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the JSON without prefix spaces, and whether there was one."""
    # Three ways to ask for it are taken out: a normalizer `Prepend` of U+2581 (Llama's), a
    # pre-tokenizer `Metaspace` with a `prepend_scheme`, and the older `add_prefix_space` of the
    # same. Each may be the component itself, or nested in a Sequence. The file's content is not
    # changed in place, as `_loaded` keeps it.
    #
    # All of them share one flag, although `Metaspace` adds no space to a text that begins with one:
    # `encode_many` adds it always (the deviation of the class), so that exactly one byte of every
    # document is `prefix_bytes` and `decode` can take it off again.
    #
    # The `add_prefix_space` of a `ByteLevel` pre-tokenizer, which is off in GPT-2's file, is not
    # handled: the library goes on to add that space, before every part where bytes are no text. The
    # space is in the tokens of `keeps_bytes`' probe but not in `prefix_bytes`, so the vocabulary is
    # declared as one that does not keep bytes, and a token counts the bytes that it spells.
    has_prefix = False

    def edit(node: Any) -> Any:
        nonlocal has_prefix
        if isinstance(node, list):
            return [edit(item) for item in node if not _prepends(item)]
        if not isinstance(node, dict):
            return node
        for name in ("normalizers", "pretokenizers"):
            if any(_prepends(item) for item in node.get(name, [])):
                has_prefix = True
        node = {name: edit(value) for name, value in node.items()}
        if node.get("type") == "Metaspace":
            # The defaults are those of the library: a `Metaspace` that says nothing adds a space.
            scheme = node.get("prepend_scheme", "always")
            has_prefix = has_prefix or (scheme != "never" and node.get("add_prefix_space", True))
            node.pop("add_prefix_space", None)
            node["prepend_scheme"] = "never"
        return node

    edited = dict(content)
    for name in ("normalizer", "pre_tokenizer"):
        if _prepends(content.get(name)):
            has_prefix, edited[name] = True, None
        else:
            edited[name] = edit(content.get(name))
    return edited, has_prefix


def _prepends(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "Prepend" and node["prepend"] == SPACE
