"""Bagz files."""

from __future__ import annotations

import dataclasses
from typing import Any

from luthier.data.requirements import require
from luthier.data.sources.containers.container import Container, damaged, first_line, unopened


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
        """Open a file; return what reads it, and its number of records."""
        bagz = require("bagz", "bagz", "reading Bagz")
        try:
            reader = bagz.Reader(path)
            return reader, len(reader)
        except (RuntimeError, ValueError, OSError) as error:
            raise unopened(path, first_line(error)) from None

    def record(self, reader: Any, path: str, position: int) -> bytes:
        """Return one record of an opened file."""
        try:
            return reader[position]
        except (RuntimeError, ValueError, OSError) as error:
            raise damaged(path, position, first_line(error)) from None
