"""Records with named fields, and documents that are a field of them."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import functools
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol, TypeVar

from luthier.data.sources.files import empty, matching_files, unreadable
from luthier.data.sources.remote import local_copy
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem


class Records(abc.ABC):
    """A sequence of records, each a dict of fields, in a fixed order, read on demand.

    Records of your own subclass this, are cheap to construct (no file is opened before the first
    use), and define `__len__`, `__getitem__` and `name`.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return record `index`, in 0..len - 1."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the origin of record `index`: a file and a position.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """

    # Columnar formats (Parquet, Arrow) decode one column without the others, which may be images.
    def value(self, index: int, field: str) -> Any:
        """Return one field of record `index`; tables that need not read the others override it.

        Args:
          index: Its number, from 0.
          field: The name of the field or column.

        Returns:
          The value, of any type that the format has.

        Raises:
          DataError: naming the place of the record, when it has no such field.
        """
        return value_of(self, index, field, self[index])


class Decode(Protocol):
    """Turns the bytes of a record into its fields."""

    def __call__(self, record: bytes) -> Mapping[str, Any]:
        """Return the fields.

        Raises:
          ValueError: with the reason why the bytes are invalid.
        """


@dataclasses.dataclass(frozen=True)
class JsonObject:
    """Decodes a record that is one JSON object.

    Example:
      >>> from luthier import data
      >>> data.JsonObject()(b'{"text": "To be"}')
      {'text': 'To be'}
    """

    def __call__(self, record: bytes) -> Mapping[str, Any]:
        """Return the fields of a record that is one JSON object.

        Args:
          record: The bytes of the record.

        Returns:
          Values by name.

        Raises:
          ValueError: It is not a JSON object.
        """
        value = json.loads(record)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value


