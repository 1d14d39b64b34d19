"""What files of byte records share: numbering over several files, and problems with a position."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any

import numpy as np

from luthier.data.sources.files import empty, matching_files
from luthier.data.sources.remote import local_copy
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem


class Container(Source):
    """Records of files that a pattern names, in the order of the sorted paths.

    A subclass is a frozen dataclass with the field `pattern`, and opens and reads one file.
    """

    pattern: str

    @abc.abstractmethod
    def open(self, path: str) -> tuple[Any, int]:
        """Open a file; return what reads it, and its number of records.

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
        """What reads each file, and the number of records up to the end of each."""
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
    """Return how a record is named in messages."""
    return f"{path}: record {position}"


def damaged(path: str, position: int, why: object) -> DataError:
    """Return the error of a record that cannot be read."""
    remedy = "copy the file again, or let a `Filtered` source skip it (`corrupt=Skip()`)"
    return DataError(Problem(f"{place(path, position)} is damaged: {why}", remedy=remedy))


def unopened(path: str, why: object) -> DataError:
    """Return the error of a file of which nothing can be read."""
    remedy = "copy the file again, or leave it out of the pattern"
    return DataError(Problem(f"{path}: cannot be read: {why}", remedy=remedy))


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
