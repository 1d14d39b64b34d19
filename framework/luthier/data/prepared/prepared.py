"""A corpus that `luthier data prepare` wrote, as rows of tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from luthier.data.filters.left_out import nodes_of
from luthier.data.packed import TokenNode
from luthier.data.packing import Packing
from luthier.data.prepared import plans
from luthier.data.prepared.layout import tokenizer_facts
from luthier.data.prepared.shards import LENGTHS, load, read_array, read_manifest
from luthier.data.prepared.tokens import ShardedStream, ShardedTokens
from luthier.data.rows import PackedRows
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

TELL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Prepared(TokenNode):
    """A prepared corpus, packed into rows of one length; its tokens stay on disk.

    The batches are those of `Packed` on the same corpus. The places of documents in the rows (about
    24 bytes a document) are computed at the first start and kept in the folder, or in the user's
    cache folder where it cannot be written; later starts take as long and as much memory for any
    corpus. A checkpoint of a run on `Packed` does not continue on `Prepared`, since the corpus is
    not read to compare it.

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

    @functools.cached_property
    def _shards(self) -> list[np.ndarray]:
        shards = self.manifest["shards"]
        allow_open_files(len(shards))
        return [load(self._folder, shard["name"], "tokens") for shard in shards]

    @functools.cached_property
    def stream(self) -> ShardedStream:
        """The tokens of the corpus, on disk."""
        tokens = ShardedTokens(self._shards, len(self.byte_lengths), self.directory)
        return ShardedStream(tokens, self._targets, self.manifest["bytes"])

    def _targets(self) -> np.ndarray:
        """Read the targets of all documents, and compare them with the tokens."""
        targets = []
        for shard, part in zip(self.manifest["shards"], self._shards, strict=True):
            counts = load(self._folder, shard["name"], "targets")
            # A document has its start token, and as many after it as it has targets.
            if (counts < 1).any() or int(counts.sum()) + len(counts) != len(part):
                what = f"{os.path.join(self.directory, shard['name'])}: tokens and targets differ"
                raise DataError(Problem(what, remedy="delete the folder, and prepare it again"))
            targets.append(np.array(counts))  # and not its file, which would stay open
        return np.concatenate(targets)

    @functools.cached_property
    def rows(self) -> PackedRows:
        """The rows of an epoch, by number; their plan is made at the first start alone."""
        if not plans.is_kept(self.packing):
            return self._pack()
        of = plans.identity(self.manifest, self._shards, self.length, self.packing)
        plan = plans.find(self._folder, of)
        if plan is None:
            start = time.perf_counter()
            plan = plans.keep(self._folder, of, self._pack(), self._count_documents())
            self._told.extend(_notices(self, plan, time.perf_counter() - start))
        return self._pack(plan)

    @functools.cached_property
    def _told(self) -> list[str]:
        return []

    def _count_documents(self) -> int:
        shards = self.manifest["shards"]
        return sum(len(load(self._folder, shard["name"], "targets")) for shard in shards)

    @property
    def num_documents(self) -> int:
        """The documents of the corpus."""
        plan = self.rows.plan
        if isinstance(plan, plans.KeptPlan):
            return plan.facts.documents
        return self._count_documents()

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


def made_plans(data: Any) -> Sequence[str]:
    """Return one line for each plan that this process had to make, and that took its time.

    Args:
      data: A node of data, or anything that is built of them.
    """
    return [line for node in nodes_of(data, Prepared) for line in node._told]


def _notices(node: Prepared, plan: plans.KeptPlan, seconds: float) -> list[str]:
    if seconds < TELL_SECONDS:
        return []
    rows = f"{node.directory}: {plan.num_rows:,} rows of {plan.facts.documents:,} documents"
    kept = f"kept in {plan.folder}" if plan.folder else "not kept, since no folder can be written"
    return [f"{rows} were laid out in {seconds:.1f} s; the plan is {kept}"]


def allow_open_files(more: int) -> None:
    """Raise the soft limit of open files by a number, as far as the system lets us.

    A memory map holds its file open, and a large corpus has more shards than the usual limit.

    Args:
      more: How many files will be opened.
    """
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    wanted = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
