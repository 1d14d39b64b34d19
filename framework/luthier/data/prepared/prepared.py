"""Prepared corpora: rows over token arrays, and their verification while a run trains.

A prepared corpus is plain NumPy arrays. On a disk they are mapped into memory: any run of tokens is
read without decoding, and the page cache is shared by all processes of a host. In an object store
they are read piece by piece, and each piece is verified when it arrives (`streaming`); what follows
is about disks.

A start cannot read a corpus of terabytes. So a thread reads one shard after another, slowly, and
compares it with its digest; what was found right is remembered in the run by inode, time and size
of its files, and is not read again by later starts. What has changed since an earlier start is read
first, before training continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np

from luthier.data.filters import nodes_of
from luthier.data.packed import TokenNode
from luthier.data.packing import PackedRows, Packing, token_dtype
from luthier.data.prepared import plans
from luthier.data.prepared.prepare import tokenizer_facts
from luthier.data.prepared.shards import (
    LENGTHS,
    ShardedStream,
    ShardedTokens,
    TokenArray,
    load,
    load_all,
    place,
    read_array,
    read_manifest,
)
from luthier.data.prepared.streaming import StreamedShard, StreamedTokens
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem, RunError
from luthier.storage import write_json
from luthier.storage.bucket import is_url

FILE = "verified.json"
"""The file in which a run remembers its shards."""

START_SECONDS = 120.0
"""Time limit for reading changed shards at a start; the thread reads the others."""

_BLOCK_BYTES = 1 << 22
_DUTY = 0.1  # of one core and of the disk
_KINDS = ("tokens", "targets")
_REMEDY = (
    "restore the shard or prepare the corpus again; `luthier data prepare DIR --verify` checks"
)

Stamp = Sequence[Sequence[int]]
"""Inode, modification time in ns and size in bytes of the files of a shard."""


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A shard of a corpus: its folder, and the digest of its arrays."""

    folder: str
    digest: str

    def stamp(self) -> list[list[int]]:
        """Return a stamp that changes whenever its files are written.

        Raises:
          DataError: A file is gone.
        """
        try:
            stats = [os.stat(os.path.join(self.folder, f"{kind}.npy")) for kind in _KINDS]
        except OSError as error:
            what = f"{self.folder}: cannot be read: {error.strerror}"
            raise DataError(Problem(what, remedy=_REMEDY)) from error
        return [[stat.st_ino, stat.st_mtime_ns, stat.st_size] for stat in stats]