@dataclasses.dataclass(frozen=True)
class Decoded(Records):
    """The records in a source of bytes, as in ArrayRecord files of `tf.train.Example`.

    Args:
      source: The bytes of the records.
      decode: Turns bytes into fields: `TFExample()`, `JsonObject()`, or your own.

    Raises:
      DataError: at a record, naming its place, when it cannot be decoded.
    """

    source: Source
    decode: Decode

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        # A decoder knows bytes only; here its error gets the place. An index beyond the end is the
        # protocol of iteration in Python and must stay an IndexError, but a decoder may raise one
        # too.
        try:
            return self.decode(self.source[index])
        except (ValueError, IndexError) as error:
            if not 0 <= index < len(self):
                raise
            remedy = "check that `decode` fits the file"
            what = f"{self.name(index)} cannot be decoded: {error}"
            raise DataError(Problem(what, remedy=remedy)) from None

    def name(self, index: int) -> str:
        """Return the origin of record `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.source.name(index)


@dataclasses.dataclass(frozen=True)
class Field(Source):
    """Documents that are one field of records.

    Args:
      records: The records.
      field: The name of the field that holds the text (UTF-8 for `str`) or the bytes.

    Raises:
      DataError: at a document, naming its place, when the field is missing or not text.
    """

    records: Records
    field: str = "text"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> bytes:
        return text_of(self.records, index, self.field)

    def name(self, index: int) -> str:
        """Return the origin of document `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.records.name(index)


def value_of(records: Records, index: int, field: str, record: Mapping[str, Any]) -> Any:
    """Return a field of a record.

    Raises:
      DataError: naming the place of the record, when it has no such field.
    """
    # A misspelt field is the most common mistake with records: the message lists what there is, and
    # the nearest name. Only here, so that all kinds of records say the same.
    if field in record:
        return record[field]
    there = ", ".join(map(repr, list(record)[:8])) or "none"
    what = f"{records.name(index)}: no field {field!r} (its fields: {there})"
    nearest = tuple(difflib.get_close_matches(field, list(record), n=3))
    raise DataError(Problem(what, nearest=nearest, remedy="name one of its fields"))


def text_of(records: Records, index: int, field: str) -> bytes:
    """Return a field of text, or of bytes, as bytes.

    Raises:
      DataError: naming the place of the record, when the field is missing or not text.
    """
    value = records.value(index, field)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # JSON may hold half a surrogate pair as an escape, which strict UTF-8 refuses.
        return value.encode("utf-8", "surrogatepass")
    what = f"{records.name(index)}: field {field!r} is not text but {type(value).__name__}"
    raise DataError(Problem(what, remedy="name a field of text"))


# Records of the user's own, one JSON object a line.

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class _Index:
    """Places of all records: the file's number, the first byte, and the line, counted from 1."""

    # `array.array` and not lists: 24 bytes a record in place of about 100, and it grows by
    # appending, which NumPy's arrays do not.

    file: array[int]
    offset: array[int]
    line: array[int]


@dataclasses.dataclass(frozen=True)
class JsonLines(Source):
    """One document per line: a text field of the JSON object on it.

    Blank lines are skipped. Files are taken in the order of their sorted paths.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.
      field: The name of the field that holds the text.

    Raises:
      DataError: at first use, naming `file:line`, when a line is not a JSON object, or the field
        is missing or not text; or naming the file, when it is unreadable or has no records.

    Example:
      >>> import pathlib
      >>> from luthier import data
      >>> _ = pathlib.Path("plays.jsonl").write_text('{"text": "To be"}')
      >>> source = data.JsonLines("plays.jsonl")
      >>> source[0], source.name(0)
      (b'To be', 'plays.jsonl:1')
    """

    pattern: str
    field: str = "text"

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths that the pattern matches, sorted."""
        return matching_files(self.pattern)

    @functools.cached_property
    def _index(self) -> _Index:
        # One pass that only looks for the ends of lines; JSON is parsed when a line is read. So
        # damage in a line is reported where that document is needed (or skipped, by `Filtered`).
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
        """Return `file:line` of record `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return f"{self.files[self._index.file[index]]}:{self._index.line[index]}"

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1, opening each file once.

        Args:
          start: Number of the first one.
          stop: Number after the last one.

        Returns:
          The documents, as bytes.
        """
        return self._parsed(start, stop, lambda line: _text(_parse(line), self.field))

    def records(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return the objects start..stop - 1 with all their fields, opening each file once.

        Args:
          start: Number of the first one.
          stop: Number after the last one.

        Returns:
          The objects.
        """
        return self._parsed(start, stop, _parse)

    def _parsed(self, start: int, stop: int, parse: Callable[[bytes], _T]) -> list[_T]:
        # A file is opened once for all of its lines in the block. A bad line does not stop the
        # others: the caller gets all of the block's problems, each with file and line. A file that
        # cannot be read would fail for each of its lines, so it ends the loop; lines of files after
        # it in the block are then not looked at.
        index, problems = self._index, []
        documents: list[_T] = []
        with contextlib.ExitStack() as stack:
            file, opened = None, -1
            for record in range(start, stop):
                path = self.files[index.file[record]]
                try:
                    if index.file[record] != opened:
                        # One file open at a time: a block may span more files than may be open.
                        stack.close()
                        file = stack.enter_context(open(local_copy(path), "rb"))
                        opened = index.file[record]
                    assert file is not None  # `opened` is -1 at first, which is no file's number
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
    """One record per line: the JSON object on it, with all its fields.

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
        """Return `file:line` of record `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self._lines.name(index)


# Private to this module: it carries a problem from where a line is parsed to where its place is
# known.
class _BadRecord(Exception):
    """One line that cannot be used; the caller knows its position."""

    def __init__(self, what: str, remedy: str = "correct or remove the line", nearest=()):
        super().__init__(what)
        self.problem = Problem(what, remedy=remedy, nearest=tuple(nearest))


def _scan(file: BinaryIO, number: int, index: _Index) -> None:
    # In bytes: offsets are what `seek` takes, and a file that is not UTF-8 must still be indexed.
    offset = 0
    for line_number, line in enumerate(file, start=1):
        if line.strip():
            index.file.append(number)
            index.offset.append(offset)
            index.line.append(line_number)
        offset += len(line)


def _parse(line: bytes) -> dict[str, Any]:
    # `utf-8-sig` for files whose first line begins with a byte order mark. RecursionError: nesting
    # that is deep enough exhausts the parser's stack; a line of brackets must not end the program.
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


def first_record(path: str) -> Mapping[str, Any]:
    """Return the first record of a file of JSON lines; the rest is not read.

    Args:
      path: A path, or the URL of an object.

    Raises:
      DataError: when the file is unreadable or empty, or the line is not a JSON object.
    """
    try:
        with open(local_copy(path), "rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            number, line = next(lines, (0, b""))
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    if not line:
        raise DataError(empty(path))
    try:
        return _parse(line)
    except _BadRecord as error:
        what = f"{path}:{number}: {error.problem.what}"
        raise DataError(dataclasses.replace(error.problem, what=what)) from None


def _text(record: dict[str, Any], field: str) -> bytes:
    if field not in record:
        there = ", ".join(map(repr, list(record)[:8])) or "none"
        raise _BadRecord(
            f"no field {field!r} (its fields: {there})",
            remedy="name the field that holds the text with the source's `field`",
            nearest=difflib.get_close_matches(field, list(record), n=3),
        )
    # No conversion of numbers to text: a field of numbers is nearly always the wrong field.
    text = record[field]
    if not isinstance(text, str):
        raise _BadRecord(f"field {field!r} is not text but {_kind(text)}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _BadRecord(
            f"field {field!r} holds half a surrogate pair, which is not text"
        ) from None


# In the words of JSON, not of Python: "null" and not "NoneType".
def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    names |= {int: "a number", float: "a number", type(None): "null"}
    return names[type(value)]
