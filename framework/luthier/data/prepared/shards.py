"""Shards of tokens on disk: plain NumPy arrays, and a manifest.

A shard is a folder with `tokens.npy` (start token, tokens, end token of each document, one after
another), `targets.npy` (the targets of each document), `pairs.npy` (counts of pairs of bytes) and
`shard.json` (sizes and a digest). Plain arrays and not ArrayRecord: a row is assembled from any run
of tokens, without decoding a record, and the operating system's page cache is all the cache there
is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.packing import Stream
from luthier.errors import DataError, Problem

MANIFEST, LAYOUT, LENGTHS = "manifest.json", "layout.json", "byte_lengths.npy"
_REMEDY = "prepare the corpus again with `luthier data prepare`"
_CHUNK = 1 << 24
_MANIFEST = {
    "tokenizer": dict, "shards": list, "bytes": int, "digest": str,
    "unigram_entropy": float | int, "bigram_entropy": float | int,
}  # fmt: skip
_SHARD = {"name": str, "digest": str}
_TOKENIZER = {"prefix_bytes": int}
_SHARD_NAME = re.compile(r"shard-\d+")


def shard_name(number: int) -> str:
    """Return the name of a shard's folder."""
    return f"shard-{number:05d}"


def write_shard(directory: str, name: str, stream: Stream, counts: ByteCounts) -> dict[str, Any]:
    """Write a shard whole or not at all.

    Args:
      directory: The folder of all shards.
      name: The folder of this one.
      stream: Its tokens.
      counts: The pairs of bytes of its documents.

    Returns:
      The content of `shard.json`.
    """
    # The process id is in the name because worker processes write side by side; a folder of the
    # same name is what an earlier process with this id left.
    partial = os.path.join(directory, f".partial-{name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    arrays = {
        "tokens": stream.tokens,
        "targets": stream.num_targets.astype(np.int64),
        "pairs": counts.pairs,
    }
    entry = {
        "name": name,
        "documents": len(stream.num_targets),
        "tokens": len(stream.tokens),
        "bytes": stream.num_bytes,
        # Without the pairs of bytes, which only give the entropies in the manifest.
        "digest": _digest(arrays["tokens"], arrays["targets"]),
    }
    for kind, array in arrays.items():
        with open(os.path.join(partial, f"{kind}.npy"), "wb") as file:
            np.save(file, array)
            _sync(file)
    write_json(os.path.join(partial, "shard.json"), entry)
    # The folder appears with all of its files, each of which is durable: `read_shard` takes a
    # folder with `shard.json` for done.
    os.rename(partial, os.path.join(directory, name))
    return entry


def read_shard(directory: str, name: str) -> dict[str, Any] | None:
    """Return the content of `shard.json`, or None if the shard is not written yet."""
    path = os.path.join(directory, name, "shard.json")
    return read_json(path) if os.path.exists(path) else None


def load(directory: str, name: str, kind: str) -> np.ndarray:
    """Return an array of a shard, memory-mapped.

    Raises:
      DataError: when the file is missing or cut off.
    """
    dims = 2 if kind == "pairs" else 1
    return read_array(os.path.join(directory, name, f"{kind}.npy"), dims, mmap_mode="r")


