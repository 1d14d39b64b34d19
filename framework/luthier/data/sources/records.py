"""Records with named fields, and how documents come from them."""

from __future__ import annotations

import abc
import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem


class Records(abc.ABC):
    """A sequence of records, each a dict of fields, in a fixed order, read when asked for.

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
        """Return where record `index` is from: a file and a position."""

    def value(self, index: int, field: str) -> Any:
        """Return one field of record `index`; tables that need not read the others override it.

        Raises:
          DataError: naming the place of the record, when it has no such field.
        """
        return value_of(self, index, field, self[index])


class Decode(Protocol):
    """Turns the bytes of a record into its fields."""

    def __call__(self, record: bytes) -> Mapping[str, Any]:
        """Return the fields.

        Raises:
          ValueError: saying what is wrong with the bytes.
        """


@dataclasses.dataclass(frozen=True)
class JsonObject:
    """Decodes a record that is one JSON object."""

    def __call__(self, record: bytes) -> Mapping[str, Any]:
        """Return the fields of a record that is one JSON object."""
        value = json.loads(record)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value


@dataclasses.dataclass(frozen=True)
class Decoded(Records):
    """The records that stand in a source of bytes, as in ArrayRecord files of `tf.train.Example`.

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
        try:
            return self.decode(self.source[index])
        except (ValueError, IndexError) as error:
            if not 0 <= index < len(self):
                raise
            remedy = "check that `decode` fits the file"
            what = f"{self.name(index)} cannot be decoded: {error}"
            raise DataError(Problem(what, remedy=remedy)) from None

    def name(self, index: int) -> str:
        """Return where record `index` is from."""
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
        """Return where document `index` is from."""
        return self.records.name(index)


def value_of(records: Records, index: int, field: str, record: Mapping[str, Any]) -> Any:
    """Return a field of a record.

    Raises:
      DataError: naming the place of the record, when it has no such field.
    """
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
        return value.encode("utf-8", "surrogatepass")
    what = f"{records.name(index)}: field {field!r} is not text but {type(value).__name__}"
    raise DataError(Problem(what, remedy="name a field of text"))
