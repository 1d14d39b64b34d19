"""Labelled arrays as rows: the data node for classification."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from luthier.data.arrays.arrays import ExampleSource
from luthier.data.examples.augmentations import Augmentation, Transform
from luthier.data.node import DataNode, Spec, spec
from luthier.data.order import Draws, Visit


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledRows:
    """One example a row.

    Args:
      source: The examples.
      transforms: Always applied, in this order.
      augmentations: Applied in training after them, in this order.
    """

    source: ExampleSource
    transforms: Sequence[Transform]
    augmentations: Sequence[Augmentation]

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return len(self.source.labels)

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return self.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of the examples and their transforms and augmentations."""
        # A resumed run must see the same inputs, and those depend on the transforms as well.
        changes = [
            [_description(one) for one in part] for part in (self.transforms, self.augmentations)
        ]
        parts = (self.source.digest, changes)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: In training, what random augmentation draws from; None in evaluation.

        Returns:
          inputs float32 [B, ...], labels int32 [B], weights float32 [B], examples int32 [B].
        """
        # Padding is left out of the work and stays zero. Salts number the augmentations, so that
        # two of one kind draw different numbers; examples count from 1, as in the entry `examples`.
        real = np.flatnonzero(rows >= 0)
        inputs = np.zeros((len(rows), *self.source.shape), np.float32)
        labels = np.zeros(len(rows), np.int32)
        if real.size:
            labels[real] = self.source.labels[rows[real]]
            values = self.source.inputs(rows[real])
            for transform in self.transforms:
                values = transform(values)
            if visit is not None:
                seen = Visit(visit.epochs[real], visit.seed)
                for salt, augmentation in enumerate(self.augmentations):
                    values = augmentation(values, Draws(rows[real] + 1, seen, salt))
            inputs[real] = values
        return {
            "inputs": inputs,
            "labels": labels,
            "weights": (rows >= 0).astype(np.float32),
            "examples": (rows + 1).astype(np.int32),
        }


def _description(change: Transform | Augmentation) -> str:
    """Return a description that identifies a transform, the same in every process."""
    # The default repr of an object holds its address. Of a user's class that is not a dataclass
    # only the name is known.
    return repr(change) if dataclasses.is_dataclass(change) else type(change).__qualname__


@dataclasses.dataclass(frozen=True)
class Classification(DataNode):
    """Arrays and their classes.

    A batch is `inputs` float32 [B, ...], `labels` int32 [B], `weights` float32 [B] (0 for padding)
    and `examples` int32 [B] (the number of the example in the data, from 1; 0 for padding).

    Args:
      source: The examples.
      transforms: Transforms that are always applied to inputs, in this order.
      augmentations: Random augmentations that are applied to inputs in training, in this order.

    Raises:
      DataError: at first use, when the data is missing, damaged or too small.

    Example:
      >>> from luthier import data
      >>> digits = data.Classification(data.Digits(split="train"))
      >>> digits.batch_spec(8)["inputs"][0]
      (8, 8, 8, 1)
    """

    source: ExampleSource
    transforms: Sequence[Transform] = ()
    augmentations: Sequence[Augmentation] = ()

    def __str__(self) -> str:
        return f"{self.source} has {self.num_rows} examples"

    # Cached although it is cheap: its digest, which reads all data, is cached in it.
    @functools.cached_property
    def rows(self) -> LabelledRows:
        """The examples by number."""
        return LabelledRows(self.source, self.transforms, self.augmentations)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.source.num_classes

    @property
    def tokens_per_row(self) -> int:
        """One label."""
        return 1

    def batch_spec(self, global_batch_size: int) -> Spec:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        return spec(
            global_batch_size,
            inputs=(self.source.shape, np.float32),
            labels=((), np.int32),
            weights=((), np.float32),
            examples=((), np.int32),
        )

    def describe(self) -> dict[str, Any]:
        """Return the size of the data.

        Returns:
          `rows`, `shape` of one input, `num_classes`, and `counts`, the examples of each class.
        """
        counts = np.bincount(self.source.labels, minlength=self.num_classes)
        return {
            "rows": self.num_rows,
            "shape": list(self.source.shape),
            "num_classes": self.num_classes,
            "counts": counts.tolist(),
        }
