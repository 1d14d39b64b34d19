"""Preparation of a corpus: cuts it into shards once, and writes those that are missing."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.packing import encode_checked, token_dtype, tokenize
from luthier.data.prepared.shards import (
    LAYOUT,
    LENGTHS,
    MANIFEST,
    find_json,
    finished_shards,
    in_threads,
    load_all,
    place,
    read_shard,
    shard_name,
    write_array,
    write_json,
    write_shard,
)
from luthier.data.sources.source import Part, Source
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem, RunError
from luthier.storage.bucket import Bucket, is_url

SAMPLES = 64
SHARD_BYTES = 64 << 20
LEAST_SHARDS = 16
_PROBE = "To be,  or\tnot\n\n to be: naïve 東京 123 🎻 ".encode()


@dataclasses.dataclass(frozen=True)
class Survey:
    """Estimates of a corpus from a few documents, evenly spread.

    Args:
      documents: All documents.
      sampled: Number of documents in the sample.
      num_bytes: The bytes of all documents, estimated.
      num_tokens: The tokens of all documents, estimated.
      dtype: The dtype of the tokens.
      seconds: The time for one process, estimated.
      digest: A fingerprint of the documents in the sample.
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
        """The size of the shards on disk, estimated."""
        return self.num_tokens * np.dtype(self.dtype).itemsize + 8 * self.documents


