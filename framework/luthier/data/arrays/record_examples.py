"""Labelled arrays that are two fields of records: of TFDS, Parquet or Arrow."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from typing import Any, ClassVar

import numpy as np

from luthier.data.arrays.arrays import ExampleSource
from luthier.data.arrays.image_folder import decode_image
from luthier.data.sources.records import Records
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class RecordExamples(ExampleSource):
    """Inputs and classes from two fields of records.

    An input may be an array or nested lists of numbers, or the bytes of an image file (also inside
    `{"bytes": ...}`, as `datasets` keeps it), which is decoded. Numbers of type uint8 are divided
    by 255. All labels are read at first use, inputs on demand.

    Args:
      records: The records.
      input_shape: The shape of an input; images have H, W, C and are scaled to it.
      classes: The number of classes.
      inputs_field: The name of the field of inputs.
      labels_field: The name of the field of labels.

    Raises:
      DataError: at first use or later, naming the record, when a field is missing or an input does
        not fit.
    """

    RANGES: ClassVar[dict[str, str]] = {"classes": "1 <= x"}

    records: Records
    input_shape: tuple[int, ...]
    classes: int
    inputs_field: str = "image"
    labels_field: str = "label"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.input_shape)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.classes

    @functools.cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """The class of each record, int32 [records]."""
        # bool is an int in Python and passes: True and False are classes 1 and 0.
        values = [
            self.records.value(index, self.labels_field) for index in range(len(self.records))
        ]
        for index, value in enumerate(values):
            if not (isinstance(value, (int, np.integer)) and 0 <= value < self.num_classes):
                what = f"{self.records.name(index)}: label {value!r}"
                remedy = f"there are {self.num_classes} classes, from 0"
                raise DataError(Problem(what, remedy=remedy))
        return np.array(values, np.int32)

    @functools.cached_property
    def digest(self) -> str:  # type: ignore[override]
        """A fingerprint of all labels and of 16 inputs, evenly spread."""
        # All inputs would have to be decoded for a full digest, at every start. Labels and a sample
        # notice another file, another order, and another size.
        hasher = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        hasher.update(self.labels.tobytes())
        some = np.linspace(0, len(self.labels) - 1, min(len(self.labels), 16)).astype(np.int64)
        hasher.update(self.inputs(some).tobytes())
        return hasher.hexdigest()

    def inputs(self, indices: np.ndarray) -> np.ndarray:
        """Return examples.

        Args:
          indices: Numbers of the examples, int64 [n].

        Returns:
          Float32 [n, *shape].
        """
        examples = np.empty((len(indices), *self.shape), np.float32)
        for place, index in enumerate(np.asarray(indices).tolist()):
            examples[place] = self._input(index, self.records.value(index, self.inputs_field))
        return examples

    def _input(self, index: int, value: Any) -> np.ndarray:
        # `datasets` stores an image as {"bytes": ..., "path": ...}.
        value = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(value, bytes):
            return decode_image(io.BytesIO(value), self.records.name(index), self.shape)
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype.kind not in "biuf":
            what = f"{self.records.name(index)}: field {self.inputs_field!r} has the shape "
            what += f"{array.shape} and type {array.dtype}, not {self.shape} of numbers"
            raise DataError(Problem(what, remedy="set `input_shape`, or name another field"))
        return array.astype(np.float32) / (255 if array.dtype == np.uint8 else 1)