class Verification:
    """Checks the prepared corpora of a run, within a `with` block.

    Args:
      data: The run's data: a node, or anything that is built of nodes.
      directory: The run's directory, which records the verified shards.
      duty: The fraction of the time that the thread reads.
    """

    # `start` and `accept` run before training, `check` in the training thread between steps, `_run`
    # in the background. They share dictionaries with one entry for each shard, whose assignment is
    # atomic in CPython: there is no lock that training could wait for.

    def __init__(self, data: Any, directory: str | os.PathLike[str], duty: float = _DUTY):
        self._path = pathlib.Path(directory, FILE)
        self._shards = list(_shards(data))
        # By the folder's path, with the stamp of its files: a file that was replaced by an equal
        # one has another inode, and is read once more.
        self._remembered = self._read()
        self._duty = duty
        self._stamps: dict[str, Stamp] = {}
        self._refused: list[_Shard] = []
        self._problem: Problem | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luthier-verify", daemon=True)

    def __enter__(self) -> Verification:
        if self._shards:
            self._thread.start()
        return self

    # The thread looks at the event between blocks, so that joining takes no longer than one read.
    def __exit__(self, *unused: object) -> None:
        self._stopped.set()
        if self._shards:
            self._thread.join()

    def start(self) -> list[Problem]:
        """Read the shards that changed since an earlier start, and return the problems found.

        Returns:
          The problems; none if the shards are as they were.

        Raises:
          DataError: A file is gone.
        """
        until = time.monotonic() + START_SECONDS
        problems = []
        for shard in self._shards:
            self._stamps[shard.folder] = stamp = shard.stamp()
            known = self._remembered.get(shard.folder)
            has_changed = known is not None and known["stamp"] != stamp
            # Read before training goes on only if an earlier start knew it otherwise: only here can
            # the user still agree (`--accept-changes`). What was never verified is left to the
            # thread.
            if has_changed and time.monotonic() < until:
                if _is_right(shard):
                    self._remember(shard, stamp, is_verified=True)
                else:
                    self._refused.append(shard)
                    problems.append(_changed(shard))
            elif has_changed or known is None:
                self._remember(shard, stamp, is_verified=False)
        # With problems the start ends, or `accept` writes. If this wrote as well, changed shards
        # that there was no time to read would be known to the next start, which would then not read
        # them while the user can still agree.
        if self._shards and not problems:
            self._write()
        return problems

    def accept(self) -> None:
        """Take the shards that `start` refused as they are: the user agreed to other tokens.

        Those that were not read yet are verified like any others.
        """
        for shard in self._refused:
            self._remember(shard, self._stamps[shard.folder], is_verified=True)
        self._refused.clear()
        if self._shards:
            self._write()

    def check(self) -> None:
        """Raise if files in use were written, or the thread found damage.

        Raises:
          DataError: With the shard.
        """
        for shard in self._shards:
            # Called now and then by the training thread: a few `stat` calls per shard.
            before, now = self._stamps.get(shard.folder), shard.stamp()
            if before is None or before == now:
                continue
            sizes = [(old[2], new[2]) for old, new in zip(before, now, strict=True)]
            # A mapped file that became shorter kills the process with SIGBUS at the next access
            # beyond its end, so a change of size is refused without reading.
            cut = [f"{new:,} bytes, not {old:,}" for old, new in sizes if new != old]
            if cut or not _is_right(shard):
                what = f"{shard.folder}: its files were written while the run reads them"
                how = f" ({'; '.join(cut)})" if cut else ", and differ from their digest"
                raise DataError(Problem(what + how, remedy=_REMEDY))
            self._stamps[shard.folder] = now  # written anew, as it was
            self._remember(shard, now, is_verified=True)
            self._write()
        # Last: that a file was just written says more than that its tokens are others.
        if self._problem is not None:
            raise DataError(self._problem)

    def _run(self) -> None:
        for shard in self._shards:
            stamp = self._stamps.get(shard.folder)
            if stamp is None or self._remembered[shard.folder]["verified"]:
                continue
            try:
                is_right = _is_right(shard, self._stopped, self._duty)
            # Not reported from here: reading it for a batch raises an error with more context.
            except (OSError, ValueError):
                continue
            if self._stopped.is_set():
                return
            if not is_right:
                self._problem = self._problem or _changed(shard)
                # The next start reads it first: only there can the user agree to it.
                self._remember(shard, [], is_verified=False)
                self._write()
                continue
            self._remember(shard, stamp, is_verified=True)
            self._write()

    def _remember(self, shard: _Shard, stamp: Stamp, is_verified: bool) -> None:
        self._remembered[shard.folder] = {"stamp": stamp, "verified": is_verified}

    def _read(self) -> dict[str, Any]:
        # A file that is missing, damaged or of another version means that nothing was verified yet:
        # the cost is reading the shards once more.
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            shards = content["shards"]
            assert all({"stamp", "verified"} <= set(entry) for entry in shards.values())
            return dict(shards)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            return {}

    def _write(self) -> None:
        """Record the verified shards; if that fails, a later start verifies them again."""
        with contextlib.suppress(RunError):
            write_json(self._path, {"version": 1, "shards": self._remembered})


def _shards(data: Any) -> Iterator[_Shard]:
    # A corpus may appear several times in a mixture, or in training and evaluation: once is enough.
    seen: set[str] = set()
    for node in nodes_of(data, Prepared):
        if is_url(node.directory):
            continue  # each piece is compared with its checksum when it is read
        folder = os.path.abspath(os.path.expanduser(node.directory))
        for entry in node.manifest["shards"]:
            shard = os.path.join(folder, entry["name"])
            if shard not in seen:
                seen.add(shard)
                yield _Shard(shard, entry["digest"])


