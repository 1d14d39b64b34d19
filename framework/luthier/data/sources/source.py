"""What a source of documents is, and how to walk through one."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from luthier.errors import DataError, Problem

MAX_PROBLEMS = 20
BLOCK_BYTES = 4 << 20
BLOCK_DOCUMENTS = 4096


class Source(abc.ABC):
    """A sequence of documents in a fixed order, each a run of bytes, read when asked for.

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
        """Return where document `index` is from: a file, or `file:line`."""

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1; sources for which one by one is slow override it.

        Raises:
          DataError: with every document among them that cannot be read.
        """
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
            small = sum(map(len, documents)) < BLOCK_BYTES
            size = min(size * 2, BLOCK_DOCUMENTS) if small else max(size // 2, 1)
        start = stop
    if len(problems) > MAX_PROBLEMS or (problems and start < total):
        problems[MAX_PROBLEMS:] = [Problem(f"only the first {MAX_PROBLEMS} problems are listed")]
    if problems:
        raise DataError(problems)
