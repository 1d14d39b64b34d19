"""Objectives of a study: the numbers by which its trials are judged.

An objective is a metric of an evaluation (`Measured`) or of training (`TrainingMetric`), a fact
that the system measures (`StepTime`), the steps, tokens or seconds until a metric reaches a value
(`StepsTo`), or an expression of these (`Expression`). A `Constraint` of the space bounds any of
them.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from luthier.errors import Problem
from luthier.graph import nearest
from luthier.metrics import Metric, Selector
from luthier.metrics.metric import Direction
from luthier.study import expressions
from luthier.study.space import Constraint

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
        values = [value for _, value in self.series(result)]
        return self.over(values, self.direction) if values else None

    def series(self, result: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Return (step, value) of every evaluation that has the metric.

        Args:
          result: What the trial recorded.

        Returns:
          Pairs in the order of the steps.
        """
        steps = result.get("series", ())
        return [(step, float(found[self.name])) for step, found in steps if self.name in found]

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


_TRAINING = ("loss", "gradient_norm", "parameter_norm", "learning_rate", "step_seconds")
_PROGRESS = {"steps": "", "tokens": "tokens", "seconds": "seconds"}
"""The value of a training step that counts progress; steps are counted by its number."""


@dataclasses.dataclass(frozen=True)
class TrainingMetric:
    """A value that training records at every step: the loss, or a metric of the task on its batch.

    Args:
      metric: Its name, as in the run's record: `loss`.
      direction: Direction of optimization, `lower` or `higher`.
      over: Reduction over the steps: `Last`, `Best` or `MeanOfLast`; single steps are noisy.

    Example:
      >>> from luthier import study
      >>> steps = [[1, {"loss": 3.0}], [2, {"loss": 2.0}], [3, {"loss": 2.5}]]
      >>> study.TrainingMetric("loss", over=study.MeanOfLast(2)).value({"training": steps})
      2.25
    """

    metric: str
    direction: Direction = "lower"
    over: Over = Last()

    @property
    def name(self) -> str:
        """`train/` and the metric."""
        return f"train/{self.metric}"

    @property
    def training(self) -> tuple[str, ...]:
        """The values of training steps that it needs."""
        return (self.metric,)

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the value of a result's training steps.

        Args:
          result: What the trial recorded, with its `training` steps.

        Returns:
          The value; None where nothing was recorded.
        """
        values = [value for _, value in self.series(result)]
        return self.over(values, self.direction) if values else None

    def series(self, result: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Return (step, value) of every training step that has one.

        Args:
          result: What the trial recorded.

        Returns:
          Pairs in the order of the steps.
        """
        steps = result.get("training", ())
        return [(step, float(v[self.metric])) for step, v in steps if self.metric in v]

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return the problems of the metric, given the metrics of the task.

        Args:
          evaluations: Metrics by the name of the evaluation, which are also those of training.

        Returns:
          The problems; none if the metric exists, or nothing is known of it.
        """
        if not evaluations or self.metric.startswith("learning_rate/"):
            return []
        metrics = {metric.name for found in evaluations.values() for metric in found}
        known = [*_TRAINING, *sorted(metrics - set(_TRAINING))]
        if self.metric in known:
            return []
        near = nearest(self.metric, known)
        remedy = "" if near else f"there are {', '.join(known)}"
        what = f"training records no metric named {self.metric!r}"
        return [Problem(what, "metric", remedy=remedy, nearest=near)]


@dataclasses.dataclass(frozen=True)
class StepsTo:
    """Steps, tokens or seconds until a metric reaches a value; infinite where it never does.

    Args:
      metric: The metric: `Measured`, which is looked at where it is evaluated, or
        `TrainingMetric`, at every step.
      target: The value; reached by this one or a better one, in the direction of the metric.
      unit: `steps`, `tokens`, or `seconds` of training, without compilation and evaluations.

    Example:
      >>> from luthier import metrics, study
      >>> loss = study.Measured(metrics.Selector("held_out", "loss"))
      >>> objective = study.StepsTo(loss, 2.0)
      >>> objective.name
      'steps_to(held_out/loss<=2)'
      >>> objective.value({"series": [[5, {"held_out/loss": 3.0}], [10, {"held_out/loss": 1.9}]]})
      10.0
    """

    metric: Measured | TrainingMetric
    target: float
    unit: Literal["steps", "tokens", "seconds"] = "steps"

    @property
    def name(self) -> str:
        """Its name, in tables and messages."""
        relation = "<=" if self.metric.direction == "lower" else ">="
        return f"{self.unit}_to({self.metric.name}{relation}{self.target:.12g})"

    @property
    def direction(self) -> Direction:
        """`lower`: sooner is better."""
        return "lower"

    @property
    def training(self) -> tuple[str, ...]:
        """The values of training steps that it needs."""
        progress = _PROGRESS[self.unit]
        return (*getattr(self.metric, "training", ()), *([progress] if progress else []))

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return when a result's metric reached the target.

        Args:
          result: What the trial recorded, with its `training` steps.

        Returns:
          The steps, tokens or seconds; infinity where it did not; None where the metric was not
          measured.
        """
        series = self.metric.series(result)
        if not series:
            return None
        # Not a better target than the value: equal ones count as reached, NaN does not.
        reached = [
            step
            for step, value in series
            if not math.isnan(value) and not is_better(self.metric, self.target, value)
        ]
        if not reached:
            return math.inf
        if self.unit == "steps":
            return float(reached[0])
        if reached[0] == 0:  # an evaluation before the first step
            return 0.0
        steps = {step: values.get(self.unit) for step, values in result.get("training", ())}
        progress = steps.get(reached[0])
        return None if progress is None else float(progress)

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return the problems of the metric and the target.

        Args:
          evaluations: Metrics by the name of the evaluation; None where unknown.

        Returns:
          The problems, with paths below this objective.
        """
        found = [_below("metric", problem) for problem in self.metric.check(evaluations)]
        if not math.isfinite(self.target):
            found.append(Problem(f"{self.target} is not a finite number", "target"))
        return found


@dataclasses.dataclass(frozen=True)
class Expression:
    """An expression of objectives: `held_out/loss + 0.1 * step_time`.

    Args:
      text: The expression: names of `terms`, numbers, `+ - * / **`, parentheses, and `min`, `max`,
        `abs`, `sqrt`, `exp`, `log`.
      terms: The objectives by the name that `text` has for them; their own directions do not
        matter.
      direction: Direction of optimization, `lower` or `higher`.

    Trials can be pruned and promoted by an expression of metrics of one evaluation set, all of them
    with `Last`. Other terms are known only when a trial has ended.

    Example:
      >>> from luthier import study
      >>> cost = study.Expression("2 * step_time", {"step_time": study.StepTime()})
      >>> cost.value({"facts": {"step_seconds": 0.25}})
      0.5
    """

    text: str
    terms: Mapping[str, Any]
    direction: Direction = "lower"

    @property
    def name(self) -> str:
        """The expression."""
        return self.text

    @property
    def training(self) -> tuple[str, ...]:
        """The values of training steps that its terms need."""
        return tuple(name for term in self.terms.values() for name in _training_of(term))

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the value of the expression.

        Args:
          result: What the trial recorded.

        Returns:
          The value; None where a term has none; NaN where the expression is undefined, as `log(0)`.
        """
        values = {name: term.value(result) for name, term in self.terms.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) == len(values):
            return expressions.evaluate(self.text, known)
        # Of a trial whose worker died before it wrote a result, the driver wrote what was reported
        # of the objective, and not its terms.
        reports = [
            metrics[self.name] for _, metrics in result.get("series", ()) if self.name in metrics
        ]
        return float(reports[-1]) if reports else None

    def check(self, evaluations: Mapping[str, Sequence[Metric]] | None) -> list[Problem]:
        """Return the problems of the expression and of its terms.

        Args:
          evaluations: Metrics by the name of the evaluation; None where unknown.

        Returns:
          The problems, with paths below this objective.
        """
        try:
            names = expressions.references(self.text)
        except expressions.InvalidExpression as error:
            return [Problem(str(error), "text")]
        found = [
            Problem(f"{name} is not among the terms", "text", nearest=nearest(name, self.terms))
            for name in names
            if name not in self.terms
        ]
        found += [
            Problem("is not in the expression", f"terms['{name}']", remedy="leave it out")
            for name in self.terms
            if name not in names
        ]
        for name, term in self.terms.items():
            found += [_below(f"terms['{name}']", problem) for problem in term.check(evaluations)]
        return found


