"""`tf.train.Example` records, without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from luthier.data.protobuf import BYTES, FIXED32, VARINT, content, fields, packed_varints

Values = list[bytes] | np.ndarray


@dataclasses.dataclass(frozen=True)
class TFExample:
    """Decodes a serialized `tf.train.Example`.

    A feature becomes an array: int64 [n] or float32 [n], or for bytes the bytes themselves when
    there is one, else a list of them. Packed and unpacked encodings are read.
    """

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Return the features by name."""
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
      ValueError: when the bytes are no such message.
    """
    found: dict[str, Values] = {}
    for number, kind, body in fields(record):
        if number != 1 or kind != BYTES:
            raise ValueError("no tf.train.Example")
        for entry_number, _, entry in fields(body):
            if entry_number != 1:
                raise ValueError("no tf.train.Example")
            name = ""
            values: Values = []
            for part, _, value in fields(entry):
                if part == 1:
                    name = bytes(content(value)).decode("utf-8")
                elif part == 2:
                    values = _feature(content(value))
            found[name] = values
    return found


def _feature(message: memoryview) -> Values:
    for number, _, body in fields(message):
        items = list(fields(body))
        if number == 1:
            return [bytes(content(value)) for _, _, value in items]
        if number == 2:
            parts = [
                np.frombuffer(content(value), "<f4")
                for _, kind, value in items
                if kind in (BYTES, FIXED32)
            ]
            return np.concatenate([np.zeros(0, np.float32), *parts])
        if number == 3:
            parts = [
                np.array([value], np.uint64).astype(np.int64)
                if kind == VARINT
                else packed_varints(content(value))
                for _, kind, value in items
            ]
            return np.concatenate([np.zeros(0, np.int64), *parts])
    return []
