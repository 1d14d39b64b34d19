"""A corpus that `luthier data prepare` wrote, as rows of tokens."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, cast

import numpy as np

from luthier.data.packed import TokenNode
from luthier.data.packing import Packing
from luthier.data.prepared.layout import tokenizer_facts
from luthier.data.prepared.shards import LENGTHS, load, read_array, read_manifest
from luthier.data.prepared.tokens import ShardedTokens
from luthier.data.stream import Stream
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Prepared(TokenNode):
    """A prepared corpus, packed into rows of one length; its tokens stay on disk.

    The batches are those of `Packed` on the same corpus. In memory are the places of documents in
    the corpus and in the rows (about 40 bytes a document), not the tokens. A checkpoint of a run
    on `Packed` does not continue on `Prepared`, since the corpus is not read to compare it.

    Args:
      directory: What `luthier data prepare` wrote.
      length: L, the targets for which a row has room.
      packing: How documents share rows.
      tokenizer: For what turns tokens into text, as sampling; None does without.

    Raises:
      DataError: at first use, when the folder is not prepared to its end, is damaged, or was made
        with another tokenizer.
    """

    directory: str
    length: int
    packing: Packing
    tokenizer: Tokenizer | None = None

    def __str__(self) -> str:
        return f"{self.directory} has {self.num_rows} rows of {self.length} tokens"

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: memory maps do not travel to other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What was prepared."""
        manifest = read_manifest(self._folder)
        if self.tokenizer is not None:
            given, made = tokenizer_facts(self.tokenizer), manifest["tokenizer"]
            if {**given, "name": ""} != {**made, "name": ""}:
                what = f"{self.directory} was made with {made['name']}, not {given['name']}"
                raise DataError(Problem(what, remedy="name the tokenizer that it was made with"))
        return manifest

    @property
    def _folder(self) -> str:
        return os.path.expanduser(self.directory)

    def _all(self, kind: str) -> list[np.ndarray]:
        return [load(self._folder, shard["name"], kind) for shard in self.manifest["shards"]]

    @functools.cached_property
    def stream(self) -> Stream:
        """The tokens of the corpus, on disk."""
        parts, targets = self._all("tokens"), self._all("targets")
        for shard, part, counts in zip(self.manifest["shards"], parts, targets, strict=True):
            # A document has its start token, and as many after it as it has targets.
            if (counts < 1).any() or int(counts.sum()) + len(counts) != len(part):
                what = f"{os.path.join(self.directory, shard['name'])}: tokens and targets differ"
                raise DataError(Problem(what, remedy="delete the folder, and prepare it again"))
        tokens = ShardedTokens(parts, len(self.byte_lengths), self.directory)
        return Stream(cast(np.ndarray, tokens), np.concatenate(targets), self.manifest["bytes"])

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """The bytes that each token stands for, int32 [vocab_size]."""
        return read_array(os.path.join(self._folder, LENGTHS))

    @property
    def prefix_bytes(self) -> int:
        """The bytes that the first token of a document counts too many."""
        return self.manifest["tokenizer"]["prefix_bytes"]

    @property
    def fingerprint(self) -> str:
        """The digest of the manifest."""
        return self.manifest["digest"]

    def entropies(self) -> tuple[float, float]:
        """Return the unigram and the bigram entropy of the corpus, in nats per byte."""
        return self.manifest["unigram_entropy"], self.manifest["bigram_entropy"]
