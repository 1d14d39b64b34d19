"""The protocol of sources of labelled arrays, and arrays in memory."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from luthier import user_code
from luthier.errors import DataError, Problem


class ExampleSource(abc.ABC):
    """Arrays of one shape, each with the number of its class.

    A source of your own subclasses this and is cheap to construct: nothing is read before the first
    use of `labels` or `inputs`.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: [H, W, C] of an image, [L, C] of a series; reads no data."""

    @property
    @abc.abstractmethod
    def num_classes(self) -> int:
        """The number of classes; labels are in 0..num_classes - 1."""

    @property
    @abc.abstractmethod
    def labels(self) -> np.ndarray:
        """The class of each example, int32 [examples]."""

    @abc.abstractmethod
    def inputs(self, indices: np.ndarray) -> np.ndarray:
        """Return examples, float32 [n, *shape].

        Args:
          indices: Numbers of the examples, int64 [n], each in 0..examples - 1.

        Returns:
          Float32 [n, *shape].
        """

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """A fingerprint of the data: equal digests, equal examples."""


class ArrayExamples(ExampleSource):
    """Examples that are all in memory once they are read."""

    @abc.abstractmethod
    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all inputs and labels.

        Returns:
          Inputs [examples, *shape], and labels [examples].
        """

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        # Checked once where all sources of this kind pass: a label beyond the classes would be
        # clamped on the device, or give a loss of 0, without an error.
        inputs, labels = map(np.asarray, self.read())
        # A cast to int32 would cut numeric targets off, and the model would train on zeros.
        if labels.ndim != 1 or np.any(labels != labels.astype(np.int32)):
            what = f"{self}: labels are {user_code.described(labels)}, not whole numbers [examples]"
            remedy = "labels are numbers of classes; for other targets, subclass luthier.data.Table"
            raise DataError(Problem(what, remedy=remedy))
        inputs, labels = np.asarray(inputs, np.float32), np.asarray(labels, np.int32)
        problems = []
        if len(inputs) != len(labels) or not len(labels):
            problems.append(Problem(f"{self} has {len(inputs)} inputs and {len(labels)} labels"))
        elif inputs.shape[1:] != self.shape:
            problems.append(Problem(f"{self}: inputs are {inputs.shape[1:]}, not {self.shape}"))
        elif labels.min() < 0 or labels.max() >= self.num_classes:
            what = f"{self}: labels reach from {labels.min()} to {labels.max()}"
            remedy = f"there are {self.num_classes} classes, from 0"
            problems.append(Problem(what, remedy=remedy))
        if problems:
            raise DataError(problems)
        return inputs, labels

    @property
    def labels(self) -> np.ndarray:
        """The class of each example, int32 [examples]."""
        return self._arrays[1]

    def inputs(self, indices: np.ndarray) -> np.ndarray:
        """Return examples.

        Args:
          indices: Numbers of the examples, int64 [n].

        Returns:
          Float32 [n, *shape].
        """
        return self._arrays[0][indices]

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of the data: equal digests, equal examples."""
        # Shapes too: without them, arrays of other shapes with the same bytes would be equal.
        hasher = hashlib.blake2b(digest_size=16)
        for array in self._arrays:
            hasher.update(f"{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays(ArrayExamples):
    """Arrays given as they are, for notebooks and tests.

    Args:
      data: The inputs, float32 [examples, ...].
      classes: The class of each, int32 [examples].
      num_classes: The number of classes.
    """

    # `eq=False` above: comparing arrays gives arrays, not the truth value that dataclasses expect.
    data: Any
    classes: Any
    num_classes: int = 2  # type: ignore[misc]

    # The generated one would print the arrays, into messages and records.
    def __repr__(self) -> str:
        return f"Arrays(<{len(self.classes)}>)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(np.shape(self.data)[1:])

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all inputs and labels.

        Returns:
          Inputs [examples, *shape], and labels [examples].
        """
        return np.asarray(self.data), np.asarray(self.classes)
