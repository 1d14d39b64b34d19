"""Records of the user's own, one JSON object a line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from luthier.data.sources.files import empty, matching_files, unreadable
from luthier.data.sources.records import Records
from luthier.data.sources.remote import local_copy
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class _Index:
    """Where every record lies: the file's number, the first byte, and the line, counted from 1."""

    file: array[int]
    offset: array[int]
    line: array[int]


@dataclasses.dataclass(frozen=True)
class JsonLines(Source):
    """One document per line: a text field of the JSON object that stands on it.

    Blank lines are skipped. Files are taken in the order of their sorted paths.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.
      field: The name of the field that holds the text.

    Raises:
      DataError: at first use, naming `file:line`, when a line is not a JSON object, or the field
        is missing or not text; or naming the file, when it is unreadable or has no records.
    """

    pattern: str
    field: str = "text"

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths that the pattern matches, sorted."""
        return matching_files(self.pattern)

    @functools.cached_property
    def _index(self) -> _Index:
        index = _Index(array("l"), array("q"), array("q"))
        problems = []
        for number, path in enumerate(self.files):
            before = len(index.file)
            try:
                with open(local_copy(path), "rb") as file:
                    _scan(file, number, index)
            except OSError as error:
                problems.append(unreadable(path, error))
            else:
                if len(index.file) == before:
                    problems.append(empty(path))
        if problems:
            raise DataError(problems)
        return index

    def __len__(self) -> int:
        return len(self._index.file)

    def __getitem__(self, index: int) -> bytes:
        return self.read(index, index + 1)[0]

    def name(self, index: int) -> str:
        """Return `file:line` of record `index`."""
        return f"{self.files[self._index.file[index]]}:{self._index.line[index]}"

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1, opening each file once."""
        return self._parsed(start, stop, lambda line: _text(_parse(line), self.field))

    def records(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return the objects start..stop - 1 with all their fields, opening each file once."""
        return self._parsed(start, stop, _parse)

    def _parsed(self, start: int, stop: int, parse: Callable[[bytes], _T]) -> list[_T]:
        index, problems = self._index, []
        documents: list[_T] = []
        with contextlib.ExitStack() as stack:
            file, opened = None, -1
            for record in range(start, stop):
                path = self.files[index.file[record]]
                try:
                    if index.file[record] != opened:
                        file = stack.enter_context(open(local_copy(path), "rb"))
                        opened = index.file[record]
                    assert file is not None
                    file.seek(index.offset[record])
                    line = file.readline()
                except OSError as error:
                    problems.append(unreadable(path, error))
                    break
                try:
                    documents.append(parse(line))
                except _BadRecord as error:
                    problem = error.problem
                    what = f"{self.name(record)}: {problem.what}"
                    problems.append(dataclasses.replace(problem, what=what))
        if problems:
            raise DataError(problems)
        return documents


@dataclasses.dataclass(frozen=True)
class JsonRecords(Records):
    """One record per line: the JSON object that stands on it, with all its fields.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.

    Raises:
      DataError: as `JsonLines` does.
    """

    pattern: str

    @functools.cached_property
    def _lines(self) -> JsonLines:
        return JsonLines(self.pattern)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._lines.records(index, index + 1)[0]

    def name(self, index: int) -> str:
        """Return `file:line` of record `index`."""
        return self._lines.name(index)


class _BadRecord(Exception):
    """One line that cannot be used; the caller knows its position."""

    def __init__(self, what: str, remedy: str = "correct or remove the line", nearest=()):
        super().__init__(what)
        self.problem = Problem(what, remedy=remedy, nearest=tuple(nearest))


def _scan(file: BinaryIO, number: int, index: _Index) -> None:
    offset = 0
    for line_number, line in enumerate(file, start=1):
        if line.strip():
            index.file.append(number)
            index.offset.append(offset)
            index.line.append(line_number)
        offset += len(line)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _BadRecord(f"not UTF-8 at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise _BadRecord(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise _BadRecord(f"not JSON that can be read: {error}") from None
    if not isinstance(record, dict):
        raise _BadRecord(f"not a JSON object but {_kind(record)}")
    return record


def _text(record: dict[str, Any], field: str) -> bytes:
    if field not in record:
        there = ", ".join(map(repr, list(record)[:8])) or "none"
        raise _BadRecord(
            f"no field {field!r} (its fields: {there})",
            remedy="name the field that holds the text with the source's `field`",
            nearest=difflib.get_close_matches(field, list(record), n=3),
        )
    text = record[field]
    if not isinstance(text, str):
        raise _BadRecord(f"field {field!r} is not text but {_kind(text)}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _BadRecord(f"field {field!r} holds half a surrogate pair, which is no text") from None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    names |= {int: "a number", float: "a number", type(None): "null"}
    return names[type(value)]
