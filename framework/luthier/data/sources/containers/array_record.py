"""ArrayRecord files."""

from __future__ import annotations

import dataclasses
from typing import Any

from luthier.data.requirements import require
from luthier.data.sources.containers.container import Container, damaged, first_line, unopened

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
        """Open a file; return what reads it, and its number of records."""
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
        """Return one record of an opened file."""
        try:
            return reader.read([position])[0]
        except (RuntimeError, ValueError, OSError) as error:
            raise damaged(path, position, first_line(error)) from None
