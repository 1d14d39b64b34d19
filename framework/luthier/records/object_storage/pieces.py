"""Large files in object stores: pieces beside each other, and an index of them that comes last.

    state/array.pieces/000000000000-000000262144-2f0c1a7d9e44
    state/array.pieces/000000262144-000000786432-9bd1c04e77aa
    state/array.pieces/index.json

TensorStore, which knows the users' credentials, writes an object in one request and knows neither
multipart nor resumable uploads. Pieces are that in every store: each has a time limit of its own,
one is in memory at a time, and an upload that was interrupted resumes behind the pieces that are
there, because a piece's name says what is in it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Iterator

from luthier.errors import Problem, RunError
from luthier.records.object_storage.bucket import Bucket
from luthier.records.object_storage.segments import Segment
from luthier.storage.transfer import PieceSize

FOLDER = ".pieces/"
INDEX = f"{FOLDER}index.json"
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
            return [name]
        names, start = [], 0
        known = [Segment.parse(key.removeprefix(name + FOLDER)) for key in there]
        size = PieceSize(bucket.stall_seconds)
        while True:
            piece = next((one for one in known if one and _holds(file, one, start)), None)
            if piece is None:
                with size as num_bytes:
                    file.seek(start)
                    data = file.read(num_bytes)
                    piece = Segment.of(start, data)
                    if data:
                        bucket.write(f"{name}{FOLDER}{piece}", data)
            if piece.end == start:
                break
            names.append(str(piece))
            start = piece.end
    index = {"bytes": start, "pieces": names}
    bucket.write(name + INDEX, json.dumps(index).encode())
    return [*(f"{name}{FOLDER}{piece}" for piece in names), name + INDEX]


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
        data = bucket.read(f"{name}{FOLDER}{piece}").data
        if data is None or Segment.of(piece.start, data) != piece:
            raise RunError(Problem(f"{what}: piece {piece}"))
        yield data
