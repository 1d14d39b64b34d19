"""Curves over the steps of a run: the schedules of its optimizer, and what it recorded."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from luthier.records.events import PERFORMANCE, Evaluation, Step
from luthier.records.metrics_file import read_events

NUM_POINTS = 200
"""Most points of a schedule; of what was recorded twice as many."""

_NOT_SHOWN = frozenset({*PERFORMANCE, "tokens", "epochs", "learning_rate"})


def learning_rates(optimizer: Any, steps: int) -> dict[str, list[tuple[int, float]]]:
    """Return the schedules of an optimizer, sampled over a run.

    Args:
      optimizer: An `Optimizer`.
      steps: Optimizer steps of the run.

    Returns:
      Points (step, value), float, by the schedule's name: `learning rate`, and the names of the
      parts that follow another one. Both ends are in it, and every step of a short run.
    """
    named = {"learning rate": optimizer.learning_rate, **optimizer.learning_rates}
    last = max(steps - 1, 0)
    at = np.unique(np.linspace(0, last, min(NUM_POINTS, last + 1)).round().astype(np.int32))
    found = {}
    for name, schedule in named.items():
        values = np.broadcast_to(np.asarray(schedule(jnp.asarray(at)), np.float64), at.shape)
        found[name] = [(int(step), float(value)) for step, value in zip(at, values, strict=True)]
    return found


def metrics(
    path: str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> dict[str, list[tuple[int, float]]]:
    """Return what a run recorded, by the names of metrics.

    Args:
      path: Its metrics.jsonl; a missing file has no curves.
      report: Is given one line about damaged lines, which are left out; None warns.

    Returns:
      Points (step, value) of the training steps' values (`loss`) and of each evaluation
      (`held_out/loss`), without what is about speed; NaN and infinities are left out.

    Raises:
      RunError: The file cannot be read.
      VersionError: It was written by a later luthier.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for _, step, event in read_events(path, report):
        if isinstance(event, Step):
            values = {n: v for n, v in event.values.items() if n not in _NOT_SHOWN}
        elif isinstance(event, Evaluation):
            values = {f"{event.name}/{name}": value for name, value in event.values.items()}
        else:
            continue
        for name, value in values.items():
            if math.isfinite(value):
                found.setdefault(name, []).append((step, float(value)))
    return {name: _thinned(points) for name, points in found.items()}


def overlaid(
    curves: Sequence[Mapping[str, Sequence[tuple[float, float]]]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the curves of two sides under one name each, as series of charts.

    Args:
      curves: Of each side, points by name.

    Returns:
      For every name that a side has, `{"side", "name", "points"}` of the sides that have it.
    """
    names = dict.fromkeys(name for side in curves for name in side)
    return {
        name: [
            {"side": side, "name": name, "points": [list(point) for point in found[name]]}
            for side, found in enumerate(curves)
            if name in found
        ]
        for name in names
    }


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return as many points as a chart can show: of each stretch the mean, at its last step."""
    most = 2 * NUM_POINTS
    if len(points) <= most:
        return points
    edges = np.linspace(0, len(points), most + 1).round().astype(int)
    stretches = [points[start:end] for start, end in itertools.pairwise(edges)]
    return [
        (stretch[-1][0], sum(value for _, value in stretch) / len(stretch)) for stretch in stretches
    ]
