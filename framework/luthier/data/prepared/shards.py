"""Shards of tokens on a disk or in an object store: plain NumPy arrays, and a manifest.

A shard is a folder with `tokens.npy` (start token, tokens, end token of each document, one after
another), `targets.npy` (the targets of each document), `pairs.npy` (counts of pairs of bytes) and
`shard.json` (sizes, a digest, and a checksum for each piece of the tokens). Plain arrays and not
ArrayRecord: a row is assembled from any run of tokens, without decoding a record, and the operating
system's page cache is all the cache there is.

A corpus has the same files in an object store, so that tools of the store can copy it. Rows are
then read piece by piece (`streaming`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np

from luthier.data.entropy import ByteCounts
from luthier.data.packing import Stream
from luthier.errors import DataError, Problem, RunError, StoreUnavailable
from luthier.storage.bucket import Bucket, MissingObject, is_url
from luthier.storage.transfer import STALL_SECONDS

MANIFEST, LAYOUT, LENGTHS = "manifest.json", "layout.json", "byte_lengths.npy"
_REMEDY = "prepare the corpus again with `luthier data prepare`"
_CHUNK = 1 << 24
_SHARD_FILE = "shard.json"
_UPLOAD_BYTES_PER_SECOND = 1 << 20

PIECE_BYTES = 1 << 14
"""The tokens that are read from an object store at a time, at least; a power of two."""

_NUM_READERS = 16
_Found = TypeVar("_Found")
_MANIFEST = {
    "tokenizer": dict, "shards": list, "bytes": int, "digest": str,
    "unigram_entropy": float | int, "bigram_entropy": float | int,
}  # fmt: skip
_SHARD = {"name": str, "digest": str, "documents": int, "tokens": int}
_TOKENIZER = {"prefix_bytes": int, "vocab_size": int}
_SHARD_NAME = re.compile(r"shard-\d+")


def place(directory: str) -> str:
    """Return a folder as its files are named: without `~`, and a URL without a slash at its end."""
    return directory.rstrip("/") if is_url(directory) else os.path.expanduser(directory)


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
    content = {**entry, _PIECES: _describe_pieces(stream.tokens)}
    # `shard.json` comes last: `read_shard` takes a shard that has it for done.
    if is_url(directory):
        for kind, array in arrays.items():
            _upload(os.path.join(directory, name, f"{kind}.npy"), array)
        write_json(os.path.join(directory, name, _SHARD_FILE), content)
        return entry
    # The process id is in the name because worker processes write side by side; a folder of the
    # same name is what an earlier process with this id left.
    partial = os.path.join(directory, f".partial-{name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    for kind, array in arrays.items():
        with open(os.path.join(partial, f"{kind}.npy"), "wb") as file:
            np.save(file, array)
            _sync(file)
    write_json(os.path.join(partial, _SHARD_FILE), content)
    # The folder appears with all of its files, each of which is durable.
    os.rename(partial, os.path.join(directory, name))
    return entry


def read_shard(directory: str, name: str) -> dict[str, Any] | None:
    """Return what the manifest has of a shard, or None if it is not written yet."""
    content = find_json(os.path.join(directory, name, _SHARD_FILE))
    # Kept out of the manifest, which is read at every start.
    return content and {key: value for key, value in content.items() if key != _PIECES}


def finished_shards(directory: str, total: int) -> list[int]:
    """Return the numbers of the shards that are written, sorted.

    Args:
      directory: The folder of all shards.
      total: The number of all shards.

    Raises:
      DataError: The store does not answer, or refuses.
    """
    if is_url(directory):
        with store_errors():
            there = set(Bucket(directory).list("shard-"))
        return [n for n in range(total) if f"{shard_name(n)}/{_SHARD_FILE}" in there]
    paths = (os.path.join(directory, shard_name(n), _SHARD_FILE) for n in range(total))
    return [number for number, path in enumerate(paths) if os.path.exists(path)]


_PIECES = "pieces"


def _describe_pieces(tokens: np.ndarray) -> dict[str, Any]:
    """Return the checksums of the pieces of a shard's tokens, JSON-able; see `parse_pieces`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(tokens))
    data = np.ascontiguousarray(tokens).view(np.uint8).data
    sums = [zlib.crc32(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]
    # One text and not a list: there are 64 of them in a megabyte of tokens.
    text = "".join(f"{number:08x}" for number in sums)
    return {"bytes": PIECE_BYTES, "offset": len(header.getvalue()), "crc32": text}


def parse_pieces(path: str, data: bytes, num_bytes: int) -> tuple[int, int, np.ndarray]:
    """Return the pieces that the tokens of a shard are cut into.

    Args:
      path: The shard's `shard.json`.
      data: Its content.
      num_bytes: The bytes of the shard's tokens, without the header of their file.

    Returns:
      The bytes of a piece, the place of the first piece in `tokens.npy`, and the CRC-32 of each
      piece, uint32 [pieces].

    Raises:
      DataError: It has no pieces, as that of a corpus from before there were any, or is damaged.
    """
    try:
        pieces = json.loads(data)[_PIECES]
        piece_bytes, offset = int(pieces["bytes"]), int(pieces["offset"])
        sums = np.frombuffer(bytes.fromhex(pieces["crc32"]), ">u4").astype(np.uint32)
        is_right = 0 < piece_bytes <= 1 << 24 and piece_bytes % 8 == 0 and offset > 0
        is_right = is_right and len(sums) == -(-num_bytes // piece_bytes)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        is_right = False
    if not is_right:
        what = f"{path}: has no valid checksums of pieces, without which tokens are not streamed"
        raise DataError(Problem(what, remedy=_REMEDY))
    return piece_bytes, offset, sums


def load(directory: str, name: str, kind: str) -> np.ndarray:
    """Return an array of a shard, memory-mapped; in memory where it is in an object store.

    Raises:
      DataError: when the file is missing or cut off.
    """
    dims = 2 if kind == "pairs" else 1
    return read_array(os.path.join(directory, name, f"{kind}.npy"), dims, mmap_mode="r")


def read_array(path: str, dims: int = 1, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Return an array of integers; a pickle is never read.

    Args:
      path: Its file, or the URL of an object.
      dims: Number of its dimensions.
      mmap_mode: `r` leaves a file on disk.

    Raises:
      DataError: when the file is missing, damaged, or holds something else.
    """
    return _parse_array(path, _content(path) if is_url(path) else path, dims, mmap_mode)


def load_npy(content: str | io.BytesIO, mmap_mode: Literal["r"] | None) -> Any:
    """Return what `np.load` does, in one thread at a time.

    Args:
      content: The path or the content of a file.
      mmap_mode: `r` leaves a file on disk.
    """
    # NumPy parses headers by `ast`, whose recursion counter is shared by threads (CPython 3.11):
    # "AST constructor recursion depth mismatch".
    with _PARSING:
        return np.load(content, mmap_mode=mmap_mode, allow_pickle=False)


_PARSING = threading.Lock()


def _parse_array(
    path: str, content: str | io.BytesIO, dims: int, mmap_mode: Literal["r"] | None
) -> np.ndarray:
    """Return the array of a file, or of the content of an object, named by its path."""
    try:
        array = load_npy(content, mmap_mode if isinstance(content, str) else None)
    except Exception as error:  # the header is Python text, which fails in any way
        what = " ".join(str(error).split())[:200]
        raise DataError(Problem(f"{path}: cannot be read: {what}", remedy=_REMEDY)) from None
    if not isinstance(array, np.ndarray) or array.ndim != dims or array.dtype.kind not in "iu":
        raise DataError(Problem(f"{path}: is not an array of integers", remedy=_REMEDY))
    return array


def load_all(directory: str, names: Sequence[str], kind: str) -> Iterator[np.ndarray]:
    """Yield an array of each shard, as `load` returns it; those of a store several at a time.

    Args:
      directory: The folder of all shards.
      names: The shards.
      kind: The array.

    Raises:
      DataError: when a file is missing or cut off.
    """
    paths = [os.path.join(directory, name, f"{kind}.npy") for name in names]
    # Only bytes are read in threads: see `load_npy`.
    contents: Iterable[str | io.BytesIO]
    contents = in_threads(_content, paths) if is_url(directory) else paths
    for path, content in zip(paths, contents, strict=True):
        yield _parse_array(path, content, 2 if kind == "pairs" else 1, "r")


_Item = TypeVar("_Item")


def in_threads(read: Callable[[_Item], _Found], items: Sequence[_Item]) -> Iterator[_Found]:
    """Yield what is read for each item, in order; several are read at a time.

    Args:
      read: Called with each item, in threads.
      items: The items, such as paths.
    """
    # Block by block: what is read is not to pile up before the caller takes it.
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        for start in range(0, len(items), _NUM_READERS):
            yield from pool.map(read, items[start : start + _NUM_READERS])


def _content(path: str) -> io.BytesIO:
    """Return the content of an object of any size."""
    bucket, name = _split(path)
    with store_errors():
        return io.BytesIO(b"".join(bucket.read_pieces(name)))


def verify(directory: str) -> dict[str, Any]:
    """Read every shard and compare it with its digest.

    Args:
      directory: The folder that `luthier data prepare` wrote, or its URL.

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
    manifest = find_json(path)
    if manifest is not None:
        if not _is_manifest(manifest):
            raise DataError(Problem(f"{path}: is not a manifest of shards", remedy=_REMEDY))
        return manifest
    layout = find_json(os.path.join(directory, LAYOUT))
    if layout is not None:
        bounds = layout.get("bounds")
        if not isinstance(bounds, list):
            raise DataError(Problem(f"{directory}: its {LAYOUT} is damaged", remedy=_REMEDY))
        total = len(bounds) - 1
        done = len(finished_shards(directory, total))
        what = f"{directory}: only {done} of {total} shards are prepared"
        raise DataError(Problem(what, remedy="run the same `luthier data prepare` again"))
    raise DataError(Problem(f"{directory}: not a prepared corpus", remedy=_REMEDY))


def find_json(path: str) -> dict[str, Any] | None:
    """Return the content of a JSON file or object; None if there is none.

    Raises:
      DataError: when it cannot be read.
    """
    try:
        if is_url(path):
            bucket, name = _split(path)
            with store_errors():
                data = bucket.read(name).data
        else:
            with open(path, "rb") as file:
                data = file.read()
        if data is None:
            return None
        content = json.loads(data)
    except FileNotFoundError:
        return None
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
        isinstance(shard, dict)
        and _has(shard, _SHARD)
        and min(shard["documents"], shard["tokens"]) >= 0
        and _SHARD_NAME.fullmatch(shard["name"])
        for shard in shards
    )


def _has(content: dict[str, Any], needed: dict[str, Any]) -> bool:
    return all(isinstance(content.get(name), kind) for name, kind in needed.items())


def write_json(path: str, content: dict[str, Any], is_new: bool = False) -> bool:
    """Write a JSON file or object whole or not at all; return whether it was written.

    Args:
      path: The file, or the URL of an object.
      content: The content.
      is_new: Write an object only if there is none of its name, whoever else tries that.
    """
    data = json.dumps(content, indent=1).encode()
    if is_url(path):
        bucket, name = _split(path)
        there = bucket.read(name) if is_new else None
        return (there is None or there.data is None) and bucket.write(name, data, there)
    # Not `storage.write_json`, which syncs the directory too: a rename that is lost in a power cut
    # only means that a shard or a plan is made once more.
    with open(f"{path}.partial", "wb") as file:
        file.write(data)
        _sync(file)
    os.replace(f"{path}.partial", path)
    return True


def write_array(path: str, array: np.ndarray) -> None:
    """Write an array as a file or an object."""
    if is_url(path):
        _upload(path, array)
    else:
        np.save(path, array)


def _upload(path: str, array: np.ndarray) -> None:
    # In memory, where the shard is anyway: nothing is written to this machine's disk.
    file = io.BytesIO()
    np.save(file, array)
    data = file.getvalue()
    # As one object, so that a range of it can be read. The limit is one on speed then: requests
    # are answered when all bytes have arrived.
    bucket, name = _split(path, STALL_SECONDS + len(data) / _UPLOAD_BYTES_PER_SECOND)
    bucket.write(name, data)


def _split(path: str, stall_seconds: float = STALL_SECONDS) -> tuple[Bucket, str]:
    folder, _, name = path.rpartition("/")
    return Bucket(folder, stall_seconds), name


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn the refusals of a store, in a block that reads data, into `DataError`."""
    try:
        yield
    except MissingObject as error:
        raise DataError(Problem(error.problems[0].what, remedy=_REMEDY)) from None
    except StoreUnavailable:  # which says by its exit code that the same command may succeed later
        raise
    except RunError as error:
        raise DataError(error.problems) from None


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


class TokenArray(Protocol):
    """The length and dtype of the tokens of a shard."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""

    def __len__(self) -> int:
        """Return the number of tokens."""


class ShardedTokens:
    """A one-dimensional array in parts, which are memory-mapped; it can be indexed by positions.

    Args:
      parts: The parts, one after another; all of one dtype.
      vocab_size: Every token is below it.
      name: Their name, for messages.
    """

    def __init__(self, parts: Sequence[TokenArray], vocab_size: int, name: str):
        self._vocab_size, self._name = vocab_size, name
        self._parts: list[Any] = list(parts)
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
        tokens = self._read(positions)
        # A damaged shard shows as numbers beyond the vocabulary, which the look-up on the device
        # would clamp silently. Two passes over a batch are nothing beside reading it.
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
            what = f"{self._name}: holds tokens that are not in its vocabulary"
            remedy = "run `luthier data prepare DIR --verify` to find the damaged shard"
            raise DataError(Problem(what, remedy=remedy))
        return tokens

    def _read(self, positions: np.ndarray) -> np.ndarray:
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
