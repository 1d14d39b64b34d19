"""Objectives of a study: a metric of an evaluation, or a fact that the system measures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from luthier.errors import Problem
from luthier.metrics import Metric, Selector
from luthier.metrics.metric import Direction

Series = Sequence[tuple[int, float]]
"""(step, value) of every evaluation, in order."""


class Objective(Protocol):
    """A number by which trials are judged."""

    @property
    def name(self) -> str:
        """Its name, in tables and messages."""

    @property
    def direction(self) -> Direction:
        """Whether a `lower` or a `higher` value is better."""

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the value of what `result.json` holds; None where there is none."""

    def at_report(self, series: Sequence[tuple[int, Mapping[str, float]]]) -> float | None:
        """Return the value after the evaluations so far; None where they do not determine it."""

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return its problems, given the metrics of every evaluation set.

        Args:
          evaluations: The metrics; None where they are not known.
        """


class Over(Protocol):
    """Makes one number of a series of evaluations."""

    def __call__(self, values: Sequence[float], direction: Direction) -> float:
        """Return the number; `values` has one at least."""


@dataclasses.dataclass(frozen=True)
class Last:
    """The last evaluation.

    Example:
      >>> from luthier import study
      >>> study.Last()([3.0, 1.0, 2.0], "lower")
      2.0
    """

    def __call__(self, values: Sequence[float], direction: Direction) -> float:
        """Return the last of `values`, whatever the `direction`.

        Args:
          values: The values so far, in order.
          direction: `lower` or `higher`, whichever is better.

        Returns:
          The value to compare.
        """
        del direction
        return values[-1]


@dataclasses.dataclass(frozen=True)
class Best:
    """The best evaluation; evaluations that are not a number do not count.

    Example:
      >>> from luthier import study
      >>> study.Best()([3.0, 1.0, 2.0], "lower")
      1.0
    """

    def __call__(self, values: Sequence[float], direction: Direction) -> float:
        """Return the best of `values` in the `direction`.

        Args:
          values: The values so far, in order.
          direction: `lower` or `higher`, whichever is better.

        Returns:
          The value to compare.
        """
        numbers = [value for value in values if not math.isnan(value)]
        if not numbers:
            return math.nan
        return min(numbers) if direction == "lower" else max(numbers)


@dataclasses.dataclass(frozen=True)
class MeanOfLast:
    """The mean of the last evaluations.

    Args:
      count: Number of evaluations; all of them, if there are fewer.

    Example:
      >>> from luthier import study
      >>> study.MeanOfLast(2)([3.0, 1.0, 2.0], "lower")
      1.5
    """

    count: int

    RANGES: ClassVar[dict[str, str]] = {"count": "1 <= x"}

    def __call__(self, values: Sequence[float], direction: Direction) -> float:
        """Return the mean of the last of `values`, whatever the `direction`.

        Args:
          values: The values so far, in order.
          direction: `lower` or `higher`, whichever is better.

        Returns:
          The value to compare.
        """
        del direction
        last = values[-self.count :]
        return math.fsum(last) / len(last)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A metric of an evaluation set.

    Args:
      selector: The metric, with the direction that is better.
      over: Reduction over the evaluations of the metric: `Last`, `Best` or `MeanOfLast`.
    """

    selector: Selector
    over: Over = Last()

    @property
    def name(self) -> str:
        """The evaluation set and the metric."""
        return self.selector.name

    @property
    def direction(self) -> Direction:
        """Whether a `lower` or a `higher` value is better."""
        return self.selector.direction

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the value of a result's series.

        Args:
          result: What the trial recorded.

        Returns:
          The value; None where nothing was measured.
        """
        return self.at_report(result.get("series", ()))

    def at_report(self, series: Sequence[tuple[int, Mapping[str, float]]]) -> float | None:
        """Return the value of a series so far.

        Args:
          series: (step, values by metric) of the evaluations so far.

        Returns:
          The value; None where nothing was measured.
        """
        values = [float(metrics[self.name]) for _, metrics in series if self.name in metrics]
        return self.over(values, self.direction) if values else None

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return the problems of the selector, given the `evaluations`.

        Args:
          evaluations: Metrics by the name of the evaluation; None where unknown.

        Returns:
          The problems; none if the metric exists.
        """
        return [] if evaluations is None else self.selector.check(evaluations)


@dataclasses.dataclass(frozen=True)
class _Fact:
    """A fact of `result.json`.

    Args:
      direction: Direction of optimization, `lower` or `higher`.
    """

    direction: Direction = "lower"

    KEY: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name, in tables and messages."""
        return self.KEY

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the fact of a result."""
        found = result.get("facts", {}).get(self.KEY)
        return None if found is None else float(found)

    def at_report(self, series: Sequence[tuple[int, Mapping[str, float]]]) -> float | None:
        """Return None: evaluations do not report it."""
        del series
        return None

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return nothing: every trial has it, whatever its `evaluations`."""
        del evaluations
        return []


@dataclasses.dataclass(frozen=True)
class StepTime(_Fact):
    """The median seconds per optimizer step.

    Args:
      direction: Direction of optimization, `lower` or `higher`.
    """

    KEY: ClassVar[str] = "step_seconds"


@dataclasses.dataclass(frozen=True)
class DeviceHours(_Fact):
    """The device hours of the trial.

    Args:
      direction: Direction of optimization, `lower` or `higher`.
    """

    KEY: ClassVar[str] = "device_seconds"

    @property
    def name(self) -> str:
        """Its name, in tables and messages."""
        return "device_hours"

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the device hours of a result.

        Args:
          result: What the trial recorded.

        Returns:
          Hours; None where unknown.
        """
        seconds = super().value(result)
        return None if seconds is None else seconds / 3600


@dataclasses.dataclass(frozen=True)
class PeakBytes(_Fact):
    """The peak memory of one device.

    Args:
      direction: Direction of optimization, `lower` or `higher`.
    """

    KEY: ClassVar[str] = "peak_bytes"


@dataclasses.dataclass(frozen=True)
class Parameters(_Fact):
    """The number of scalars in the model's parameters.

    Args:
      direction: Direction of optimization, `lower` or `higher`.
    """

    KEY: ClassVar[str] = "parameters"


def is_better(objective: Objective, value: float, other: float) -> bool:
    """Return whether a value is strictly better than another; NaN is worse than anything.

    Args:
      objective: What is compared.
      value: A value of it.
      other: Another one.

    Returns:
      False also for equal values.

    Example:
      >>> from luthier import metrics, study
      >>> loss = study.Measured(metrics.Selector("held_out", "loss"))
      >>> study.is_better(loss, 1.0, 2.0), study.is_better(loss, float("nan"), 2.0)
      (True, False)
    """
    if math.isnan(value) or math.isnan(other):
        return not math.isnan(value) and math.isnan(other)
    return value < other if objective.direction == "lower" else value > other