@dataclasses.dataclass(frozen=True)
class PreparedLayout:
    """The assignment of documents to shards, and the identity of corpus and tokenizer.

    Args:
      bounds: Shard i has the documents bounds[i]..bounds[i + 1] - 1.
      tokenizer: The result of `tokenizer_facts`.
      source: The name of the source.
      digest: The digest of the surveyed documents.
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
        """Return the differences from a layout that was written, in words.

        Args:
          other: A manifest or layout that was read.

        Returns:
          A phrase for each difference; none if both agree.
        """
        ours: dict[str, Any] = {"bounds": list(self.bounds), "digest": self.digest}
        # What a tokenizer is called depends on paths, which may differ for one vocabulary.
        theirs = other.get("tokenizer", {})
        ours["tokenizer"] = {**self.tokenizer, "name": theirs.get("name")}
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
      tokenizer: Tokenizer of the texts.

    Returns:
      Estimates for the whole corpus, in documents, bytes, tokens and seconds; the dtype of the
      tokens; and a digest of the sample.

    Raises:
      DataError: when there is no document, or one of those cannot be read or tokenized.

    Example:
      >>> from luthier import data
      >>> survey = data.survey(data.Documents([b"to be", b"or not"]), data.Bytes())
      >>> survey.documents, survey.num_bytes, survey.num_tokens
      (2, 11, 15)
    """
    # The estimates decide the number of shards, and the digest guards against continuing with
    # another corpus. Evenly spread and not the first documents: corpora are often sorted by origin.
    # Reading everything would take as long as preparing.
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
    source: Source, tokenizer: Tokenizer, estimates: Survey, num_shards: int | None = None
) -> PreparedLayout:
    """Return the cuts of a corpus, which depend on the corpus alone and not on the machine.

    Args:
      source: The documents.
      tokenizer: Tokenizer of the texts.
      estimates: The result of `survey`.
      num_shards: Number of shards; None makes shards of 64 MiB of text, at least 16 of them.

    Returns:
      The first document of each shard and the end of the last one, the facts of the tokenizer, the
      name of the source, and the digest of the survey.

    Example:
      >>> from luthier import data
      >>> source, tokenizer = data.Documents([b"to be", b"or not"]), data.Bytes()
      >>> layout = data.plan_layout(source, tokenizer, data.survey(source, tokenizer))
      >>> layout.num_shards
      2
    """
    # By the number of documents and not of bytes, which are known for the sample only.
    wanted = num_shards or max(-(-estimates.num_bytes // SHARD_BYTES), LEAST_SHARDS)
    most = estimates.documents
    bounds = np.linspace(0, most, min(wanted, most) + 1).astype(np.int64)
    name = f"{source}"
    name = name if len(name) <= 400 else f"{name[:400]}..."
    return PreparedLayout(
        tuple(bounds.tolist()), tokenizer_facts(tokenizer), name, estimates.digest
    )


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the facts that identify a vocabulary, JSON-able."""
    lengths = np.asarray(tokenizer.byte_lengths, np.int32)
    hasher = hashlib.blake2b(lengths.tobytes(), digest_size=16)
    # A vocabulary is recognised by what it does to a text with difficult parts, and not by its
    # path.
    hasher.update(np.asarray(tokenizer.encode_many([_PROBE])[0], np.int64).tobytes())
    return {
        "name": f"{tokenizer}"[:400],
        "vocab_size": tokenizer.vocab_size,
        "bos": int(tokenizer.bos),
        "eos": int(tokenizer.eos),
        "prefix_bytes": tokenizer.prefix_bytes,
        "fingerprint": hasher.hexdigest(),
    }


# From a corpus to shards of tokens: parallel over processes, and continued after a kill.

FORMAT = 1
Report = Callable[[dict[str, Any], bool], None]


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    directory: str,
    layout: PreparedLayout,
    *,
    num_processes: int = 1,
    report: Report | None = None,
) -> dict[str, Any]:
    """Tokenize a corpus into a folder; what an earlier call has written there is kept.

    In an object store each shard is uploaded as it is finished, from memory, and the manifest is
    written last, only if there is none: readers never see a part of a corpus.

    Args:
      source: The documents; it is sent to the other processes.
      tokenizer: Turns them into tokens; it is sent to the other processes.
      directory: The folder to write, or its URL (`gs://...`, `s3://...`).
      layout: The assignment of documents to shards.
      num_processes: Number of shards made at a time; the shards are the same for any number.
      report: Called with each shard that is ready, and whether it existed already.

    Returns:
      The manifest.

    Raises:
      DataError: when documents cannot be read, the folder holds other shards, or it cannot be
        written.

    Example:
      >>> from luthier import data
      >>> source, tokenizer = data.Documents([b"to be", b"or not"]), data.Bytes()
      >>> layout = data.plan_layout(source, tokenizer, data.survey(source, tokenizer))
      >>> manifest = data.prepare(source, tokenizer, "prepared", layout)
      >>> len(manifest["shards"])
      2
    """
    directory = place(directory)
    try:
        # The layout is written before the first shard. An interrupted call continues with the same
        # cuts, and one with another corpus, tokenizer or number of shards is refused.
        # Nothing is removed before this check: the folder may hold something else.
        _begin(directory, layout, tokenizer)
        _remove_partial(directory)
        # A shard that has its `shard.json` is complete (`write_shard`): an interrupted call loses
        # the shards in progress only. Errors of a shard do not stop the others, so that one call
        # reports all documents at fault; the manifest is written only when every shard is there.
        entries: dict[int, dict[str, Any]] = {}
        done = finished_shards(directory, layout.num_shards)
        names = [shard_name(number) for number in done]
        shards = in_threads(functools.partial(read_shard, directory), names)
        for number, entry in zip(done, shards, strict=True):
            if entry is not None:
                entries[number] = entry
                if report:
                    report(entry, True)
        waiting = [number for number in range(layout.num_shards) if number not in entries]
        problems: list[Problem] = []
        jobs = [(directory, n, layout.bounds[n], layout.bounds[n + 1]) for n in waiting]
        for number, result in _run(source, tokenizer, jobs, num_processes):
            if isinstance(result, dict):
                entries[number] = result
                if report:
                    report(result, False)
            else:
                problems.extend(result)
        if problems:
            raise DataError(problems)
        return _finish(directory, layout, [entries[n] for n in range(layout.num_shards)])
    except OSError as error:
        what = f"{directory}: cannot be written: {error.strerror or error}"
        remedy = "make room, or choose another folder; what is ready is kept"
        raise DataError(Problem(what, remedy=remedy)) from None
    except RunError as error:
        remedy = "check the network and your credentials, and rerun the command: it continues"
        raise DataError(Problem(error.problems[0].what, remedy=remedy)) from None


def _begin(directory: str, layout: PreparedLayout, tokenizer: Tokenizer) -> None:
    if not is_url(directory):
        os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, LAYOUT)
    there = find_json(path)
    if there is None:
        others = Bucket(directory).list() if is_url(directory) else sorted(os.listdir(directory))
        # An earlier call may have been killed between the two files.
        if others := [name for name in others if name != LENGTHS]:
            what = f"{directory} is not empty: {', '.join(others[:3])}"
            raise DataError(Problem(what, remedy="choose a new folder"))
        lengths = np.asarray(tokenizer.byte_lengths, np.int32)
        write_array(os.path.join(directory, LENGTHS), lengths)
        if write_json(path, {"format": FORMAT, **dataclasses.asdict(layout)}, is_new=True):
            return
        # Another machine began at the same moment. Of one corpus both write equal shards.
        there = find_json(path) or {}
    if different := layout.differences(there):
        what = f"{directory} holds shards of {' and '.join(different)}"
        raise DataError(Problem(what, remedy="choose another folder, or delete this one"))


# What killed calls left. Two calls on one folder at the same time are not supported.
def _remove_partial(directory: str) -> None:
    if is_url(directory):
        return  # objects appear whole
    for path in glob.glob(os.path.join(glob.escape(directory), ".partial-*")):
        shutil.rmtree(path, ignore_errors=True)


def _finish(
    directory: str, layout: PreparedLayout, entries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    # The manifest comes last and makes the corpus usable: `read_manifest` refuses a folder without
    # it. An existing one is kept as it is, byte by byte, because plans and checkpoints are bound to
    # it.
    path = os.path.join(directory, MANIFEST)
    if (there := find_json(path)) is not None:
        return there
    counts = ByteCounts()
    for pairs in load_all(directory, [entry["name"] for entry in entries], "pairs"):
        counts.merge(pairs)
    # Of the digests of the shards, so that no tokens are read once more.
    digests = "".join(entry["digest"] for entry in entries)
    manifest = {
        "format": FORMAT,
        "source": layout.source,
        "tokenizer": layout.tokenizer,
        "documents": sum(entry["documents"] for entry in entries),
        "tokens": sum(entry["tokens"] for entry in entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "unigram_entropy": counts.unigram_entropy(),
        "bigram_entropy": counts.bigram_entropy(),
        "digest": hashlib.blake2b(digests.encode(), digest_size=16).hexdigest(),
        "shards": list(entries),
    }
    if write_json(path, manifest, is_new=True):
        return manifest
    return find_json(path) or manifest


_Job = tuple[str, int, int, int]
_Result = dict[str, Any] | list[Problem]
# In a worker process: the arguments that all of its jobs share.
_corpus: tuple[Source, Tokenizer] | None = None


def _run(
    source: Source, tokenizer: Tokenizer, jobs: Sequence[_Job], num_processes: int
) -> Iterator[tuple[int, _Result]]:
    """Yield the number and the result of each job as it ends."""
    # Processes and not threads: tokenizers in Python, and the work around those in Rust, hold the
    # interpreter's lock. Source and tokenizer are sent once to each process and not with each job.
    if num_processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield job[1], _make(source, tokenizer, job)
        return
    pool = ProcessPoolExecutor(
        min(num_processes, len(jobs)),
        # A fork copies only the calling thread: threads of tokenizers, Arrow or JAX would be gone
        # in the child, and their locks held for ever.
        multiprocessing.get_context("spawn"),
        initializer=_initialize,
        initargs=(source, tokenizer),
    )
    try:
        futures = {pool.submit(_work, job): job[1] for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        # Also when the caller stops early (an error, Ctrl-C): jobs that have not begun are dropped.
        pool.shutdown(cancel_futures=True)


def _initialize(source: Source, tokenizer: Tokenizer) -> None:
    global _corpus
    # One process a core: a thread pool in each of them would only get in the way.
    os.environ["RAYON_NUM_THREADS"] = "1"
    _corpus = (source, tokenizer)


def _work(job: _Job) -> _Result:
    assert _corpus is not None
    return _make(*_corpus, job)


def _make(source: Source, tokenizer: Tokenizer, job: _Job) -> _Result:
    directory, number, start, stop = job
    counts = ByteCounts()
    try:
        stream = tokenize(Part(source, start, stop), tokenizer, counts.add)
    except DataError as error:
        return list(error.problems)
    return write_shard(directory, shard_name(number), stream, counts)