def read_array(path: str, dims: int = 1, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Return an array of integers; a pickle is never read.

    Args:
      path: Its file.
      dims: Number of its dimensions.
      mmap_mode: `r` leaves it on disk.

    Raises:
      DataError: when the file is missing, damaged, or holds something else.
    """
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as error:  # the header is Python text, which fails in any way
        what = " ".join(str(error).split())[:200]
        raise DataError(Problem(f"{path}: cannot be read: {what}", remedy=_REMEDY)) from None
    if not isinstance(array, np.ndarray) or array.ndim != dims or array.dtype.kind not in "iu":
        raise DataError(Problem(f"{path}: is not an array of integers", remedy=_REMEDY))
    return array


def verify(directory: str) -> dict[str, Any]:
    """Read every shard and compare it with its digest.

    Args:
      directory: The folder that `luthier data prepare` wrote.

    Returns:
      The manifest.

    Raises:
      DataError: naming every shard that differs, or when the folder is not prepared.

    Example:
      >>> from luthier import data
      >>> source, tokenizer = data.Documents([b"to be", b"or not"]), data.Bytes()
      >>> layout = data.plan_layout(source, tokenizer, data.survey(source, tokenizer))
      >>> _ = data.prepare(source, tokenizer, "prepared", layout)
      >>> len(data.verify("prepared")["shards"])
      2
    """
    # All shards are read even after a difference: the list of damaged ones is what the user needs.
    # Without `pairs`, which digests leave out (`write_shard`). The manifest has to be deleted as
    # well, since `prepare` keeps one that exists, with the old digests in it.
    manifest = read_manifest(directory)
    problems: list[Problem] = []
    for entry in manifest["shards"]:
        try:
            arrays = [load(directory, entry["name"], kind) for kind in ("tokens", "targets")]
        except DataError as error:
            problems.extend(error.problems)
            continue
        if _digest(*arrays) != entry["digest"]:
            what = f"{os.path.join(directory, entry['name'])}: differs from its digest"
            problems.append(Problem(what, remedy="delete it and the manifest, and prepare again"))
    if problems:
        raise DataError(problems)
    return manifest


def read_manifest(directory: str) -> dict[str, Any]:
    """Return the manifest of a prepared corpus.

    Raises:
      DataError: when there is none, or preparing has not ended.
    """
    # Three states of a folder, each with a remedy of its own: prepared, begun, or something else.
    path = os.path.join(directory, MANIFEST)
    if os.path.exists(path):
        manifest = read_json(path)
        if not _is_manifest(manifest):
            raise DataError(Problem(f"{path}: is not a manifest of shards", remedy=_REMEDY))
        return manifest
    if os.path.exists(os.path.join(directory, LAYOUT)):
        layout = read_json(os.path.join(directory, LAYOUT))
        bounds = layout.get("bounds")
        if not isinstance(bounds, list):
            raise DataError(Problem(f"{directory}: its {LAYOUT} is damaged", remedy=_REMEDY))
        total = len(bounds) - 1
        done = sum(read_shard(directory, shard_name(number)) is not None for number in range(total))
        what = f"{directory}: only {done} of {total} shards are prepared"
        raise DataError(Problem(what, remedy="run the same `luthier data prepare` again"))
    raise DataError(Problem(f"{directory}: not a prepared corpus", remedy=_REMEDY))


def read_json(path: str) -> dict[str, Any]:
    """Return the content of a JSON file.

    Raises:
      DataError: when it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(Problem(f"{path}: cannot be read: {error}", remedy=_REMEDY)) from None
    if not isinstance(content, dict):
        raise DataError(
            Problem(f"{path}: cannot be read: it does not hold an object", remedy=_REMEDY)
        )
    return content


def _is_manifest(content: dict[str, Any]) -> bool:
    """Return whether an object has all that is read of a manifest; shards lie in its folder."""
    # The file is input like any other: what is used later is checked here, so that damage is one
    # line and not a KeyError in a worker thread. Names of shards are folders and must not lead
    # elsewhere.
    if not _has(content, _MANIFEST) or not _has(content["tokenizer"], _TOKENIZER):
        return False
    shards = content["shards"]
    return bool(shards) and all(
        isinstance(shard, dict) and _has(shard, _SHARD) and _SHARD_NAME.fullmatch(shard["name"])
        for shard in shards
    )


def _has(content: dict[str, Any], needed: dict[str, Any]) -> bool:
    return all(isinstance(content.get(name), kind) for name, kind in needed.items())


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    # Not `storage.write_json`, which syncs the directory too: a rename that is lost in a power cut
    # only means that a shard or a plan is made once more.
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        _sync(file)
    os.replace(f"{path}.partial", path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _digest(*arrays: np.ndarray) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hasher.update(f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), _CHUNK):
            hasher.update(np.ascontiguousarray(array[start : start + _CHUNK]).data)
    return hasher.hexdigest()


# Tokens of many shards as one stream that is never in memory as a whole.


class ShardedTokens:
    """A one-dimensional array in parts, which are memory-mapped; it can be indexed by positions.

    Args:
      parts: The parts, one after another; all of one dtype.
      vocab_size: Every token is below it.
      name: Their name, for messages.
    """

    def __init__(self, parts: Sequence[np.ndarray], vocab_size: int, name: str):
        self._vocab_size, self._name = vocab_size, name
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = self._parts[0].dtype

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens."""
        return (int(self._ends[-1]),)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the tokens at positions, int64 [n]."""
        # Positions of a batch come in runs, and a run is rarely in two shards: a slice per run
        # instead of a copy of all shards into one array.
        numbers = np.searchsorted(self._ends, positions, side="right")
        tokens = np.empty(len(positions), self.dtype)
        edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        # Runs in one part: rows are runs of tokens.
        for start, stop in itertools.pairwise([0, *edges.tolist(), len(positions)]):
            if start < stop:
                number = numbers[start]
                part = self._parts[number]
                first = self._ends[number] - len(part)
                tokens[start:stop] = part[positions[start:stop] - first]
        # A damaged shard shows as numbers beyond the vocabulary, which the look-up on the device
        # would clamp silently. Two passes over a batch are nothing beside reading it.
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            what = f"{self._name}: holds tokens that are not in its vocabulary"
            remedy = "run `luthier data prepare DIR --verify` to find the damaged shard"
            raise DataError(Problem(what, remedy=remedy))
        return tokens


class ShardedStream(Stream):
    """A stream whose tokens stay on disk, and whose documents are read on demand.

    Args:
      tokens: The tokens.
      read_targets: Returns the targets of each document, int64 [documents].
      num_bytes: The bytes of all documents.
    """

    def __init__(
        self, tokens: ShardedTokens, read_targets: Callable[[], np.ndarray], num_bytes: int
    ):
        # The fields of a frozen dataclass; an attribute could not be set.
        self.__dict__.update(tokens=cast(np.ndarray, tokens), num_bytes=num_bytes)
        self.__dict__.update(read_targets=read_targets)

    @property
    def num_targets(self) -> np.ndarray:  # type: ignore[override]
        """The tokens of each document and its end token; int64 [documents]; read at each use."""
        # Not cached: 8 bytes a document, which only packing and descriptions need, would stay in
        # memory for the whole run.
        return self.__dict__["read_targets"]()
