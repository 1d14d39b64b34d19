"""Selection of one metric, for early stopping, the best checkpoint or the objective of a sweep."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence

from luthier.errors import BadInput, Problem
from luthier.metrics.metric import Direction, Metric


@dataclasses.dataclass(frozen=True)
class Selector:
    """Names one metric of one evaluation set, checked against what the experiment evaluates.

    Args:
      evaluation: Name of the evaluation set (a key of `experiment.evaluations`).
      metric: Name of the metric that the task reports there.
      direction: Direction of optimization, `lower` or `higher`; `check` compares it with the
        metric's own.

    Example:
      >>> from luthier import metrics
      >>> selector = metrics.Selector("held_out", "loss")
      >>> selector.better(1.0, 2.0), selector.better(float("nan"), 2.0)
      (True, False)
    """

    evaluation: str
    metric: str
    direction: Direction = "lower"

    @property
    def name(self) -> str:
        """The name in records: `evaluation/metric`."""
        return f"{self.evaluation}/{self.metric}"

    def check(
        self, evaluations: Mapping[str, Sequence[Metric]], num_classes: int | None = None
    ) -> list[Problem]:
        """Return the problems of this choice, given the metrics of every evaluation set.

        Args:
          evaluations: The metrics that each evaluation set reports.
          num_classes: The number of classes of the model; None where it is unknown.

        Returns:
          One problem for an unknown set, metric or contrary direction, or for a metric that is the
          same for every model of so few classes; empty when all is well.
        """
        # Checked before a run starts: a misspelt metric would otherwise never stop a training, or
        # fail at the first evaluation, hours later.
        if self.evaluation not in evaluations:
            return [_unknown("evaluation", self.evaluation, list(evaluations))]
        metrics = {metric.name: metric for metric in evaluations[self.evaluation]}
        if self.metric not in metrics:
            return [_unknown("metric", self.metric, list(metrics))]
        metric = metrics[self.metric]
        if metric.better != self.direction:
            return [
                Problem(
                    f"{metric.name} is better {metric.better}, not {self.direction}",
                    path="direction",
                    remedy=f"set direction={metric.better}",
                )
            ]
        if metric.is_constant(num_classes):
            what = f"{metric.name} is always 1 with {num_classes} classes"
            others = [one.name for one in metrics.values() if not one.is_constant(num_classes)]
            return [Problem(what, "metric", remedy=f"choose one of: {', '.join(sorted(others))}")]
        return []

    def find(self, evaluations: Mapping[str, Sequence[Metric]]) -> Metric:
        """Return the metric that is named.

        Args:
          evaluations: Metrics by the name of the evaluation.

        Returns:
          The metric.

        Raises:
          BadInput: `check` finds a problem.
        """
        if problems := self.check(evaluations):
            raise BadInput(problems)
        metrics = evaluations[self.evaluation]
        return next(metric for metric in metrics if metric.name == self.metric)

    def select(self, values: Mapping[str, Mapping[Metric, float]]) -> float | None:
        """Return the value that decides.

        Args:
          values: Values of the metrics by the name of the evaluation.

        Returns:
          The value; None if it was not measured.
        """
        for metric, value in values.get(self.evaluation, {}).items():
            if metric.name == self.metric:
                return value
        return None

    def better(self, value: float, other: float) -> bool:
        """Return whether `value` is strictly better than `other`; NaN is worse than anything.

        Args:
          value: A value of the metric.
          other: Another one.

        Returns:
          False also for equal values.
        """
        # Comparisons with NaN are false, so a best value of NaN would never be improved upon.
        if math.isnan(value) or math.isnan(other):
            return not math.isnan(value)
        return value < other if self.direction == "lower" else value > other


def _unknown(kind: str, name: str, known: Sequence[str]) -> Problem:
    near = difflib.get_close_matches(name, known)
    remedy = "" if near else f"there are: {', '.join(sorted(known)) or 'none'}"
    return Problem(f"there is no {kind} named {name!r} here", kind, "", remedy, near)
