"""Folders that the `datasets` library saved."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from luthier.data.requirements import require
from luthier.data.sources.files import empty
from luthier.data.sources.records import Records
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class HuggingFace(Records):
    """The rows of a dataset that `save_to_disk` wrote, memory-mapped.

    Of a dataset with splits one is read. The Arrow files have no checksums: damage shows where
    their structure no longer fits. A folder of Parquet files is read by `Parquet`.

    Args:
      folder: What was given to `save_to_disk`.
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
    def _root(self) -> str:
        folder = os.path.expanduser(self.folder)
        splits: list[str] = []
        if os.path.exists(os.path.join(folder, "dataset_dict.json")):
            splits = _read_json(os.path.join(folder, "dataset_dict.json")).get("splits", [])
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
        """What `state.json` says: the files, in their order, and the columns."""
        state = _read_json(os.path.join(self._root, "state.json"))
        if state.get("_indices_data_files") or state.get("_indices_files"):
            what = f"{self.folder}: its rows are chosen by an index beside the data"
            raise DataError(Problem(what, remedy="save it again after `flatten_indices()`"))
        if not state.get("_data_files"):
            raise DataError(empty(self._root))
        return state

    @functools.cached_property
    def features(self) -> Mapping[str, Any]:
        """What `dataset_info.json` says of the columns: their types and names of classes."""
        return _read_json(os.path.join(self._root, "dataset_info.json")).get("features") or {}

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The Arrow files, in the order of the rows."""
        names = [entry["filename"] for entry in self.state["_data_files"]]
        return tuple(os.path.join(self._root, name) for name in names)

    @functools.cached_property
    def _batches(self) -> tuple[list[Any], list[tuple[int, int]], np.ndarray]:
        """The record batches, file and first row of each, and the rows up to the end of each."""
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
        """Return one column of row `index`."""
        number, row = self._position(index)
        batch = self._batches[0][number]
        if field not in batch.schema.names:
            return super().value(index, field)
        return batch.column(field)[row].as_py()

    def name(self, index: int) -> str:
        """Return `file: row N`, counted from 0."""
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
