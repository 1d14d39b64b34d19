"""Tables of records: Parquet, Hugging Face and TFDS folders, and `tf.train.Example`."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import io
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from luthier.data.messages import message_class
from luthier.data.requirements import require
from luthier.data.sources.containers import ArrayRecord, Container, TFRecord
from luthier.data.sources.files import empty, matching_files
from luthier.data.sources.records import Records
from luthier.data.sources.remote import local_copy
from luthier.errors import DataError, Problem

_TEXT_TYPES = ("string", "large_string", "string_view")


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

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of text, by the schema of the first file."""
        schema = self._open(0).schema_arrow
        return tuple(field.name for field in schema if str(field.type) in _TEXT_TYPES)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: open files do not travel to other processes."""
        # Neither do locks, which cannot be pickled at all.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _groups(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Return file and group of every row group, and the rows up to the end of each."""
        # From the footers alone, which hold the rows of every group.
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

    # The last few row groups, least recently used first. Rows are read in shuffled order, and each
    # would otherwise cost the decoding of its whole group.
    @functools.cached_property
    def _cached_groups(self) -> tuple[collections.OrderedDict[int, Any], threading.Lock]:
        return collections.OrderedDict(), threading.Lock()

    def _open(self, file: int) -> Any:
        parquet = require("pyarrow.parquet", "parquet", "reading Parquet")
        arrow = require("pyarrow", "parquet", "reading Parquet")
        path = self.files[file]
        copy = local_copy(path)
        try:
            # pyarrow does not check page checksums unless told to.
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
        # Batches are assembled by threads, and a row group is decoded as a whole: under the lock,
        # so that two threads that need the same group decode it once.
        cached, lock = self._cached_groups
        with lock:
            if number not in cached:
                cached[number] = self._read(number)
                while len(cached) > self.KEPT_GROUPS:
                    cached.popitem(last=False)
            cached.move_to_end(number)
            return cached[number]

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
        # `ends` runs through all files; the row within the file is counted from the end of the
        # group before the file's first one.
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
        """Return one column of row `index`.

        Args:
          index: Its number, from 0.
          field: The name of the field or column.

        Returns:
          The value, of any type that the format has.
        """
        _, _, number, row = self._position(index)
        table = self._table(number)
        if field not in table.column_names:
            return super().value(index, field)
        return table.column(field)[row].as_py()

    def name(self, index: int) -> str:
        """Return `file: row N`, counted from 0.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        file, row, _, _ = self._position(index)
        return f"{self.files[file]}: row {row}"


def _unreadable(path: str, place: str, error: BaseException) -> DataError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    what = f"{path}:{place or ' cannot be read:'} {why}"
    return DataError(Problem(what, remedy="copy the file again, or leave it out of the pattern"))


# Folders that the `datasets` library saved.


@dataclasses.dataclass(frozen=True)
class HuggingFace(Records):
    """The rows of a dataset that `save_to_disk` wrote, memory-mapped.

    Of a dataset with splits one is read. The Arrow files have no checksums: damage shows where
    their structure no longer fits. A folder of Parquet files is read by `Parquet`.

    Args:
      folder: The folder that was passed to `save_to_disk`.
      split: The split of a dataset that has splits; empty for one that has none.

    Raises:
      DataError: at first use, when the folder is not such a dataset, has no such split, or a file
        is missing or damaged.
    """

    folder: str
    split: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings alone: memory maps do not travel to other processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        """The names of its splits; none of a dataset that has no splits."""
        # A DatasetDict is a folder with a folder for each split and `dataset_dict.json` beside
        # them.
        path = os.path.join(os.path.expanduser(self.folder), "dataset_dict.json")
        return tuple(_read_json(path).get("splits", ())) if os.path.exists(path) else ()

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of text, by `dataset_info.json`."""
        types = {name: feature for name, feature in self.features.items() if "dtype" in feature}
        return tuple(name for name, feature in types.items() if feature["dtype"] in _TEXT_TYPES)

    @functools.cached_property
    def _root(self) -> str:
        folder, splits = os.path.expanduser(self.folder), self.splits
        if self.split and self.split in splits:
            return os.path.join(folder, self.split)
        if splits or self.split:
            what = f"{self.folder} has no split {self.split!r}"
            remedy = f"it has {', '.join(splits)}" if splits else "leave `split` empty"
            nearest = tuple(difflib.get_close_matches(self.split, splits))
            raise DataError(Problem(what, remedy=remedy, nearest=nearest))
        return folder

    @functools.cached_property
    def state(self) -> Mapping[str, Any]:
        """The content of `state.json`: the files, in their order, and the columns."""
        state = _read_json(os.path.join(self._root, "state.json"))
        # `select` and `shuffle` of the datasets library leave the data as it is and keep the chosen
        # row numbers beside it; reading the files in order would give other rows.
        if state.get("_indices_data_files") or state.get("_indices_files"):
            what = f"{self.folder}: its rows are chosen by an index beside the data"
            raise DataError(Problem(what, remedy="save it again after `flatten_indices()`"))
        if not state.get("_data_files"):
            raise DataError(empty(self._root))
        return state

    @functools.cached_property
    def features(self) -> Mapping[str, Any]:
        """The columns in `dataset_info.json`: their types and names of classes."""
        return _read_json(os.path.join(self._root, "dataset_info.json")).get("features") or {}

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The Arrow files, in the order of the rows."""
        names = [entry["filename"] for entry in self.state["_data_files"]]
        return tuple(os.path.join(self._root, name) for name in names)

    @functools.cached_property
    def _batches(self) -> tuple[list[Any], list[tuple[int, int]], np.ndarray]:
        """The record batches, file and first row of each, and the rows up to the end of each."""
        # All record batches are listed once; their columns are views of the mapped files, so this
        # holds metadata only. (The stream format of Arrow has no index, so it has to be walked.)
        batches: list[Any] = []
        places: list[tuple[int, int]] = []
        problems: list[Problem] = []
        for file, path in enumerate(self.files):
            try:
                row = 0
                for batch in _record_batches(path):
                    batches.append(batch)
                    places.append((file, row))
                    row += batch.num_rows
            except DataError as error:
                problems.extend(error.problems)
        if not problems and not batches:
            problems.append(empty(self._root))
        if problems:
            raise DataError(problems)
        return batches, places, np.cumsum([batch.num_rows for batch in batches])

    def _position(self, index: int) -> tuple[int, int]:
        ends = self._batches[2]
        if not 0 <= index < ends[-1]:
            raise IndexError(index)
        number = int(np.searchsorted(ends, index, side="right"))
        return number, index - (int(ends[number - 1]) if number else 0)

    def __len__(self) -> int:
        return int(self._batches[2][-1])

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        number, row = self._position(index)
        batch = self._batches[0][number]
        return {name: batch.column(name)[row].as_py() for name in batch.schema.names}

    def value(self, index: int, field: str) -> Any:
        """Return one column of row `index`.

        Args:
          index: Its number, from 0.
          field: The name of the field or column.

        Returns:
          The value, of any type that the format has.
        """
        number, row = self._position(index)
        batch = self._batches[0][number]
        if field not in batch.schema.names:
            return super().value(index, field)
        return batch.column(field)[row].as_py()

    def name(self, index: int) -> str:
        """Return `file: row N`, counted from 0.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        number, row = self._position(index)
        file, first = self._batches[1][number]
        return f"{self.files[file]}: row {first + row}"


