"""Parquet files."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from luthier.data.requirements import require
from luthier.data.sources.files import empty, matching_files
from luthier.data.sources.records import Records
from luthier.data.sources.remote import local_copy
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Parquet(Records):
    """The rows of Parquet files, with random access by row group.

    A row is read with its whole row group, of which the last few stay in memory. Damage shows
    where a page no longer decompresses, or where the writer stored page checksums.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.
      columns: The columns to read; None reads all.

    Raises:
      DataError: at first use, when no file matches, one is damaged, or lacks a column; later,
        naming file and rows, when a row group is damaged.
    """

    KEPT_GROUPS: ClassVar[int] = 4

    pattern: str
    columns: tuple[str, ...] | None = None

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths that the pattern matches, sorted."""
        return matching_files(self.pattern)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: open files do not travel to other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _groups(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Return file and group of every row group, and the rows up to the end of each."""
        groups: list[tuple[int, int]] = []
        counts: list[int] = []
        problems: list[Problem] = []
        for file, path in enumerate(self.files):
            try:
                metadata = self._open(file).metadata
            except DataError as error:
                problems.extend(error.problems)
                continue
            if not metadata.num_rows:
                problems.append(empty(path))
            for group in range(metadata.num_row_groups):
                groups.append((file, group))
                counts.append(metadata.row_group(group).num_rows)
        if problems:
            raise DataError(problems)
        return groups, np.cumsum(counts)

    @functools.cached_property
    def _kept(self) -> tuple[collections.OrderedDict[int, Any], threading.Lock]:
        return collections.OrderedDict(), threading.Lock()

    def _open(self, file: int) -> Any:
        parquet = require("pyarrow.parquet", "parquet", "reading Parquet")
        arrow = require("pyarrow", "parquet", "reading Parquet")
        path = self.files[file]
        copy = local_copy(path)
        try:
            opened = parquet.ParquetFile(copy, page_checksum_verification=True, memory_map=True)
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(path, "", error) from None
        missing = sorted(set(self.columns or ()) - set(opened.schema_arrow.names))
        if missing:
            names = ", ".join(opened.schema_arrow.names)
            what = f"{path}: no column {', '.join(map(repr, missing))} (its columns: {names})"
            raise DataError(Problem(what, remedy="name some of its columns"))
        return opened

    def _table(self, number: int) -> Any:
        kept, lock = self._kept
        with lock:
            if number not in kept:
                kept[number] = self._read(number)
                while len(kept) > self.KEPT_GROUPS:
                    kept.popitem(last=False)
            kept.move_to_end(number)
            return kept[number]

    def _read(self, number: int) -> Any:
        arrow = require("pyarrow", "parquet", "reading Parquet")
        groups, ends = self._groups
        file, group = groups[number]
        columns = list(self.columns) if self.columns is not None else None
        try:
            return self._open(file).read_row_group(group, columns=columns)
        except (arrow.ArrowException, OSError) as error:
            count = int(ends[number] - (ends[number - 1] if number else 0))
            last = self._position(int(ends[number]) - 1)[1]
            place = f" rows {last - count + 1} to {last} (row group {group}) are damaged:"
            raise _unreadable(self.files[file], place, error) from None

    def _position(self, index: int) -> tuple[int, int, int, int]:
        """Return file, row in the file, number of the row group, and row in the group."""
        groups, ends = self._groups
        if not 0 <= index < ends[-1]:
            raise IndexError(index)
        number = int(np.searchsorted(ends, index, side="right"))
        file, group = groups[number]
        before = int(ends[number - group - 1]) if number > group else 0
        return file, index - before, number, index - (int(ends[number - 1]) if number else 0)

    def __len__(self) -> int:
        return int(self._groups[1][-1])

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        _, _, number, row = self._position(index)
        table = self._table(number)
        return {name: table.column(name)[row].as_py() for name in table.column_names}

    def value(self, index: int, field: str) -> Any:
        """Return one column of row `index`."""
        _, _, number, row = self._position(index)
        table = self._table(number)
        if field not in table.column_names:
            return super().value(index, field)
        return table.column(field)[row].as_py()

    def name(self, index: int) -> str:
        """Return `file: row N`, counted from 0."""
        file, row, _, _ = self._position(index)
        return f"{self.files[file]}: row {row}"


def _unreadable(path: str, place: str, error: BaseException) -> DataError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    what = f"{path}:{place or ' cannot be read:'} {why}"
    return DataError(Problem(what, remedy="copy the file again, or leave it out of the pattern"))
