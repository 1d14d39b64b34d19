"""TFRecord files, without TensorFlow."""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import struct
from typing import Any

import numpy as np

from luthier.data.sources.containers.container import Container, damaged, unopened
from luthier.data.sources.containers.crc32c import masked_crc32c
from luthier.storage import replacing

_HEADER, _FOOTER = 12, 4
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class TFRecord(Container):
    """The records of TFRecord files, with random access.

    A TFRecord file has no index. It is walked once; where its records begin is then kept in a
    cache folder, under the path, size and time of change of the file. The checksums of lengths are
    tested on that walk, those of records whenever they are read. Compressed files are refused.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.
      cache: The folder of indices; None means `luthier/tfrecord` in the user's cache folder.

    Raises:
      DataError: at first use, when no file matches, or one is compressed, cut off or damaged
        between records; later, naming file and record, when a record is damaged.
    """

    pattern: str
    cache: str | None = None

    def open(self, path: str) -> tuple[Any, int]:
        """Open a file; return what reads it, and its number of records."""
        try:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    return None, 0
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                stamp = os.fstat(file.fileno())
        except OSError as error:
            raise unopened(path, error.strerror or error) from None
        index = self._index(path, content, f"{stamp.st_size}-{stamp.st_mtime_ns}")
        return (content, index), len(index)

    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file."""
        content, index = reader
        start = int(index[position]) + _HEADER
        (length,) = struct.unpack_from("<Q", content, start - _HEADER)
        (stored,) = struct.unpack_from("<I", content, start + length)
        data = content[start : start + length]
        if masked_crc32c(data) != stored:
            where = f"its checksum differs ({length} bytes from byte {start})"
            raise damaged(path, position, where)
        return data

    def _index(self, path: str, content: mmap.mmap, stamp: str) -> np.ndarray:
        """Return where each record begins, from the cache or from a walk; int64 [records]."""
        key = hashlib.blake2b(os.path.realpath(path).encode(), digest_size=12).hexdigest()
        folder = self.cache or os.path.join(_user_cache(), "luthier", "tfrecord")
        kept = os.path.join(os.path.expanduser(folder), f"{key}-{stamp}.npy")
        try:
            index = np.load(kept)
        except (OSError, ValueError, EOFError):
            index = _walk(path, content)
            _keep(kept, index)
        return index


def _walk(path: str, content: mmap.mmap) -> np.ndarray:
    if content[:2] == _GZIP and not _is_header(content, 0):
        raise unopened(path, "it is compressed with gzip; unpack it with `gunzip`")
    offsets: list[int] = []
    offset, size = 0, len(content)
    while offset < size:
        problem = ""
        if offset + _HEADER > size:
            problem = "the file is cut off in the header of the record"
        elif not _is_header(content, offset):
            problem = f"the length at byte {offset} has another checksum; the rest is out of reach"
        else:
            (length,) = struct.unpack_from("<Q", content, offset)
            stop = offset + _HEADER + length + _FOOTER
            if stop > size:
                problem = f"the file is cut off: the record ends at byte {stop}, the file at {size}"
        if problem:
            raise damaged(path, len(offsets), problem)
        offsets.append(offset)
        offset = stop
    return np.array(offsets, np.int64)


def _is_header(content: mmap.mmap, offset: int) -> bool:
    if offset + _HEADER > len(content):
        return False
    (stored,) = struct.unpack_from("<I", content, offset + 8)
    return masked_crc32c(content[offset : offset + 8]) == stored


def _user_cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def _keep(path: str, index: np.ndarray) -> None:
    """Write the index whole or not at all; a cache that cannot be written is done without."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path) as file:
            np.save(file, index)
    except OSError:
        return
