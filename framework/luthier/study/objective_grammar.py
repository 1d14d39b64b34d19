"""Objectives and constraints on the command line: `held_out/loss + 0.1 * step_time`.

    EVALUATION/METRIC[:best|:mean3]      train/METRIC[:best|:mean100]
    step_time   device_hours   peak_bytes   parameters
    steps_to(METRIC<=VALUE)   tokens_to(METRIC<=VALUE)   seconds_to(METRIC>=VALUE)
    an expression of these, also as minimize(EXPRESSION) or maximize(EXPRESSION)

A constraint is one of these with a bound: `peak_bytes<=8GiB`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from luthier.errors import BadInput, Problem
from luthier.metrics import Selector
from luthier.study import expressions, objectives
from luthier.study.space import Constraint

_OVER: Mapping[str, Any] = {"last": objectives.Last, "best": objectives.Best}
FACTS: Mapping[str, Any] = {
    "step_time": objectives.StepTime,
    "device_hours": objectives.DeviceHours,
    "peak_bytes": objectives.PeakBytes,
    "parameters": objectives.Parameters,
}
_TRAIN = "train"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z]*)", re.IGNORECASE)
_REACHED = re.compile(r"(steps|tokens|seconds)_to\s*\((.*)\)", re.DOTALL)
_DIRECTED = re.compile(r"(minimize|maximize)\s*\((.*)\)", re.DOTALL)
_REMEDY = (
    f"write EVALUATION/METRIC or train/METRIC, :best or :mean3 behind it, {', '.join(FACTS)}, "
    "steps_to(EVALUATION/METRIC<=VALUE), or an expression of them"
)

# `objectives=held_out/loss`; a list of nodes has quotes in it, or names without a slash.
_OVERRIDE = re.compile(r"objectives\s*:?=\s*(?!run:)([^'\"]+)", re.DOTALL)

Evaluations = Mapping[str, Sequence[Any]] | None


def objective(word: str, evaluations: Evaluations) -> fdl.Config:
    """Return the node of an objective.

    Args:
      word: `held_out/loss`, `held_out/loss:best`, `held_out/loss:mean3`; `train/loss:mean100`, of
        the last 100 training steps; `step_time`, `device_hours`, `peak_bytes`, `parameters`;
        `steps_to(held_out/loss<=2.0)`, also `tokens_to` and `seconds_to`; or an expression of
        these, which is minimized unless it is written `maximize(...)`.
      evaluations: The metrics of every evaluation set, which know what is better.

    Returns:
      An `fdl.Config` of the objective.

    Raises:
      BadInput: It cannot be read.

    Example:
      >>> from luthier import graph, study
      >>> print(graph.render(study.objective("held_out/loss:best", None)))
      luthier.study.Measured
        selector: luthier.metrics.Selector
          evaluation = 'held_out'
          metric = 'loss'
          direction = 'lower'
        over: luthier.study.Best
    """
    try:
        return _objective(word.strip(), evaluations)
    except expressions.InvalidExpression as error:
        what = f"{word!r} is not an objective: {error}"
        raise BadInput(Problem(what, "--objective", remedy=_REMEDY)) from None


def _objective(word: str, evaluations: Evaluations) -> fdl.Config:
    directed = _DIRECTED.fullmatch(word)
    text = directed[2].strip() if directed else word
    if directed is None and (reached := _REACHED.fullmatch(text)):
        return _reached(reached[1], reached[2], evaluations)
    if directed is None and expressions.is_reference(text):
        return _term(text, evaluations)
    names = expressions.references(text)
    if not names:
        raise expressions.InvalidExpression("it has no metric")
    terms = {name: _term(name, evaluations) for name in names}
    if directed is None:
        # The sum of a loss and of a time is better lower; with an accuracy in it, nobody knows.
        for name, term in terms.items():
            if _direction(term) == "higher":
                what = f"{name} is better higher, so that the better direction is not known"
                remedy = f"write maximize({text}) or minimize({text})"
                raise BadInput(Problem(what, "--objective", word, remedy))
    direction = "higher" if directed and directed[1] == "maximize" else "lower"
    return fdl.Config(objectives.Expression, text, terms, direction)


def objective_of(override: str) -> str | None:
    """Return the objective that an override sets as text, and not as nodes.

    Args:
      override: `objectives=held_out/loss`.

    Returns:
      The text, for `objective`; None for any other override.

    Example:
      >>> from luthier.study import objective_grammar
      >>> objective_grammar.objective_of("objectives=held_out/loss:best")
      'held_out/loss:best'
    """
    match = _OVERRIDE.fullmatch(override)
    return match[1] if match is not None and expressions.has_reference(match[1]) else None


def sets_objectives(override: str) -> bool:
    """Return whether an override changes the objectives of a study, or a part of one.

    Args:
      override: An override, such as `objectives[0].over=luthier.study.Best()`.
    """
    return re.match(r"(?:reset:)?objectives\b", override) is not None


def _direction(term: fdl.Config) -> str:
    selector = getattr(term, "selector", term)
    return str(selector.direction)


def _term(text: str, evaluations: Evaluations) -> fdl.Config:
    """Return the node of a metric or of a fact."""
    # Facts have names without a slash, so they cannot be confused with `EVALUATION/METRIC`.
    if text in FACTS:
        return fdl.Config(FACTS[text])
    name, _, reduction = text.partition(":")
    evaluation, _, metric = name.partition("/")
    mean = re.fullmatch(r"mean0*([1-9][0-9]*)", reduction)
    if not (mean or reduction in ("", *_OVER)):
        raise expressions.InvalidExpression(
            f":{reduction} is not :last, :best or :mean and a number"
        )
    if mean:
        over = fdl.Config(objectives.MeanOfLast, int(mean[1]))
    else:
        over = fdl.Config(_OVER[reduction or "last"])
    # An evaluation set of that name comes first: training has no name of its own in the config.
    if evaluation == _TRAIN and _TRAIN not in (evaluations or {}):
        every = [m for found in (evaluations or {}).values() for m in found]
        direction = next((m.better for m in every if m.name == metric), "lower")
        return fdl.Config(objectives.TrainingMetric, metric, direction, over)
    # Whether lower or higher is better belongs to the metric. One that the experiment does not have
    # counts as lower here; the study's checks report it by name.
    known = {found.name: found.better for found in (evaluations or {}).get(evaluation, ())}
    selector = fdl.Config(Selector, evaluation, metric, known.get(metric, "lower"))
    return fdl.Config(objectives.Measured, selector, over)


def _reached(unit: str, text: str, evaluations: Evaluations) -> fdl.Config:
    """Return the node of `steps_to(METRIC<=VALUE)`."""
    metric, relation, target = _bounded(text)
    if not expressions.is_reference(metric) or metric in FACTS or ":" in metric:
        what = f"{unit}_to takes EVALUATION/METRIC or train/METRIC, not {metric!r}"
        raise expressions.InvalidExpression(what)
    term = _term(metric, evaluations)
    wanted = "<=" if _direction(term) == "lower" else ">="
    if relation != wanted:
        if evaluations is not None:
            better = _direction(term)
            what = f"{metric} is better {better}"
            remedy = f"write {unit}_to({metric}{wanted}{target:.12g})"
            raise BadInput(Problem(what, "--objective", f"{unit}_to({text})", remedy))
        getattr(term, "selector", term).direction = "higher" if relation == ">=" else "lower"
    return fdl.Config(objectives.StepsTo, term, target, unit)


def constraint(word: str, evaluations: Evaluations) -> fdl.Config:
    """Return the node of a constraint.

    Args:
      word: An objective, `<=` or `>=`, and a number, perhaps with a unit: `peak_bytes<=8GiB`,
        `held_out/accuracy>=0.9`, `parameters<=50M`.
      evaluations: The metrics of every evaluation set.

    Returns:
      An `fdl.Config` of the constraint.

    Raises:
      BadInput: It cannot be read.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import study
      >>> fdl.build(study.constraint("peak_bytes<=8GiB", None)).bound
      8589934592.0
    """
    try:
        text, relation, bound = _bounded(word)
        if expressions.is_reference(text):
            quantity = _term(text, evaluations)
        else:
            # Whichever direction: a bound does not ask what is better.
            quantity = _objective(f"minimize({text})", evaluations)
    except expressions.InvalidExpression as error:
        remedy = "write 'peak_bytes<=8GiB' or 'EVALUATION/METRIC>=0.9'"
        what = f"{word!r} is not a constraint: {error}"
        raise BadInput(Problem(what, "--constraint", remedy=remedy)) from None
    return fdl.Config(Constraint, quantity, bound, relation)


def _bounded(text: str) -> tuple[str, str, float]:
    """Split `METRIC<=VALUE` into the metric, the relation and the number."""
    parts = re.split(r"(<=|>=)", text)
    if len(parts) != 3:
        raise expressions.InvalidExpression("it needs one <= or >=")
    number = _NUMBER.fullmatch(parts[2].strip())
    if number is None or number[2].lower() not in _UNITS:
        raise expressions.InvalidExpression(
            f"{parts[2].strip()!r} is not a number, as 2.5, 50M or 8GiB"
        )
    return parts[0].strip(), parts[1], float(number[1]) * _UNITS[number[2].lower()]


def default_objective(
    evaluations: Evaluations, keep_best: Selector | None = None
) -> list[fdl.Config]:
    """Return the metric that selects checkpoints, or the first one of the only evaluation set.

    Args:
      evaluations: The metrics of every evaluation set.
      keep_best: The metric that selects the best checkpoint; None where none does.

    Returns:
      A list with one node; an empty one without `keep_best` where there are no evaluation sets,
      or several.

    Example:
      >>> from luthier import study
      >>> study.default_objective(None)
      []
    """
    if keep_best is not None:
        selector = fdl.Config(Selector, **dataclasses.asdict(keep_best))
        return [fdl.Config(objectives.Measured, selector)]
    if evaluations is None or len(evaluations) != 1:
        return []
    ((name, metrics),) = evaluations.items()
    return [objective(f"{name}/{metrics[0].name}", evaluations)] if metrics else []