def _below(path: str, problem: Problem) -> Problem:
    return dataclasses.replace(problem, path=f"{path}.{problem.path}".rstrip("."))


def reporting_set(objective: Objective) -> str | None:
    """Return the evaluation set whose reports tell an objective while a trial trains.

    Args:
      objective: The objective.

    Returns:
      The name of the set; None for an objective that is known only at the end of a trial.

    Example:
      >>> from luthier import study
      >>> from luthier.study import objectives
      >>> objectives.reporting_set(study.StepTime()) is None
      True
    """
    if isinstance(objective, Measured):
        return objective.selector.evaluation
    if not isinstance(objective, Expression):
        return None
    # Of several sets, no report has the values of all. Terms other than `Last` would need the
    # series of each, and a report leaves one value, that of the expression.
    terms = list(objective.terms.values())
    sets = {reporting_set(term) for term in terms}
    is_latest = all(isinstance(term, Measured) and term.over == Last() for term in terms)
    return sets.pop() if len(sets) == 1 and is_latest else None


def reported(objective: Objective, metrics: Mapping[str, float]) -> float | None:
    """Return the value of an objective at one evaluation.

    Args:
      objective: The objective.
      metrics: The metrics of the evaluation, by `evaluation/metric`.

    Returns:
      The value; None where the evaluation does not determine it.
    """
    if reporting_set(objective) is None:
        return None
    return objective.value({"series": [(0, metrics)]})


