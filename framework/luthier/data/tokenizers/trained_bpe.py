"""A byte-level BPE vocabulary that is learned when it is first needed."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from luthier.data.sources.source import Source
from luthier.data.tokenizers.bpe import ByteLevelBpe, read_tokenizer, train_bpe

if TYPE_CHECKING:
    import tokenizers


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
        """What messages call the vocabulary."""
        return f"the vocabulary of {self.source}"

    def _load(self) -> tokenizers.Tokenizer:
        with tempfile.TemporaryDirectory(prefix="luthier-bpe-") as folder:
            names = {"bos_token": self.bos_token, "eos_token": self.eos_token}
            file = str(Path(folder) / "tokenizer.json")
            return read_tokenizer(train_bpe(self.source, self.vocab_size, file, **names).path)