def _changed(shard: _Shard) -> Problem:
    return Problem(f"{shard.folder}: its tokens differ from their digest", remedy=_REMEDY)


def _is_right(
    shard: _Shard, stopped: threading.Event | None = None, duty: float | None = None
) -> bool:
    """Read a shard through files: a map of a file that is cut short would end the process."""
    # A file that cannot be read raises, since it need not have changed: `_run` leaves it to the
    # batch that reads it.
    hasher = hashlib.blake2b(digest_size=16)
    for kind in _KINDS:
        with open(os.path.join(shard.folder, f"{kind}.npy"), "rb") as file:
            try:
                dtype, shape = _header(file)
            except (ValueError, KeyError):  # cut short within its header: no array any more
                return False
            # The same bytes in the same order as `shards._digest` takes them.
            hasher.update(f"{dtype.str}{shape}".encode())
            while True:
                since = time.monotonic()
                block = file.read(_BLOCK_BYTES)
                if not block:
                    break
                hasher.update(block)
                if stopped is not None and duty is not None:
                    # Reading for a tenth of the time: the disk and the page cache belong to the
                    # batches.
                    rest = (time.monotonic() - since) * (1 / duty - 1)
                    # The answer is not used: `_run` looks at `stopped` before it reads the answer.
                    if stopped.wait(rest):
                        return False
    return hasher.hexdigest() == shard.digest