def reduced(objective: Objective, series: Mapping[int, float]) -> float | None:
    """Return the value that an objective would have if the trial ended now.

    Args:
      objective: The objective.
      series: What was `reported`, by step.

    Returns:
      The value; None without a report.
    """
    over: Over = getattr(objective, "over", Last())
    values = [value for _, value in sorted(series.items())]
    return over(values, objective.direction) if values else None


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The values of a result.

    Args:
      values: Values of the objectives; None where one is missing.
      violations: Amounts by which it violates the constraints.
      missing: Names of what the result lacks.
      violated: The violated constraints as text; empty where there are none.
    """

    values: tuple[float, ...] | None
    violations: tuple[float, ...]
    missing: tuple[str, ...]
    violated: str


def judge(
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    result: Mapping[str, Any],
    folder: str | os.PathLike[str],
) -> Judgement:
    """Return the values of a trial's result.

    Args:
      objectives: The study's objectives.
      constraints: The study's constraints.
      result: The trial's result.
      folder: The trial's folder, with the record of its run.
    """
    quantities = [constraint.quantity for constraint in constraints]
    needed = {name for part in (*objectives, *quantities) for name in _training_of(part)}
    if needed:
        # Read here, and only where it is needed: a result with every step of training would be as
        # large as the run's record.
        from luthier.records import object_storage

        run = pathlib.Path(folder, "run")
        if (home := object_storage.home_of(run)) is not None:
            object_storage.refresh(run, home)  # the trial may have run on another machine
        steps = _training_steps(run / "metrics.jsonl", needed)
        result = {**result, "training": steps}
    values = [objective.value(result) for objective in objectives]
    bounded = [quantity.value(result) for quantity in quantities]
    found = [value for value in values if value is not None]
    named = zip([*objectives, *quantities], [*values, *bounded], strict=True)
    missing = tuple(dict.fromkeys(part.name for part, value in named if value is None))
    pairs = [(c, v) for c, v in zip(constraints, bounded, strict=True) if v is not None]
    violations = tuple(constraint.violation(value) for constraint, value in pairs)
    violated = [
        f"violates {constraint.name}: {value:.6g}"
        for (constraint, value), amount in zip(pairs, violations, strict=True)
        if amount > 0
    ]
    return Judgement(
        tuple(found) if len(found) == len(values) else None,
        violations,
        missing,
        "; ".join(violated),
    )


def _training_of(objective: Any) -> Sequence[str]:
    """Return the values of training steps that an objective needs; a class of the user has none."""
    return getattr(objective, "training", ())


def _training_steps(path: pathlib.Path, names: set[str]) -> list[tuple[int, dict[str, float]]]:
    from luthier.records.events import Step
    from luthier.records.metrics_file import read_events

    return [
        (step, {name: event.values[name] for name in names if name in event.values})
        for _, step, event in read_events(path)
        if isinstance(event, Step)
    ]


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
