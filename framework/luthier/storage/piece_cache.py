"""A cache of pieces of remote files: one file of a fixed size, shared by processes without locks.

The file is a set-associative cache, like those of processors: the key of a piece determines a set
of 16 places, any of which it may take, and the least recently used one is given up for it.

    records   for each place: the key of its piece, a checksum, its length, and when it was used
    places    `piece_bytes` for each

A checksum over key and content is compared at every read. It replaces all locks: a piece that
another process overwrites meanwhile, one that was half written when its process was killed, and one
that the disk lost in a power cut are all the same, a piece that is not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
import weakref

NUM_WAYS = 16

_RECORD = struct.Struct("<16s16sQQ")
_USED_AT = _RECORD.size - 8
_PREFIX = "pieces-"


class PieceCache:
    """Pieces of remote files on this machine, which take a bounded number of bytes.

    The file appears as large as the bound, and occupies what was written to it.

    Args:
      folder: Where the file is. A file of another size or for other pieces is deleted: the bound
        holds for the folder, and the process that starts last decides on it.
      num_bytes: The most bytes of the file; below the size of one piece, nothing is cached.
      piece_bytes: The most bytes of a piece.

    Raises:
      OSError: The file cannot be opened.

    Example:
      >>> from luthier.storage import PieceCache
      >>> cache = PieceCache("cache", num_bytes=1 << 20, piece_bytes=1 << 12)
      >>> cache.put(b"key of a piece..", b"its content")
      >>> PieceCache("cache", num_bytes=1 << 20, piece_bytes=1 << 12).get(b"key of a piece..")
      b'its content'
    """

    def __init__(self, folder: str | os.PathLike[str], num_bytes: int, piece_bytes: int):
        places = max(num_bytes, 0) // (piece_bytes + _RECORD.size)
        self._ways = min(NUM_WAYS, places)
        self._sets = places // self._ways if places else 0
        self._piece_bytes = piece_bytes
        self._first_place = self._sets * self._ways * _RECORD.size
        self.num_places = self._sets * self._ways
        """The most pieces that it holds."""
        size = self._first_place + self.num_places * piece_bytes
        os.makedirs(folder, exist_ok=True)
        name = f"{_PREFIX}{piece_bytes}-{size}"
        # Only the user may read it: it holds what the user's credentials give access to.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(os.path.join(folder, name), flags, 0o600)
        weakref.finalize(self, os.close, self._file)
        # The file is sparse: a block that was never written takes no room.
        os.ftruncate(self._file, size)
        for other in os.listdir(folder):
            if other.startswith(_PREFIX) and other != name:
                # A process that has it open keeps it until it ends.
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, other))

    def __contains__(self, key: bytes) -> bool:
        """Return whether a piece is recorded; `get` may still find that it is damaged."""
        return self._find(key) is not None

    def get(self, key: bytes) -> bytes | None:
        """Return a piece that is whole, or None.

        Args:
          key: 16 bytes, such as a digest of the piece's name; not all of them 0.

        Returns:
          Its content; None where it is not in the cache, or is damaged there.
        """
        found = self._find(key)
        if found is None:
            return None
        place, checksum, length = found
        try:
            data = os.pread(self._file, length, self._first_place + place * self._piece_bytes)
            if len(data) != length or _checksum(key, data) != checksum:
                return None
            # Another process may have given the place away since: then its piece counts as used
            # just now, which it nearly was.
            now = time.time_ns().to_bytes(8, "little")
            os.pwrite(self._file, now, place * _RECORD.size + _USED_AT)
        except OSError:  # a cache never fails: the piece is read from its source
            return None
        return data

    def put(self, key: bytes, data: bytes) -> None:
        """Keep a piece; if the disk refuses, as when it is full, nothing is kept.

        Args:
          key: As of `get`.
          data: At most `piece_bytes` bytes.
        """
        if not self._sets:
            return
        if len(data) > self._piece_bytes:
            raise ValueError(f"a piece of {len(data)} bytes, not of at most {self._piece_bytes}")
        with contextlib.suppress(OSError):
            first, records = self._records(key)
            used = {
                way: 0 if record[0] == key else record[3] + 1 for way, record in enumerate(records)
            }
            place = first + min(used, key=used.__getitem__)
            # The content first. Until the record follows, the former one describes bytes that are
            # gone, and its checksum shows it.
            at = self._first_place + place * self._piece_bytes
            if os.pwrite(self._file, data, at) == len(data):
                record = _RECORD.pack(key, _checksum(key, data), len(data), time.time_ns())
                os.pwrite(self._file, record, place * _RECORD.size)

    def _find(self, key: bytes) -> tuple[int, bytes, int] | None:
        """Return the place, checksum and length of a piece."""
        if not self._sets:
            return None
        try:
            first, records = self._records(key)
        except OSError:
            return None
        for way, (own, checksum, length, _) in enumerate(records):
            if own == key and length <= self._piece_bytes:
                return first + way, checksum, length
        return None

    def _records(self, key: bytes) -> tuple[int, list[tuple[bytes, bytes, int, int]]]:
        """Return the first place of a key's set, and the records of the set."""
        first = int.from_bytes(key[:8], "little") % self._sets * self._ways
        size = self._ways * _RECORD.size
        found = os.pread(self._file, size, first * _RECORD.size)
        # Padded where somebody cut the file short: those places are free.
        return first, list(_RECORD.iter_unpack(found.ljust(size, b"\0")))


def _checksum(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=key).digest()