def _header(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = np.lib.format.read_magic(file)
    # NumPy's public header readers: `np.load` would map or read the array, and a map of a file that
    # is cut short meanwhile ends the process.
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(file)
    return dtype, shape


# A corpus that `luthier data prepare` wrote, as rows of tokens.

REPORTED_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Prepared(TokenNode):
    """A prepared corpus, packed into rows of one length; its tokens stay where they are.

    The batches are those of `Packed` on the same corpus. The places of documents in the rows (about
    24 bytes a document) are computed at the first start and kept in the folder, or in the user's
    cache folder where it cannot be written; later starts take as long and as much memory for any
    corpus. A checkpoint of a run on `Packed` does not continue on `Prepared`, since the corpus is
    not read to compare it.

    Of a corpus in an object store, only the pieces of tokens that batches need are read, ahead of
    the step, and kept in a cache on this machine (`LUTHIER_DATA_CACHE_BYTES`). The batches are the
    same.

    Args:
      directory: The folder that `luthier data prepare` wrote, or its URL (`gs://...`, `s3://...`).
      length: L, the number of targets in a row.
      packing: Assigns documents to rows.
      tokenizer: Turns tokens into text, for sampling say; None if that is not needed.

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
        # Pickling a map copies the whole file into the message; the receiver maps it again.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the corpus."""
        manifest = read_manifest(self._folder)
        if self.tokenizer is not None:
            ours, written = tokenizer_facts(self.tokenizer), manifest["tokenizer"]
            # The name depends on the path of the vocabulary, which may differ between machines.
            if {**ours, "name": ""} != {**written, "name": ""}:
                what = f"{self.directory} was made with {written['name']}, not {ours['name']}"
                raise DataError(Problem(what, remedy="name the tokenizer that it was made with"))
        return manifest

    @property
    def _folder(self) -> str:
        return place(self.directory)

    @functools.cached_property
    def _shards(self) -> Sequence[TokenArray]:
        shards = self.manifest["shards"]
        if is_url(self._folder):
            # From the manifest: a look at each shard would be a request.
            dtype = np.dtype(token_dtype(self.manifest["tokenizer"]["vocab_size"]))
            return [StreamedShard(s["name"], s["digest"], s["tokens"], dtype) for s in shards]
        allow_open_files(len(shards))
        return [load(self._folder, shard["name"], "tokens") for shard in shards]

    @functools.cached_property
    def stream(self) -> ShardedStream:
        """The tokens of the corpus, on disk or in its object store."""
        vocab_size = len(self.byte_lengths)
        tokens: ShardedTokens
        if is_url(self._folder):
            shards = cast(Sequence[StreamedShard], self._shards)
            tokens = StreamedTokens(self._folder, shards, vocab_size)
        else:
            tokens = ShardedTokens(self._shards, vocab_size, self.directory)
        return ShardedStream(tokens, self._targets, self.manifest["bytes"])

    def _targets(self) -> np.ndarray:
        """Read the targets of all documents, and compare them with the tokens."""
        names = [shard["name"] for shard in self.manifest["shards"]]
        targets = []
        read = load_all(self._folder, names, "targets")
        for name, part, counts in zip(names, self._shards, read, strict=True):
            # A document has its start token, and as many after it as it has targets.
            if (counts < 1).any() or int(counts.sum()) + len(counts) != len(part):
                what = f"{os.path.join(self.directory, name)}: tokens and targets differ"
                raise DataError(Problem(what, remedy="delete the folder, and prepare it again"))
            targets.append(np.array(counts))  # and not its file, which would stay open
        return np.concatenate(targets)

    @functools.cached_property
    def rows(self) -> PackedRows:
        """The rows of an epoch, by number; their plan is made at the first start alone."""
        if not plans.is_kept(self.packing):
            return self._pack()
        # Packing takes time and memory in proportion to the documents; a stored plan is mapped,
        # without reading it, and shared by the processes of a host. Without a promise of the
        # packing's class that its plans do not change (`is_kept`), the plan is computed at each
        # start.
        of = plans.identity(self.manifest, self._shards, self.length, self.packing)
        plan = plans.find(self._folder, of)
        if plan is None:
            start = time.perf_counter()
            plan = plans.keep(self._folder, of, self._pack(), self._count_documents())
            self._plan_notices.extend(_notices(self, plan, time.perf_counter() - start))
        return self._pack(plan)

    @functools.cached_property
    def _plan_notices(self) -> list[str]:
        return []

    # From the headers of the files: no page of the arrays is read. Of objects from the manifest.
    def _count_documents(self) -> int:
        shards = self.manifest["shards"]
        if is_url(self._folder):
            return sum(shard["documents"] for shard in shards)
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
        """Return the unigram and the bigram entropy of the corpus, in nats per byte.

        Returns:
          Two numbers, in nats per byte.
        """
        return self.manifest["unigram_entropy"], self.manifest["bigram_entropy"]


def made_plans(data: Any) -> Sequence[str]:
    """Return one line for each plan that this process had to compute, if that took a while.

    Args:
      data: A node of data, or anything that is built of them.

    Returns:
      The lines; none where nothing took long. They are about the nodes as they were used so far.

    Example:
      >>> from luthier import data
      >>> data.made_plans(data.Synthetic(vocab_size=16, length=4))
      []
    """
    # Collected in the nodes, because data knows no recorder; the run asks and reports.
    return [line for node in nodes_of(data, Prepared) for line in node._plan_notices]


def _notices(node: Prepared, plan: plans.KeptPlan, seconds: float) -> list[str]:
    if seconds < REPORTED_SECONDS:
        return []
    rows = f"{node.directory}: {plan.num_rows:,} rows of {plan.facts.documents:,} documents"
    unwritten = "not kept, since no folder can be written"
    storage = f"kept in {plan.folder}" if plan.folder else unwritten
    return [f"{rows} were packed in {seconds:.1f} s; the plan is {storage}"]


def allow_open_files(more: int) -> None:
    """Raise the soft limit of open files by a number, as far as the system lets us.

    A memory map holds its file open, and a large corpus has more shards than the usual limit.

    Args:
      more: Number of files that will be opened.
    """
    # The usual soft limit of 1024 is for programs that use `select`; any process may raise it up to
    # the hard limit without rights. Failure is left to the error of the file that cannot be opened.
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
