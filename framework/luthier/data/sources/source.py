"""Sources of documents, and the treatment of documents that cannot be read.

Sources sit on the libraries of their formats and not on Grain's data sources, so that damage is
reported by file and record.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

from luthier.errors import DataError, Problem

# The protocol of sources, and a walk through one.

MAX_PROBLEMS = 20
BLOCK_BYTES = 4 << 20
BLOCK_DOCUMENTS = 4096


class Source(abc.ABC):
    """A sequence of documents in a fixed order, each a run of bytes, read on demand.

    A source of your own subclasses this, is cheap to construct (no file is opened before the
    first use), and defines `__len__`, `__getitem__` and `name`.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of documents."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> bytes:
        """Return document `index`, in 0..len - 1."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the origin of document `index`: a file, or `file:line`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1; sources for which one by one is slow override it.

        Args:
          start: Number of the first one.
          stop: Number after the last one.

        Returns:
          The documents, as bytes.

        Raises:
          DataError: with every document among them that cannot be read.
        """
        # All documents are tried, so that one call reports every bad one of the block.
        documents: list[bytes] = []
        problems: list[Problem] = []
        for index in range(start, stop):
            try:
                documents.append(self[index])
            except DataError as error:
                problems.extend(error.problems)
        if problems:
            raise DataError(problems)
        return documents


def blocks(source: Source) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Walk through all documents in order, a few megabytes at a time.

    Args:
      source: The documents.

    Yields:
      The index of the first document of the block, and the documents.

    Raises:
      DataError: with every document that cannot be read (the first 20 of them), or when there is
        no document at all.
    """
    # After the first problem nothing is yielded any more, since the caller would work for nothing;
    # the walk goes through the rest only to list further problems, up to MAX_PROBLEMS.
    start, size, total = 0, 1, len(source)
    problems: list[Problem] = []
    if not total:
        raise DataError(Problem(f"{source} has no documents", remedy="give it some text"))
    while start < total and len(problems) < MAX_PROBLEMS:
        stop = min(start + size, total)
        try:
            documents = source.read(start, stop)
        except DataError as error:
            problems.extend(error.problems)
        else:
            if not problems:
                yield start, documents
            # The number of documents follows their size: a block of long ones must fit into memory,
            # and short ones are read by the thousand. It starts with one document, since nothing is
            # known yet.
            small = sum(map(len, documents)) < BLOCK_BYTES
            size = min(size * 2, BLOCK_DOCUMENTS) if small else max(size // 2, 1)
        start = stop
    if len(problems) > MAX_PROBLEMS or (problems and start < total):
        problems[MAX_PROBLEMS:] = [Problem(f"only the first {MAX_PROBLEMS} problems are listed")]
    if problems:
        raise DataError(problems)


# A run of the documents of another source.


@dataclasses.dataclass(frozen=True)
class Part(Source):
    """The documents start..stop - 1 of a source, as for a held-out set.

    Args:
      source: All documents.
      start: Index of the first document, from 0.
      stop: End of the range, exclusive; None goes to the end.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or", b"not"])
      >>> len(data.Part(source, start=1))
      2
    """

    RANGES: ClassVar[dict[str, str]] = {"start": "0 <= x", "stop": "0 <= x"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("start < stop",)

    source: Source
    start: int = 0
    stop: int | None = None

    def __len__(self) -> int:
        total = len(self.source)
        return max((total if self.stop is None else min(self.stop, total)) - self.start, 0)

    def __getitem__(self, index: int) -> bytes:
        return self.source[self.start + self._checked(index)]

    def name(self, index: int) -> str:
        """Return the origin of document `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.source.name(self.start + self._checked(index))

    # Forwarded as a block, so that the inner source keeps its faster way.
    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1 of the part.

        Args:
          start: Number of the first one.
          stop: Number after the last one.

        Returns:
          The documents, as bytes.
        """
        return self.source.read(self.start + start, self.start + min(stop, len(self)))

    # A negative index, or one beyond the end, would reach documents of the source outside the part.
    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return index


# The treatment of a document that cannot be read; swap the node.


class Corruption(abc.ABC):
    """Decides whether documents that cannot be read, or do not fit, end the work."""

    @abc.abstractmethod
    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Return, or raise, after each document that cannot be used.

        Args:
          problems: All problems so far, one or more for each document.

        Raises:
          DataError: when there are too many.
        """


@dataclasses.dataclass(frozen=True)
class Fail(Corruption):
    """The first document that cannot be used is an error."""

    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Raise the problems.

        Args:
          problems: The problems of documents that cannot be read.

        Raises:
          DataError: Always.
        """
        raise DataError(problems)


@dataclasses.dataclass(frozen=True)
class Skip(Corruption):
    """Documents that cannot be used are left out, counted, and named in the report.

    Args:
      at_most: Maximum number of skipped examples; one more is an error.
    """

    RANGES: ClassVar[dict[str, str]] = {"at_most": "0 <= x"}

    at_most: int = 1000

    def tolerate(self, problems: Sequence[Problem]) -> None:
        """Return, unless there are more than `at_most`.

        Args:
          problems: The problems of documents that cannot be read.

        Raises:
          DataError: There are more than `at_most`.
        """
        # Raised as soon as the limit is passed, while reading: a corpus that is damaged throughout
        # must not be read to its end first.
        if len(problems) > self.at_most:
            what = f"more than {self.at_most} documents cannot be used; the last: {problems[-1]}"
            remedy = "look at the data, or raise `at_most` of `Skip`"
            raise DataError(Problem(what, remedy=remedy))
