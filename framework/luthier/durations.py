"""Lengths of training, in steps, tokens, epochs or seconds.

A duration is a node of the graph (`checkpoints.every = Seconds(600)`), swapped like any other node.
`training.steps` alone is a plain number, because schedules share it as a value node.

Steps, tokens, epochs and seconds are needed by `checkpoint` (save every), `program` (stop after,
evaluate every) and `trainer` (is it due?), which must not import each other; so durations are a
module of their own, below them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run, in every unit at once."""

    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    seconds: float = 0.0


class Duration(Protocol):
    """A length of training: `measure` reads its unit off a `Progress`, `count` is its length."""

    @property
    def count(self) -> float:
        """The length, in this duration's unit."""

    def measure(self, progress: Progress) -> float:
        """Return `progress` in this duration's unit."""


def _check(duration: Duration) -> None:
    if not (math.isfinite(duration.count) and duration.count > 0):
        raise ValueError(
            f"{type(duration).__name__} needs a finite count > 0, not {duration.count}"
        )


@dataclasses.dataclass(frozen=True)
class Steps:
    """A number of optimizer steps.

    Args:
      count: Number of steps.

    Example:
      >>> from luthier import durations
      >>> durations.Steps(100).measure(durations.Progress(steps=30))
      30
    """

    count: int

    def __post_init__(self) -> None:
        _check(self)

    def measure(self, progress: Progress) -> float:
        """Return the optimizer steps done."""
        return progress.steps


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A number of training tokens (targets with non-zero weight).

    Args:
      count: Number of tokens.
    """

    count: float

    def __post_init__(self) -> None:
        _check(self)

    def measure(self, progress: Progress) -> float:
        """Return the tokens trained on."""
        return progress.tokens


@dataclasses.dataclass(frozen=True)
class Epochs:
    """A number of passes over the training examples; fractions are allowed.

    Args:
      count: Number of epochs.
    """

    count: float

    def __post_init__(self) -> None:
        _check(self)

    def measure(self, progress: Progress) -> float:
        """Return the passes over the training examples."""
        return progress.epochs


@dataclasses.dataclass(frozen=True)
class Seconds:
    """A number of seconds spent training, over all restarts.

    Args:
      count: Number of seconds.
    """

    count: float

    def __post_init__(self) -> None:
        _check(self)

    def measure(self, progress: Progress) -> float:
        """Return the seconds spent training."""
        return progress.seconds
