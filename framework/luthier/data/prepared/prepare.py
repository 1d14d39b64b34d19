"""From a corpus to shards of tokens: parallel over processes, and continued after a kill."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.prepared.layout import Layout
from luthier.data.prepared.shards import (
    LAYOUT,
    LENGTHS,
    MANIFEST,
    load,
    read_json,
    read_shard,
    shard_name,
    write_json,
    write_shard,
)
from luthier.data.sources.part import Part
from luthier.data.sources.source import Source
from luthier.data.stream import tokenize
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

FORMAT = 1
Report = Callable[[dict[str, Any], bool], None]


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    directory: str,
    layout: Layout,
    *,
    num_processes: int = 1,
    report: Report | None = None,
) -> dict[str, Any]:
    """Tokenize a corpus into a folder; what an earlier call has written there is kept.

    Args:
      source: The documents; it is sent to the other processes.
      tokenizer: Turns them into tokens; it is sent to the other processes.
      directory: The folder to write.
      layout: Which documents stand in which shard.
      num_processes: How many shards are made at a time; the shards are the same for any number.
      report: Told of each shard that is ready, and whether it was there already.

    Returns:
      The manifest.

    Raises:
      DataError: when documents cannot be read, the folder holds other shards, or it cannot be
        written.
    """
    directory = os.path.expanduser(directory)
    try:
        _begin(directory, layout, tokenizer)
        _remove_partial(directory)
        entries, waiting = {}, []
        for number in range(layout.num_shards):
            entry = read_shard(directory, shard_name(number))
            if entry is None:
                waiting.append(number)
            else:
                entries[number] = entry
                if report:
                    report(entry, True)
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


def _begin(directory: str, layout: Layout, tokenizer: Tokenizer) -> None:
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, LAYOUT)
    if os.path.exists(path):
        if different := layout.differences(read_json(path)):
            what = f"{directory} holds shards of {' and '.join(different)}"
            raise DataError(Problem(what, remedy="choose another folder, or delete this one"))
        return
    if others := sorted(os.listdir(directory)):
        what = f"{directory} is not empty: {', '.join(others[:3])}"
        raise DataError(Problem(what, remedy="choose a new folder"))
    np.save(os.path.join(directory, LENGTHS), np.asarray(tokenizer.byte_lengths, np.int32))
    write_json(path, {"format": FORMAT, **dataclasses.asdict(layout)})


def _remove_partial(directory: str) -> None:
    for path in glob.glob(os.path.join(glob.escape(directory), ".partial-*")):
        shutil.rmtree(path, ignore_errors=True)


def _finish(directory: str, layout: Layout, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    path = os.path.join(directory, MANIFEST)
    if os.path.exists(path):
        return read_json(path)
    counts = ByteCounts()
    for entry in entries:
        counts.merge(load(directory, entry["name"], "pairs"))
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
    write_json(path, manifest)
    return manifest


_Job = tuple[str, int, int, int]
_Result = dict[str, Any] | list[Problem]
_corpus: tuple[Source, Tokenizer] | None = None


def _run(
    source: Source, tokenizer: Tokenizer, jobs: Sequence[_Job], num_processes: int
) -> Iterator[tuple[int, _Result]]:
    """Yield the number and the result of each job as it ends."""
    if num_processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield job[1], _make(source, tokenizer, job)
        return
    pool = ProcessPoolExecutor(
        min(num_processes, len(jobs)),
        # Libraries hold threads, which a fork would lose.
        multiprocessing.get_context("spawn"),
        initializer=_initialize,
        initargs=(source, tokenizer),
    )
    try:
        futures = {pool.submit(_work, job): job[1] for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
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
