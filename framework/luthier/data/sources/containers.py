"""Files of byte records: numbering over several files, and errors that name file and record."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import mmap
import os
import struct
from typing import Any

import numpy as np

from luthier.data.requirements import require
from luthier.data.sources.files import empty, matching_files
from luthier.data.sources.remote import local_copy
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem
from luthier.storage import replacing


class Container(Source):
    """Records of files that a pattern names, in the order of the sorted paths.

    A subclass is a frozen dataclass with the field `pattern`, and opens and reads one file.
    """

    pattern: str

    @abc.abstractmethod
    def open(self, path: str) -> tuple[Any, int]:
        """Open a file; return its reader, and its number of records.

        Raises:
          DataError: when it is damaged so that no record can be found.
        """

    @abc.abstractmethod
    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file.

        Raises:
          DataError: naming file and position, when the record is damaged.
        """

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths that the pattern matches, sorted."""
        return matching_files(self.pattern)

    @functools.cached_property
    def _opened(self) -> tuple[list[Any], np.ndarray]:
        """The reader of each file, and the number of records up to the end of each."""
        # All files at the first use: the number of records must be known before any is numbered,
        # and damage in the last of a thousand files should show at the start and not after a day.
        # Readers stay open; an index is found by bisection over the ends.
        readers: list[Any] = []
        counts: list[int] = []
        problems: list[Problem] = []
        for path in self.files:
            try:
                reader, count = self.open(local_copy(path))
            except DataError as error:
                problems.extend(error.problems)
            else:
                readers.append(reader)
                counts.append(count)
                if not count:
                    problems.append(empty(path))
        if problems:
            raise DataError(problems)
        return readers, np.cumsum(counts)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: open files do not travel to other processes."""
        # `cached_property` stores its values in `__dict__`, which pickle would take as it is.
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file, and the record in it, both from 0."""
        _, ends = self._opened
        if not 0 <= index < ends[-1]:
            raise IndexError(index)
        file = int(np.searchsorted(ends, index, side="right"))
        return file, index - (int(ends[file - 1]) if file else 0)

    def __len__(self) -> int:
        return int(self._opened[1][-1])

    def __getitem__(self, index: int) -> bytes:
        file, position = self.locate(index)
        return self.record(self._opened[0][file], self.files[file], position)

    def name(self, index: int) -> str:
        """Return `file: record N`, counted from 0."""
        file, position = self.locate(index)
        return place(self.files[file], position)


def place(path: str, position: int) -> str:
    """Return the name of a record in messages."""
    return f"{path}: record {position}"


def damaged(path: str, position: int, why: object) -> DataError:
    """Return the error of a record that cannot be read.

    Args:
      path: The file.
      position: The number of the record in it, from 0.
      why: The reason, in the words of the reader.
    """
    remedy = "copy the file again, or let a `Filtered` source skip it (`corrupt=Skip()`)"
    return DataError(Problem(f"{place(path, position)} is damaged: {why}", remedy=remedy))


def unopened(path: str, why: object) -> DataError:
    """Return the error of a file of which nothing can be read.

    Args:
      path: The file.
      why: The reason, in the words of the reader.
    """
    remedy = "copy the file again, or leave it out of the pattern"
    return DataError(Problem(f"{path}: cannot be read: {why}", remedy=remedy))


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


# CRC-32C, the checksum of TFRecord files.

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_SHORT = 512


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes.

    Args:
      data: Any bytes.

    Returns:
      The checksum, in 0..2**32 - 1.

    Source: RFC 3720, appendix B.4. The checksum is linear over GF(2), so long data is cut into
      columns whose checksums run side by side and are then joined pairwise.
    """
    # NumPy has no CRC, zlib's is another polynomial, and a loop over bytes in Python takes a second
    # for a few megabytes. A CRC depends on every byte before, but it is linear: the data is cut
    # into about sqrt(n) columns, whose states advance together, one byte each, in sqrt(n)
    # vectorized steps.
    if len(data) < _SHORT:
        return _bytewise(data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    whole = np.frombuffer(data, np.uint8)
    rounds = (len(whole).bit_length() - 1) // 2
    num_columns = 1 << rounds
    # Zeros in front change nothing once the initial value is folded into the first four bytes.
    length = -(-len(whole) // num_columns)
    padded = np.zeros(num_columns * length, np.uint8)
    start = len(padded) - len(whole)
    padded[start:] = whole
    padded[start : start + 4] ^= 0xFF
    columns = padded.reshape(num_columns, length)
    table, state = _table(), np.zeros(num_columns, np.uint32)
    for place in range(length):
        # The table step of the usual algorithm (Sarwate's), for all columns at once.
        state = table[(state ^ columns[:, place]) & 0xFF] ^ (state >> np.uint32(8))
    # CRC is linear: the checksum of two columns is that of the first, advanced by as many zero
    # bytes as the second has, xor that of the second. The operator for a double length is the
    # operator applied to itself.
    operator = _zeros(length)
    while len(state) > 1:
        state = _apply(operator, state[0::2]) ^ state[1::2]
        operator = _apply(operator, operator)
    return int(state[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the checksum as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bytewise(data: bytes | memoryview, state: int) -> int:
    table = _list()
    for byte in bytes(data):
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@functools.cache
def _table() -> np.ndarray:
    """Return the state after each byte, from state 0; uint32 [256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@functools.cache
def _list() -> list[int]:
    return _table().tolist()


@functools.lru_cache(maxsize=64)
def _zeros(count: int) -> np.ndarray:
    """Return the images of the 32 bits of the state after `count` zero bytes; uint32 [32]."""
    # A matrix over GF(2), one column for each bit; its power by repeated squaring.
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    result, power = bits.copy(), _table()[bits & 0xFF] ^ (bits >> np.uint32(8))
    while count:
        if count & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        count >>= 1
    return result


def _apply(operator: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Apply a linear map, given by the images of the 32 bits, to states; uint32 [n]."""
    result = np.zeros(len(states), np.uint32)
    for bit in range(32):
        result ^= np.where(states >> np.uint32(bit) & np.uint32(1), operator[bit], np.uint32(0))
    return result


# TFRecord files, without TensorFlow.

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
        """Open a file.

        Args:
          path: The file.

        Returns:
          The reader, and the number of records.
        """
        try:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    return None, 0
                # Mapped: records are read at random, and a map needs neither seeks nor a lock
                # between threads. The file may be closed; the map keeps it.
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                stamp = os.fstat(file.fileno())
        except OSError as error:
            raise unopened(path, error.strerror or error) from None
        index = self._index(path, content, f"{stamp.st_size}-{stamp.st_mtime_ns}")
        return (content, index), len(index)

    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file.

        Args:
          reader: The result of `open`.
          path: The file.
          position: Number of the record in the file, from 0.

        Returns:
          Its bytes.
        """
        # The checksum of the length was checked when the index was made, but the file may have
        # changed since; that of the data is checked at every read.
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
        """Return the offset of each record, from the cache or from a walk; int64 [records]."""
        # The walk touches a page for every record, which for short records means the whole file.
        # The key is the real path, so that links share one index.
        key = hashlib.blake2b(os.path.realpath(path).encode(), digest_size=12).hexdigest()
        folder = self.cache or os.path.join(_user_cache(), "luthier", "tfrecord")
        # Size and time of change are in the name: an index of a file that was written again is not
        # found.
        cached = os.path.join(os.path.expanduser(folder), f"{key}-{stamp}.npy")
        try:
            index = np.load(cached)
        except (OSError, ValueError, EOFError):
            index = _walk(path, content)
            _keep(cached, index)
        return index


def _walk(path: str, content: mmap.mmap) -> np.ndarray:
    # A record whose length happens to begin with gzip's two bytes has a right checksum.
    if content[:2] == _GZIP and not _is_header(content, 0):
        raise unopened(path, "it is compressed with gzip; unpack it with `gunzip`")
    # Lengths form a chain: where one cannot be trusted, nothing after it can be found. So the walk
    # stops at the first bad header and names it; there is no way to resynchronize.
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


# ArrayRecord files.

# Rows are read in shuffled order; reading ahead would decode chunks that nobody asks for.
_OPTIONS = "readahead_buffer_size:0"


@dataclasses.dataclass(frozen=True)
class ArrayRecord(Container):
    """The records of ArrayRecord files, with random access.

    Every chunk of a file carries a checksum, so a flipped bit is found; all records of its chunk
    are lost with it.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.

    Raises:
      DataError: at first use, when no file matches or one is damaged; later, naming file and
        record, when a record is damaged.
    """

    pattern: str

    def open(self, path: str) -> tuple[Any, int]:
        """Open a file.

        Args:
          path: The file.

        Returns:
          The reader, and the number of records.
        """
        module = require(
            "array_record.python.array_record_module", "array-record", "reading ArrayRecord"
        )
        try:
            reader = module.ArrayRecordReader(path, _OPTIONS)
            count = reader.num_records()
        except (RuntimeError, ValueError, OSError) as error:
            raise unopened(path, first_line(error)) from None
        if not count:
            raise unopened(path, "it has no records, or the index at its end is damaged")
        return reader, count

    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file.

        Args:
          reader: The result of `open`.
          path: The file.
          position: Number of the record in the file, from 0.

        Returns:
          Its bytes.
        """
        try:
            return reader.read([position])[0]
        except (RuntimeError, ValueError, OSError) as error:
            raise damaged(path, position, first_line(error)) from None


# Bagz files.


@dataclasses.dataclass(frozen=True)
class Bagz(Container):
    """The records of Bagz files (`.bagz`, or `.bag` without compression), with random access.

    The format has no checksums: damage shows where a record no longer decompresses, and a flipped
    bit of a `.bag` file does not show at all.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.

    Raises:
      DataError: at first use, when no file matches or one is damaged; later, naming file and
        record, when a record is damaged.
    """

    pattern: str

    def open(self, path: str) -> tuple[Any, int]:
        """Open a file.

        Args:
          path: The file.

        Returns:
          The reader, and the number of records.
        """
        bagz = require("bagz", "bagz", "reading Bagz")
        try:
            reader = bagz.Reader(path)
            return reader, len(reader)
        except (RuntimeError, ValueError, OSError) as error:
            raise unopened(path, first_line(error)) from None

    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file.

        Args:
          reader: The result of `open`.
          path: The file.
          position: Number of the record in the file, from 0.

        Returns:
          Its bytes.
        """
        try:
            return reader[position]
        except (RuntimeError, ValueError, OSError) as error:
            raise damaged(path, position, first_line(error)) from None