def _record_batches(path: str) -> list[Any]:
    arrow = require("pyarrow", "parquet", "reading Arrow files")
    row = 0
    batches: list[Any] = []
    try:
        with arrow.ipc.open_stream(arrow.memory_map(path)) as reader:
            for batch in reader:
                # Arrow takes offsets and lengths of a file on trust: a damaged one would be read
                # out of bounds later.
                batch.validate(full=True)
                batches.append(batch)
                row += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        place = f"damaged from row {row}" if batches else "cannot be read"
        what = f"{path}: {place}: {why}"
        raise DataError(Problem(what, remedy="copy the file again")) from None
    return batches


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error}"
        raise DataError(Problem(what, remedy="name a folder that `save_to_disk` wrote")) from None
    except ValueError as error:
        raise DataError(Problem(f"{path}: not JSON: {error}", remedy="copy it again")) from None


# `tf.train.Example` records, without TensorFlow.

Values = list[bytes] | np.ndarray


@dataclasses.dataclass(frozen=True)
class TFExample:
    """Decodes a serialized `tf.train.Example`.

    A feature becomes an array: int64 [n] or float32 [n], or for bytes the bytes themselves when
    there is one, else a list of them. Packed and unpacked encodings are read.
    """

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Return the features by name.

        Args:
          record: The bytes of the record.

        Returns:
          Values by name: bytes, a number, or an array.
        """
        return {
            name: values[0] if isinstance(values, list) and len(values) == 1 else values
            for name, values in features(record).items()
        }


def features(record: bytes) -> dict[str, Values]:
    """Return the features of a serialized `tf.train.Example` as lists.

    Args:
      record: The serialized message.

    Returns:
      By name: a list of bytes, or int64 [n], or float32 [n].

    Raises:
      ValueError: when the bytes are not such a message.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        example = _example_class().FromString(record)
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
    # Fields that a message does not declare are skipped in silence, so that almost any message can
    # be read as any other; an Example has none.
    if len(UnknownFieldSet(example)) or len(UnknownFieldSet(example.features)):
        raise ValueError("not a tf.train.Example: it has fields that an Example does not have")
    named = example.features.feature
    # The order of a map is that of a hash table, which may differ between processes.
    return {name: _values(named[name]) for name in sorted(named)}


