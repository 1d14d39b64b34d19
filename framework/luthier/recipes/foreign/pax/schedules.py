"""Conversion of the learning rates of Praxis: a rate times a schedule there, one schedule here."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from luthier import optim
from luthier.recipes import published
from luthier.recipes.foreign.pax.nodes import Node, is_number
from luthier.recipes.foreign.pax.parts import number

_RAMPUPS = ("LinearRampupExponentialDecay", "LinearRampupCosineDecay")


def learning_rate(optimizer: Node) -> Any:
    """Return the learning rate of an optimizer: a number, or a schedule.

    Args:
      optimizer: The optimizer, with `learning_rate` and `lr_schedule`.
    """
    rate, schedule = number(optimizer, "learning_rate"), optimizer.get("lr_schedule")
    if schedule is None:
        return rate
    if isinstance(schedule, Node):
        found = _schedule(schedule, rate)
        if found is not None:
            return found
    optimizer.leave("lr_schedule", "the rate is constant here; set optimizer.learning_rate")
    return rate


def _schedule(node: Node, rate: float) -> Any:
    # The rate is multiplied into all values of the schedule. None for a schedule without
    # equivalent.
    if node.kind == "Constant":
        return rate * number(node, "value")
    if node.kind in (*_RAMPUPS, "LinearRampupPolynomialDecay"):
        return _rampup(node, rate)
    if node.kind == "LinearRampupSqrtDecay":
        peak, warmup = rate * number(node, "peak"), number(node, "warmup_steps")
        return fdl.Config(optim.InverseSquareRoot, peak=peak, warmup_steps=warmup)
    if node.kind == "Cosine":
        steps = number(node, "total_steps")
        first, last = (rate * number(node, f"{end}_value") for end in ("initial", "final"))
        return fdl.Config(
            optim.WarmupCosine, peak=first, warmup_steps=0, total_steps=steps, end=last
        )
    if node.kind == "PiecewiseConstant":
        boundaries, values = node.get("boundaries"), node.get("values")
        if isinstance(boundaries, list) and isinstance(values, list):
            scaled = [rate * value for value in values]
            return fdl.Config(optim.Piecewise, values=scaled, boundaries=boundaries)
    if node.kind in ("Linear", "Exponential"):
        return _between(node, rate)
    return None


def _rampup(node: Node, rate: float) -> Any:
    # The three differ in their fall only. One that starts to fall at step 0 has no rise.
    names = ("warmup_steps", "decay_start", "decay_end", "min_ratio", "max")
    warmup, start, end, ratio, highest = (number(node, name) for name in names)
    peak = rate * highest
    if node.kind == "LinearRampupPolynomialDecay":
        node.only("power", 1)
        made = published.rampup_cosine(peak, warmup, start, end, ratio)
        fall = fdl.Config(
            optim.WarmupLinear,
            peak=peak,
            warmup_steps=0,
            total_steps=end - start,
            end=peak * ratio,
        )
        made.schedules = [made.schedules[0], fall]
    elif node.kind == "LinearRampupCosineDecay":
        made = published.rampup_cosine(peak, warmup, start, end, ratio)
    else:
        made = published.rampup_exponential(peak, warmup, start, end, ratio)
    return made if start > 0 else made.schedules[1]


def _between(node: Node, rate: float) -> Any:
    """Return a schedule between two points (step, value), of which the first must be at step 0."""
    # Praxis' `Linear` and `Exponential` are straight lines between two points, of the value or of
    # its logarithm. Ours start at step 0; others, and exponentials through zero, have no
    # equivalent.
    ends = [node.get("start"), node.get("limit")]
    for end in ends:
        if not isinstance(end, list) or len(end) != 2 or not all(map(is_number, end)):
            return None
    (first, high), (last, low) = ends
    if first != 0 or last <= 0:
        return None
    # Praxis' `Linear` is its polynomial at the power 1, for which both origins give the same line.
    if node.kind == "Linear":
        node.pass_over("power", "origin")
        return fdl.Config(
            optim.WarmupLinear,
            peak=rate * high,
            warmup_steps=0,
            total_steps=last,
            end=rate * low,
        )
    if high <= 0 or low <= 0:
        return None
    return fdl.Config(
        optim.Exponential, initial=rate * high, rate=low / high, decay_steps=last, end=rate * low
    )
