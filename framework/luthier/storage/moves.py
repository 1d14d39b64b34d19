"""Runs that were moved: the note at the former place, and how a reader follows it.

Two places cannot change in one step, so one object decides where a run is. Before anything is
copied, the former place gets a note, `moved_to.json`, with the new place and a random token. From
then on its readers look there: the run is at the new place as soon as that has the token (in
`moves.json`) and the run's config, which is put there last and at once. So each reader finds one
run, at every moment, and the note that stays behind leads later readers to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import time
from collections.abc import Sequence

from luthier.storage.atomic import write_json
from luthier.storage.bucket import Bucket, is_url
from luthier.storage.segments import INDEX

NOTE = "moved_to.json"
"""The file of a run's former place that names the new one."""

HISTORY = "moves.json"
"""The file of a run with all of its moves, the last one at the end."""

ARRIVING = "moving.json"
"""The file of a new place until the run is there."""

CONFIG = "config.json"
"""The file that makes a folder a run."""


@dataclasses.dataclass(frozen=True)
class Move:
    """A move of a run.

    Args:
      source: The former place: an absolute path, or a URL.
      destination: The new place.
      token: Random; no two moves have the same.
      time: When it began, in seconds since 1970.
    """

    source: str
    destination: str
    token: str
    time: float

    @classmethod
    def between(cls, source: str, destination: str) -> Move:
        """Return a move that begins now.

        Args:
          source: The place of the run.
          destination: Its new place.
        """
        return cls(source, destination, secrets.token_hex(8), time.time())

    @property
    def has_arrived(self) -> bool:
        """Whether the run is at the new place, or was there and was moved on.

        Raises:
          RunError: The store of the new place refuses.
        """
        if self.token not in {move.token for move in history(self.destination)}:
            return False
        return has_config(self.destination) or _read(self.destination, NOTE) is not None


def note_of(place: str | os.PathLike[str]) -> Move | None:
    """Return the move that began at a place; None where none did.

    Args:
      place: The folder of a run, or its URL; it need not exist.

    Raises:
      RunError: The store refuses.
    """
    moves = _parsed(_read(place, NOTE))
    return moves[-1] if moves else None


def history(place: str | os.PathLike[str]) -> list[Move]:
    """Return the moves of a run; what is damaged counts as none.

    Args:
      place: The folder of the run, or its URL.

    Raises:
      RunError: The store refuses.
    """
    return _parsed(_read(place, HISTORY))


def write(path: pathlib.Path, moves: Sequence[Move]) -> None:
    """Write a note, or a history.

    Args:
      path: The file.
      moves: Its content.
    """
    write_json(path, [dataclasses.asdict(move) for move in moves])


def moved_to(place: str | os.PathLike[str]) -> str:
    """Return where the run is that was at a place; empty where it is there, or never was.

    Args:
      place: The folder of a run, or its URL; it need not exist.

    Returns:
      An absolute path or a URL, of a folder that holds the run; its own notes were followed.

    Raises:
      RunError: A store refuses.
    """
    seen, at = {os.fspath(place)}, os.fspath(place)
    while (move := note_of(at)) is not None and move.destination not in seen and move.has_arrived:
        at = move.destination
        seen.add(at)
    return "" if at == os.fspath(place) or not has_config(at) else at


def has_config(place: str | os.PathLike[str]) -> bool:
    """Return whether a folder is one of a run.

    Args:
      place: The folder, or its URL.

    Raises:
      RunError: The store refuses.
    """
    # In an object store a file is one object, or pieces and an index of them.
    if not is_url(os.fspath(place)):
        return pathlib.Path(place, CONFIG).is_file()
    return any(_read(place, name) is not None for name in (CONFIG, CONFIG + INDEX))


def _read(place: str | os.PathLike[str], name: str) -> bytes | None:
    if is_url(os.fspath(place)):
        return Bucket(os.fspath(place)).read(name).data
    with contextlib.suppress(OSError):
        return pathlib.Path(place, name).read_bytes()
    return None


def _parsed(data: bytes | None) -> list[Move]:
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        return [Move(**entry) for entry in json.loads(data or b"[]")]
    return []
