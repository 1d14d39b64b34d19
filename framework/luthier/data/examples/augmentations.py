"""Transforms of inputs, which always apply, and augmentations, at random in training.

Shapes: B examples, then axes of space or time, then C channels: [B, H, W, C] or [B, L, C].
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from luthier.data.order import Draws


class Transform(abc.ABC):
    """Changes inputs in the same way in training and evaluation; keeps their shape."""

    @abc.abstractmethod
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """


class Augmentation(abc.ABC):
    """Changes inputs at random, in training only; keeps their shape.

    The draws depend on the example, the epoch and the seed, and on nothing else.
    """

    # Vectorized over the batch, with one call of `draws` for all examples: the numbers of an
    # example are the same whatever batch it is in (`Draws`), so nothing is gained by a loop.

    @abc.abstractmethod
    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """


@dataclasses.dataclass(frozen=True)
class Standardize(Transform):
    """(x - mean) / std, with the given numbers.

    Args:
      mean: The number to subtract.
      std: The number to divide by.

    Example:
      >>> import numpy as np
      >>> from luthier import data
      >>> print(data.Standardize(mean=1.0, std=2.0)(np.array([[1.0, 3.0]], np.float32)))
      [[0. 1.]]
    """

    RANGES: ClassVar[dict[str, str]] = {"std": "0 < x"}

    mean: float
    std: float

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        return ((inputs - np.float32(self.mean)) / np.float32(self.std)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors the last axis of space (width, or time) of some examples.

    Args:
      probability: The fraction of examples that are mirrored.
    """

    RANGES: ClassVar[dict[str, str]] = {"probability": "0 <= x <= 1"}

    probability: float = 0.5

    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        # Both versions of the whole batch and a choice by example, without indexing.
        mirrored = draws.uniform() < self.probability
        return np.where(_spread(mirrored, inputs), np.flip(inputs, axis=-2), inputs)


@dataclasses.dataclass(frozen=True)
class Shift(Augmentation):
    """Moves each example along every axis of space; what comes in from outside is 0.

    Args:
      at_most: The greatest distance, in pixels or points in time; all distances are as likely.
    """

    RANGES: ClassVar[dict[str, str]] = {"at_most": "0 <= x"}

    at_most: int

    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        # Axis by axis, each with distances of its own; the first axis is the batch, the last holds
        # the channels. An example's places are looked up by one gather for the whole batch.
        for axis in range(1, inputs.ndim - 1):
            length = inputs.shape[axis]
            distances = np.floor(draws.uniform() * (2 * self.at_most + 1)).astype(int)
            places = np.arange(length) - (distances[:, None] - self.at_most)
            inside = (places >= 0) & (places < length)
            shape = [len(inputs)] + [1] * (inputs.ndim - 1)
            shape[axis] = length
            # Clipped to be a valid index; what came from outside is set to 0 below.
            index = np.clip(places, 0, length - 1).reshape(shape)
            moved = np.take_along_axis(inputs, np.broadcast_to(index, inputs.shape), axis)
            inputs = np.where(inside.reshape(shape), moved, np.float32(0))
        return inputs


@dataclasses.dataclass(frozen=True)
class Cutout(Augmentation):
    """Sets a square (a run, for series) at a random place to 0; it may reach over the edge.

    Args:
      size: Side length of the region, in pixels or points in time.

    Source: DeVries and Taylor 2017, arXiv:1708.04552.
    """

    RANGES: ClassVar[dict[str, str]] = {"size": "1 <= x"}

    size: int

    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        # The square is the product of a run on each axis. Centers are uniform over the image, so
        # that squares at the edge are cut off and remove less, as in the paper.
        inside = np.ones(inputs.shape, bool)
        for axis in range(1, inputs.ndim - 1):
            length = inputs.shape[axis]
            centers = np.floor(draws.uniform() * length).astype(int)[:, None]
            first = centers - self.size // 2
            places = np.arange(length)
            here = (places >= first) & (places < first + self.size)
            shape = [len(inputs)] + [1] * (inputs.ndim - 1)
            shape[axis] = length
            inside &= here.reshape(shape)
        return np.where(inside, np.float32(0), inputs)


@dataclasses.dataclass(frozen=True)
class Noise(Augmentation):
    """Adds normal noise, drawn for each value.

    Args:
      std: Standard deviation of the noise.
    """

    RANGES: ClassVar[dict[str, str]] = {"std": "0 <= x"}

    std: float

    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        # Drawn in float64, added in float32: the type of inputs must not change on the way.
        return inputs + (self.std * draws.normal(*inputs.shape[1:])).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Scale(Augmentation):
    """Multiplies each example by one factor.

    Args:
      low: The least factor.
      high: The greatest factor; all between are as likely.
    """

    RELATIONS: ClassVar[tuple[str, ...]] = ("low <= high",)

    low: float
    high: float

    def __call__(self, inputs: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the changed inputs.

        Args:
          inputs: float32 [B, ...].
          draws: Random numbers for each example.

        Returns:
          Float32 [B, ...], of the shape of `inputs`.
        """
        factors = self.low + (self.high - self.low) * draws.uniform()
        return inputs * _spread(factors.astype(np.float32), inputs)


def _spread(values: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return one value for each example in the shape that meets the inputs."""
    return values.reshape(len(values), *[1] * (inputs.ndim - 1))
