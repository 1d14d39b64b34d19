"""How a corpus is cut into shards: decided once, from a few of its documents."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import Any

import numpy as np

from luthier.data.sources.source import Source
from luthier.data.stream import encode_checked, token_dtype
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

SAMPLES = 64
SHARD_BYTES = 64 << 20
LEAST_SHARDS = 16
_PROBE = "To be,  or\tnot\n\n to be: naïve 東京 123 🎻 ".encode()


@dataclasses.dataclass(frozen=True)
class Survey:
    """What a few documents, evenly spread, say of the corpus.

    Args:
      documents: All documents.
      sampled: How many were looked at.
      num_bytes: The bytes of all documents, estimated.
      num_tokens: The tokens of all documents, estimated.
      dtype: Of the tokens.
      seconds: What one process would take, estimated.
      digest: A fingerprint of the documents that were looked at.
    """

    documents: int
    sampled: int
    num_bytes: int
    num_tokens: int
    dtype: str
    seconds: float
    digest: str

    @property
    def disk_bytes(self) -> int:
        """What the shards take on disk, estimated."""
        return self.num_tokens * np.dtype(self.dtype).itemsize + 8 * self.documents


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which documents stand in which shard, and of what.

    Args:
      bounds: Shard i has the documents bounds[i]..bounds[i + 1] - 1.
      tokenizer: What `tokenizer_facts` says.
      source: What the source calls itself.
      digest: Of the surveyed documents.
    """

    bounds: tuple[int, ...]
    tokenizer: dict[str, Any]
    source: str
    digest: str

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Return what differs from a layout that was written, in words."""
        ours: dict[str, Any] = {"bounds": list(self.bounds), "digest": self.digest}
        # What a tokenizer is called depends on paths, which may differ for one vocabulary.
        ours["tokenizer"] = {**self.tokenizer, "name": other["tokenizer"]["name"]}
        words = {
            "tokenizer": "another tokenizer",
            "digest": "another corpus",
            "bounds": "another number of documents or shards",
        }
        return [words[name] for name in words if other.get(name) != ours[name]]


def survey(source: Source, tokenizer: Tokenizer) -> Survey:
    """Look at a few documents, evenly spread over the corpus.

    Args:
      source: The documents.
      tokenizer: Turns them into tokens.

    Raises:
      DataError: when there is no document, or one of those cannot be read or tokenized.
    """
    total = len(source)
    if not total:
        raise DataError(Problem(f"{source} has no documents", remedy="give it some text"))
    start = time.perf_counter()
    indices = np.unique(np.linspace(0, total - 1, min(SAMPLES, total)).astype(np.int64))
    hasher = hashlib.blake2b(f"{total}".encode(), digest_size=16)
    num_bytes = num_tokens = 0
    for index in indices.tolist():
        document = source[index]
        (tokens,) = encode_checked(source, tokenizer, index, [document])
        hasher.update(len(document).to_bytes(8, "little") + document)
        num_bytes += len(document)
        num_tokens += len(tokens) + 2
    scale = total / len(indices)
    return Survey(
        documents=total,
        sampled=len(indices),
        num_bytes=int(num_bytes * scale),
        num_tokens=int(num_tokens * scale),
        dtype=np.dtype(token_dtype(tokenizer.vocab_size)).name,
        seconds=(time.perf_counter() - start) * scale,
        digest=hasher.hexdigest(),
    )


def plan_layout(
    source: Source, tokenizer: Tokenizer, found: Survey, num_shards: int | None = None
) -> Layout:
    """Decide how a corpus is cut; it depends on the corpus alone, not on the machine.

    Args:
      source: The documents.
      tokenizer: Turns them into tokens.
      found: What `survey` returned.
      num_shards: How many; None takes as many as 64 MiB of text each need, at least 16.
    """
    wanted = num_shards or max(-(-found.num_bytes // SHARD_BYTES), LEAST_SHARDS)
    bounds = np.linspace(0, found.documents, min(wanted, found.documents) + 1).astype(np.int64)
    name = f"{source}"
    name = name if len(name) <= 400 else f"{name[:400]}..."
    return Layout(tuple(bounds.tolist()), tokenizer_facts(tokenizer), name, found.digest)


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what tells whether tokens are of this vocabulary, JSON-able."""
    lengths = np.asarray(tokenizer.byte_lengths, np.int32)
    hasher = hashlib.blake2b(lengths.tobytes(), digest_size=16)
    hasher.update(np.asarray(tokenizer.encode_many([_PROBE])[0], np.int64).tobytes())
    return {
        "name": f"{tokenizer}"[:400],
        "vocab_size": tokenizer.vocab_size,
        "bos": int(tokenizer.bos),
        "eos": int(tokenizer.eos),
        "prefix_bytes": tokenizer.prefix_bytes,
        "fingerprint": hasher.hexdigest(),
    }
