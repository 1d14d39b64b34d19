"""Files in object stores: large ones in pieces, growing ones in segments.

The name of each piece is `START-END-DIGEST`. So pieces that a killed upload left behind are found
by listing names and kept where they hold the file's bytes, and a reader needs no other check.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import re
import time
from collections.abc import Collection, Iterator, Sequence

from luthier.errors import Problem, RunError
from luthier.storage.bucket import Bucket
from luthier.storage.transfer import PieceSize

PIECES_FOLDER = ".pieces/"
INDEX = f"{PIECES_FOLDER}index.json"
WHOLE_BYTES = 1 << 20
"""A file that is no longer is one object."""


def upload(bucket: Bucket, name: str, path: pathlib.Path, there: Collection[str] = ()) -> list[str]:
    """Write a file; return the names of the objects that hold it.

    Args:
      bucket: Where it goes.
      name: Its name there.
      path: The file.
      there: The objects that are there; pieces among them that hold the file's bytes stay.

    Raises:
      OSError: The file cannot be read.
      RunError: The store does not answer, or refuses.
    """
    with path.open("rb") as file:
        data = file.read(WHOLE_BYTES + 1)
        if len(data) <= WHOLE_BYTES:
            bucket.write(name, data)
            bucket.check_arrival(name, data)
            return [name]
        names, start = [], 0
        # An upload of a large file that was interrupted resumes here: its pieces are recognised by
        # name and digest, whatever sizes they were cut into.
        known = [Segment.parse(key.removeprefix(name + PIECES_FOLDER)) for key in there]
        size = PieceSize(bucket.stall_seconds)
        while True:
            piece = next((one for one in known if one and _holds(file, one, start)), None)
            if piece is None:
                # It times its block: the next piece is longer where this one took little of its
                # time limit, and shorter where it took much.
                with size as num_bytes:
                    file.seek(start)
                    data = file.read(num_bytes)
                    piece = Segment.of(start, data)
                    if data:
                        bucket.write(f"{name}{PIECES_FOLDER}{piece}", data)
                        bucket.check_arrival(f"{name}{PIECES_FOLDER}{piece}", data)
            # An empty piece: the end of the file, which may have grown since it was opened.
            if piece.end == start:
                break
            names.append(str(piece))
            start = piece.end
    # Last: a reader finds the file only by its index, so that half an upload is no file. Callers
    # delete the pieces of `there` that are not among the names returned.
    index = {"bytes": start, "pieces": names}
    bucket.write(name + INDEX, json.dumps(index).encode())
    return [*(f"{name}{PIECES_FOLDER}{piece}" for piece in names), name + INDEX]


def _holds(file, piece: Segment, start: int) -> bool:
    """Return whether a piece that is there begins at `start` and holds what the file does."""
    if piece.start != start or piece.end <= start:
        return False
    file.seek(start)
    data = file.read(piece.end - start)
    return len(data) == piece.end - start and Segment.of(start, data) == piece


def download(bucket: Bucket, name: str) -> Iterator[bytes]:
    """Yield the content of a file that `upload` wrote in pieces.

    Args:
      bucket: Where it is.
      name: Its name there.

    Raises:
      RunError: The store does not answer or refuses, or a piece is damaged.
    """
    what = f"{bucket.url}{name}: the copy is damaged"
    # The list may be missing, and may be any JSON where somebody else writes to the bucket: nested
    # too deeply for the parser, of other types, or empty.
    try:
        index = json.loads(bucket.read(name + INDEX).data or b"")
        pieces = [piece for entry in index["pieces"] if (piece := Segment.parse(entry))]
        starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
        is_whole = starts == [0, *ends][:-1] and index["bytes"] == ends[-1]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        is_whole = False
    if not is_whole:
        raise RunError(Problem(f"{what}: its list of pieces"))
    for piece in pieces:
        data = bucket.read(f"{name}{PIECES_FOLDER}{piece}").data
        if data is None or Segment.of(piece.start, data) != piece:
            raise RunError(Problem(f"{what}: piece {piece}"))
        yield data


# Files that grow, as objects that do not: each holds a piece, and says in its name which one.
#
#     metrics.jsonl.segments/000000000000-000001048617-2f0c1a7d9e44
#
# The last piece is written anew, longer each time, until it has its size; what a run cut off its
# file is deleted here too.

# Large files in object stores: pieces beside each other, and an index of them that comes last.
#
#     state/array.pieces/000000000000-000000262144-2f0c1a7d9e44
#     state/array.pieces/000000262144-000000786432-9bd1c04e77aa
#     state/array.pieces/index.json
#
# TensorStore, which knows the users' credentials, writes an object in one request and knows neither
# multipart nor resumable uploads. Pieces are that in every store: each has a time limit of its own,
# one is in memory at a time, and an upload that was interrupted resumes behind the pieces that are
# there, because a piece's name says what is in it.

FOLDER = ".segments"
SEGMENT_BYTES = 1 << 20
"""A piece that is so long is not written again."""

LISTING_SECONDS = 20.0
"""The large stores list an object as soon as it is written; others within seconds."""

# Where a file grew by more than a segment between two pushes, longer pieces save requests.
_LONGEST = 4
"""A piece is at most so many times `SEGMENT_BYTES` long, and no more of a file is in memory."""

_NAME = re.compile(r"(\d{12})-(\d{12})-([0-9a-f]{12})")


@dataclasses.dataclass(frozen=True)
class Segment:
    """A piece of a file.

    Args:
      start: Where it begins.
      end: Where it ends.
      digest: Hash of its bytes.
    """

    start: int
    end: int
    digest: str

    def __str__(self) -> str:
        return f"{self.start:012d}-{self.end:012d}-{self.digest}"

    @classmethod
    def of(cls, start: int, data: bytes) -> Segment:
        """Return the name of a piece.

        Args:
          start: Where it begins in its file.
          data: Its bytes.
        """
        return cls(start, start + len(data), hashlib.sha256(data).hexdigest()[:12])

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """Parse the name of a piece; None for any other name.

        Args:
          name: The name of an object.
        """
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


class Segments:
    """The pieces of one file.

    Args:
      bucket: The folder of the run.
      name: The file's name in the run's directory.
    """

    def __init__(self, bucket: Bucket, name: str):
        self._bucket, self._folder = bucket, f"{name}{FOLDER}/"
        self._known: list[Segment] | None = None
        self._stale: list[Segment] = []
        # Until then, pieces of an earlier writer may be there that were not listed at first.
        self._listed_until = time.monotonic() + LISTING_SECONDS

    def push(self, path: pathlib.Path) -> None:
        """Make the pieces those of a file, by as few bytes as can be.

        Args:
          path: The file, which only grew since the last time.

        Raises:
          RunError: The store does not answer, or refuses.
        """
        with path.open("rb") as file:
            if self._known is None:
                self._known = self._matching(file)
            elif self._listed_until:
                is_last = time.monotonic() > self._listed_until
                self._stale = [one for one in self._listed() if one not in self._known]
                self._listed_until = 0.0 if is_last else self._listed_until
            # Only the last piece is ever rewritten, and only while it is short: a metrics file that
            # grows by a few kilobytes for each push makes one object a megabyte, and each byte is
            # sent a bounded number of times.
            last = self._known[-1] if self._known else None
            is_full = last is not None and last.end - last.start >= SEGMENT_BYTES
            unchanged = self._known if is_full else self._known[:-1]
            start = unchanged[-1].end if unchanged else 0
            file.seek(start)
            replaced, new = self._known[len(unchanged) :], list(unchanged)
            while data := file.read(_LONGEST * SEGMENT_BYTES):
                piece = Segment.of(start, data)
                # Where nothing was added, the last piece is there as it is.
                if piece not in replaced:
                    self._bucket.write(f"{self._folder}{piece}", data)
                    self._bucket.check_arrival(f"{self._folder}{piece}", data)
                new.append(piece)
                start = piece.end
        # The new pieces are there before any other is deleted: a kill in between must not cost what
        # a checkpoint counts on. Until then several begin at the same byte, and readers take the
        # longer (`_chain`): of a file that was cut back, the file as it was. From the end: what a
        # kill leaves of them follows the others without a gap.
        stale = {*self._stale, *replaced}.difference(new)
        for old in sorted(stale, key=lambda one: one.start, reverse=True):
            self._bucket.delete(f"{self._folder}{old}")
        self._known, self._stale = new, []

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of the file, piece by piece.

        Raises:
          RunError: The store does not answer, or refuses; or a piece is missing, or holds other
            bytes than were written.
        """
        listed, end = self._listed(), 0
        for segment in _chain(listed):
            data = self._bucket.read(f"{self._folder}{segment}").data
            if data is None:
                raise self._damaged(f"{segment} is gone")
            if Segment.of(segment.start, data) != segment:
                raise self._damaged(f"{segment} does not hold what was written")
            end = segment.end
            yield data
        # A piece behind a gap says that one before it was lost; the file would end early without a
        # sign.
        if beyond := [segment for segment in listed if segment.start > end]:
            first = min(segment.start for segment in beyond)
            raise self._damaged(f"bytes {end} to {first} are missing")

    def _damaged(self, what: str) -> RunError:
        remedy = (
            "nothing was copied; restore the object from a version of the bucket, or from the "
            "machine that ran"
        )
        return RunError(Problem(f"{self._bucket.url}/{self._folder}: {what}", remedy=remedy))

    def _listed(self) -> list[Segment]:
        names = self._bucket.list(self._folder)
        parsed = (Segment.parse(name.removeprefix(self._folder)) for name in names)
        return [segment for segment in parsed if segment is not None]

    def _matching(self, file) -> list[Segment]:
        """Return the pieces that hold what the file holds; all others are stale."""
        matching = []
        listed = self._listed()
        for segment in _chain(listed):
            file.seek(segment.start)
            data = file.read(segment.end - segment.start)
            if Segment.of(segment.start, data) != segment:
                break
            matching.append(segment)
        self._stale = [segment for segment in listed if segment not in matching]
        return matching


def _chain(listed: Sequence[Segment]) -> list[Segment]:
    """Return pieces that follow each other from the start; of two with one start, the longer."""
    chain: list[Segment] = []
    by_start = {one.start: one for one in sorted(listed, key=lambda one: one.end)}
    while (end := chain[-1].end if chain else 0) in by_start:
        chain.append(by_start[end])
    return chain


def whole_name(name: str) -> str:
    """Return the name of the file that an object holds, or holds a piece of.

    Args:
      name: The name of the object.
    """
    for kind in (f"{FOLDER}/", PIECES_FOLDER):
        name = name.partition(kind)[0]
    return name


def files_in(bucket: Bucket, names: Collection[str]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield files by their names, with their contents; however each is stored.

    Args:
      bucket: The folder that they are in.
      names: The names of their objects there.
    """
    for name in names:
        if name.endswith(INDEX):
            whole = name.removesuffix(INDEX)
            yield whole, download(bucket, whole)
        elif PIECES_FOLDER not in name and f"{FOLDER}/" not in name:
            yield name, bucket.read_pieces(name)
    for name in sorted({n.partition(f"{FOLDER}/")[0] for n in names if f"{FOLDER}/" in n}):
        yield name, Segments(bucket, name).read()
