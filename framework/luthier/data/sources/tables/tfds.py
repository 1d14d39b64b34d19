"""Prepared folders of TensorFlow Datasets, without TensorFlow."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from luthier.data.requirements import require
from luthier.data.sources.containers import ArrayRecord, Container, TFRecord
from luthier.data.sources.records import Records
from luthier.data.sources.remote import local_copy
from luthier.data.sources.tables.tf_example import features as example_features
from luthier.errors import DataError, Problem

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
      split: As `train`.

    Raises:
      DataError: at first use, when the folder is not such a dataset or has no such split; later,
        naming file and record, when a record is damaged or does not fit its features.
    """

    folder: str
    split: str = "train"

    @functools.cached_property
    def _info(self) -> Mapping[str, Any]:
        return _read_json(os.path.join(os.path.expanduser(self.folder), "dataset_info.json"))

    @functools.cached_property
    def features(self) -> Mapping[str, Any]:
        """What `features.json` says of every field."""
        found = _read_json(os.path.join(os.path.expanduser(self.folder), "features.json"))
        return found.get("featuresDict", {}).get("features", {})

    @functools.cached_property
    def source(self) -> Container:
        """The bytes of the records."""
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
            return _nested("", self.features, example_features(record))
        except (ValueError, KeyError) as error:
            what = f"{self.name(index)} does not fit features.json: {error}"
            raise DataError(Problem(what, remedy="prepare the dataset again")) from None

    def name(self, index: int) -> str:
        """Return `file: record N`, counted from 0."""
        return self.source.name(index)


def _nested(prefix: str, features: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _decode(prefix + name, feature, found) for name, feature in features.items()}


def _decode(name: str, feature: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
    if "featuresDict" in feature:
        return _nested(f"{name}/", feature["featuresDict"]["features"], found)
    if name not in found and "sequence" not in feature:
        raise ValueError(f"no feature {name!r}")
    if "sequence" in feature:
        return _sequence(name, feature["sequence"]["feature"], found)
    values = found[name]
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


def _sequence(name: str, feature: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
    if "featuresDict" in feature:
        inner = feature["featuresDict"]["features"]
        return {key: _sequence(f"{name}/{key}", value, found) for key, value in inner.items()}
    if f"{name}/ragged_flat_values" in found:
        raise ValueError(f"feature {name!r} is a sequence of sequences, which cannot be read")
    values = found.get(name, [])
    if "image" in feature:
        return [_image(value) for value in values]
    if "text" in feature or isinstance(values, list):
        return list(values)
    if "tensor" in feature:
        tensor = feature["tensor"]
        return values.astype(_dtype(tensor)).reshape(-1, *_shape(tensor))
    return values


def _tensor(name: str, tensor: Mapping[str, Any], values: Any) -> Any:
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
        raise ValueError(f"no image: {error}") from None
    return array[..., None] if array.ndim == 2 else array


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(local_copy(path), encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error}"
        remedy = "name the folder of a version, as `mnist/3.0.1`"
        raise DataError(Problem(what, remedy=remedy)) from None
    except ValueError as error:
        raise DataError(Problem(f"{path}: not JSON: {error}", remedy="copy it again")) from None