def _values(feature: Any) -> Values:
    # The kind, and not the values, decides the type: an empty list of numbers has one, too.
    kind = feature.WhichOneof("kind")
    if kind == "float_list":
        return np.array(feature.float_list.value, np.float32)
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


# tensorflow/core/example/example.proto and feature.proto.
_EXAMPLE = {
    "BytesList": [(1, "value", "[bytes]")],
    "FloatList": [(1, "value", "[float]")],
    "Int64List": [(1, "value", "[int64]")],
    "Feature": [
        (1, "bytes_list", "kind?BytesList"),
        (2, "float_list", "kind?FloatList"),
        (3, "int64_list", "kind?Int64List"),
    ],
    "Features": [(1, "feature", "{Feature}")],
    "Example": [(1, "features", "Features")],
}


@functools.cache
def _example_class() -> Any:
    # At the first record: nobody else needs protobuf.
    return message_class("proto3", _EXAMPLE, "Example")


# Prepared folders of TensorFlow Datasets, without TensorFlow.

_CONTAINERS: dict[str, Callable[[str], Container]] = {
    "array_record": ArrayRecord,
    "tfrecord": TFRecord,
}


@dataclasses.dataclass(frozen=True)
class Tfds(Records):
    """The examples of a split of a prepared TFDS folder (ArrayRecord or TFRecord).

    Fields are decoded as `features.json` says: tensors have their shape and dtype, class labels
    are int64 scalars, text is bytes, images are uint8 [H, W, C], nested features are nested dicts,
    and a sequence of scalars or of texts is an array or a list.

    Args:
      folder: The folder of a version, with `dataset_info.json` and `features.json`.
      split: The name of the split, as `train`.

    Raises:
      DataError: at first use, when the folder is not such a dataset or has no such split; later,
        naming file and record, when a record is damaged or does not fit its features.
    """

    folder: str
    split: str = "train"

    @functools.cached_property
    def _info(self) -> Mapping[str, Any]:
        return _read_json_tfds(os.path.join(os.path.expanduser(self.folder), "dataset_info.json"))

    @functools.cached_property
    def features(self) -> Mapping[str, Any]:
        """The fields in `features.json`."""
        content = _read_json_tfds(os.path.join(os.path.expanduser(self.folder), "features.json"))
        return content.get("featuresDict", {}).get("features", {})

    @functools.cached_property
    def source(self) -> Container:
        """The bytes of the records."""
        # A folder that does not name its format has TFDS's default. File names follow from split
        # and format; the number of shards, which is a part of them, need not be known.
        splits = [entry["name"] for entry in self._info.get("splits", [])]
        if self.split not in splits:
            what = f"{self.folder} has no split {self.split!r}"
            nearest = tuple(difflib.get_close_matches(self.split, splits))
            raise DataError(Problem(what, nearest=nearest, remedy=f"it has {', '.join(splits)}"))
        kind = self._info.get("fileFormat", "tfrecord")
        if kind not in _CONTAINERS:
            what = f"{self.folder}: files of format {kind!r} cannot be read"
            raise DataError(Problem(what, remedy=f"prepare it as {' or '.join(_CONTAINERS)}"))
        folder = os.path.expanduser(self.folder)
        return _CONTAINERS[kind](os.path.join(folder, f"*-{self.split}.{kind}-*-of-*"))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        record = self.source[index]
        try:
            return _nested("", self.features, features(record))
        except (ValueError, KeyError) as error:
            what = f"{self.name(index)} does not fit features.json: {error}"
            raise DataError(Problem(what, remedy="prepare the dataset again")) from None

    def name(self, index: int) -> str:
        """Return `file: record N`, counted from 0.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.source.name(index)


# TFDS flattens nested features into names with slashes; `values` are the flat features of a record.
def _nested(prefix: str, features: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _decode(prefix + name, feature, values) for name, feature in features.items()}


def _decode(name: str, feature: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    # features.json is the JSON form of a protocol buffer with one field for each kind of feature;
    # the kind is the key that is present. A sequence may be absent from a record: it is then empty.
    if "featuresDict" in feature:
        return _nested(f"{name}/", feature["featuresDict"]["features"], record)
    if name not in record and "sequence" not in feature:
        raise ValueError(f"no feature {name!r}")
    if "sequence" in feature:
        return _sequence(name, feature["sequence"]["feature"], record)
    values = record[name]
    if "image" in feature:
        return _image(values[0])
    if "text" in feature:
        return bytes(values[0])
    if "classLabel" in feature:
        return np.int64(values[0])
    if "tensor" in feature:
        return _tensor(name, feature["tensor"], values)
    kind = str(feature.get("pythonClassName", "?")).rpartition(".")[2]
    raise ValueError(f"feature {name!r} is of a kind that cannot be read: {kind}")


def _sequence(name: str, feature: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    # A sequence of dicts is stored, and returned, as a dict of sequences, as TFDS does.
    if "featuresDict" in feature:
        inner = feature["featuresDict"]["features"]
        return {key: _sequence(f"{name}/{key}", value, record) for key, value in inner.items()}
    if f"{name}/ragged_flat_values" in record:
        raise ValueError(f"feature {name!r} is a sequence of sequences, which cannot be read")
    values = record.get(name, [])
    if "image" in feature:
        return [_image(value) for value in values]
    if "text" in feature or isinstance(values, list):
        return list(values)
    if "tensor" in feature:
        tensor = feature["tensor"]
        return values.astype(_dtype(tensor)).reshape(-1, *_shape(tensor))
    return values


def _tensor(name: str, tensor: Mapping[str, Any], values: Any) -> Any:
    # A tensor is a flat list of numbers, or, with the encoding BYTES, one string of its memory.
    shape, dtype = _shape(tensor), _dtype(tensor)
    if isinstance(values, list):
        if tensor.get("encoding", "none").lower() == "bytes" and dtype.kind != "O":
            return np.frombuffer(values[0], dtype).reshape(shape)
        if tensor.get("encoding", "none").lower() not in ("none", "bytes"):
            raise ValueError(f"feature {name!r} has the encoding {tensor['encoding']}")
        return values[0] if not shape else values
    array = values.astype(dtype).reshape(shape)
    return array if shape else array[()]


def _shape(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.get("shape", {}).get("dimensions", []))


def _dtype(tensor: Mapping[str, Any]) -> np.dtype:
    name = tensor.get("dtype", "float32")
    return np.dtype(object if name == "string" else name)


def _image(encoded: bytes) -> np.ndarray:
    pillow = require("PIL.Image", "images", "decoding images")
    try:
        with pillow.open(io.BytesIO(encoded)) as image:
            array = np.asarray(image)
    except OSError as error:
        raise ValueError(f"not an image: {error}") from None
    return array[..., None] if array.ndim == 2 else array


def _read_json_tfds(path: str) -> dict[str, Any]:
    try:
        with open(local_copy(path), encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error}"
        remedy = "name the folder of a version, as `mnist/3.0.1`"
        raise DataError(Problem(what, remedy=remedy)) from None
    except ValueError as error:
        raise DataError(Problem(f"{path}: not JSON: {error}", remedy="copy it again")) from None
