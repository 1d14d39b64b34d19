"""Curves of runs as text: axes, and a line for each run in dots of Braille, or in signs.

A library for this (plotext) keeps its figure in the process, and its colors tell several curves
apart only where there are colors; this is all that `luthier runs --plot` needs.
"""

from __future__ import annotations

import collections
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.facade import root_function
from luthier.records import Run, RunDirectory, UnknownMetric, direction_of, summarize
from luthier.terminal import cell

COLORS = ("36", "33", "35", "32", "34", "31")
"""SGR codes of the curves, in order, and again from the first."""
SIGNS = "*+ox#@"
"""Signs of the curves, where colors cannot tell them apart."""

# Dots of a Braille character, by row and column: it has four rows of two.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_NUM_TICKS = 5

Curve = tuple[np.ndarray, np.ndarray]
"""Steps and values, of one length."""


@root_function("plot")
def plot(runs: Any, metric: str = "loss", *, width: int = 80) -> str:
    """Return the curves of a metric of runs as a text, to be printed.

        print(luthier.plot(luthier.runs(last=2), "held_out/loss"))

    Args:
      runs: One or more runs: what `luthier.runs` lists, and results of `luthier.train`.
      metric: `loss` for one of the training steps, `held_out/loss` for one of an evaluation.
      width: Columns of the plot.

    Returns:
      Lines of text without colour, `width` columns wide.

    Raises:
      UnknownMetric: None of the runs has such a metric.
      RunError: A record cannot be read.
    """
    # A `Result` belongs to the trainer, which is above: of it, only the folder is needed.
    several = runs if isinstance(runs, Sequence) else [runs]
    chosen = [
        run if isinstance(run, Run) else summarize(RunDirectory(run.directory)) for run in several
    ]
    curves = curves_of(chosen, metric)
    better = direction_of(metric, chosen)
    return "\n".join(lines_of(curves, metric, width=width, notes=notes_of(chosen), better=better))


def _labels(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by `NAME/ID`, in their order; by their folders where two have the same."""
    by_path = {run.directory.path.resolve(): run for run in runs}
    counts = collections.Counter(f"{run.name}/{run.id}" for run in by_path.values())
    labels = {}
    for path, run in by_path.items():
        name = f"{run.name}/{run.id}"
        labels[name if counts[name] == 1 else str(path)] = run
    return labels


def curves_of(
    runs: Sequence[Run], metric: str, report: Callable[[str], None] | None = None
) -> dict[str, Curve]:
    """Return the curves of a metric by run, in the order of the runs.

    Args:
      runs: The runs; one that is listed twice has one curve.
      metric: As for `plot`.
      report: Takes a line about each damaged record; None raises.

    Returns:
      Curves by `NAME/ID`; an empty one for a run without the metric.

    Raises:
      UnknownMetric: None of the runs has the metric.
      RunError: A record cannot be read.
    """
    curves: dict[str, Curve] = {}
    missing: UnknownMetric | None = None
    for label, run in _labels(runs).items():
        try:
            curves[label] = run.curve(metric, report)
        except UnknownMetric as error:
            missing = missing or error
            curves[label] = (np.zeros(0, np.int64), np.zeros(0))
    if missing is not None and not any(len(steps) for steps, _ in curves.values()):
        raise missing
    return curves


def notes_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the overrides in which runs differ, by `NAME/ID`: those that not all of them have.

    Args:
      runs: The runs.
    """
    overrides = {label: run.overrides for label, run in _labels(runs).items()}
    shared = set.intersection(*map(set, overrides.values())) if overrides else set()
    return {
        label: " ".join(shlex.quote(one) for one in own if one not in shared)
        for label, own in overrides.items()
    }


def lines_of(
    curves: Mapping[str, Curve],
    title: str,
    *,
    width: int,
    height: int = 16,
    has_colors: bool = False,
    has_braille: bool = True,
    notes: Mapping[str, str] | None = None,
    better: str = "lower",
) -> list[str]:
    """Return the lines of a plot: a title, the axes with the curves, and a legend.

    Args:
      curves: The curves by label. Values that are not finite are left out.
      title: The name of the values.
      width: Columns of the whole plot.
      height: Rows between the axes.
      has_colors: Whether the output takes SGR colors. Without them, several curves are drawn with
        a sign each.
      has_braille: Whether the output can show Braille.
      notes: A line below the legend's one of a curve, by label; cut to the width.
      better: Whether the legend has the `lower` or the `higher` of the extreme values.
    """
    notes = notes or {}
    finite = {label: _finite(curve) for label, curve in curves.items()}
    drawn = {label: curve for label, curve in finite.items() if len(curve[0])}
    if not drawn:
        legend = [f"  {_legend(label, curve, better)}" for label, curve in finite.items()]
        return [cell(title), *legend]
    x_range, y_range = (
        _extent([steps for steps, _ in drawn.values()]),
        _extent([values for _, values in drawn.values()]),
    )
    if y_range[0] == y_range[1]:  # a flat line is drawn in the middle
        margin = abs(y_range[0]) / 10 or 1.0
        y_range = y_range[0] - margin, y_range[1] + margin
    shares = [i / (_NUM_TICKS - 1) for i in range(_NUM_TICKS)]
    ticks = {
        round(share * (height - 1)): _number(y_range[1] - share * (y_range[1] - y_range[0]))
        for share in shares
    }
    indent = max(map(len, ticks.values()))
    columns = max(10, width - indent - 3)
    in_braille = has_braille and (has_colors or len(drawn) == 1)
    wide, tall = (2, 4) if in_braille else (1, 1)
    rows = [[" "] * columns for _ in range(height)]
    dots = np.zeros((height, columns), np.int64)
    marks = {}
    for index, (label, curve) in enumerate(drawn.items()):
        sign, color = SIGNS[index % len(SIGNS)], COLORS[index % len(COLORS)]
        for x, y in _dots(curve, x_range, y_range, columns * wide, height * tall):
            row, column = y // tall, x // wide
            if in_braille:
                dots[row, column] |= _DOTS[y % 4][x % 2]
                sign = chr(0x2800 + int(dots[row, column]))
            rows[row][column] = f"\x1b[{color}m{sign}\x1b[0m" if has_colors else sign
        mark = "━━" if in_braille else sign * 2
        marks[label] = f"\x1b[{color}m{mark}\x1b[0m" if has_colors else mark
    corner, across, along, tick = "└─│┤" if has_braille else "+-||"
    lines = [cell(title)]
    for number, cells in enumerate(rows):
        axis = tick if number in ticks else along
        lines.append(f"{ticks.get(number, ''):>{indent}} {axis}{''.join(cells).rstrip()}")
    lines.append(f"{'':{indent}} {corner}{across * columns}")
    first, last = f"{x_range[0]:,.0f}", f"step {x_range[1]:,.0f}"
    lines.append(f"{'':{indent}}  {first}{last:>{max(1, columns - len(first))}}")
    for label, curve in finite.items():
        lines.append(f"  {marks.get(label, '  ')} {_legend(label, curve, better)}")
        if note := cell(notes.get(label, "")):
            room = max(20, width - 5)
            lines.append(f"     {note if len(note) <= room else f'{note[: room - 3]}...'}")
    return lines


def _finite(curve: Curve) -> Curve:
    there = np.isfinite(curve[1])
    return curve[0][there], curve[1][there]


def _extent(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    return min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)


def _legend(label: str, curve: Curve, better: str) -> str:
    steps, values = curve
    if not len(steps):
        return f"{cell(label)}: nothing recorded"
    best = int(np.argmax(values) if better == "higher" else np.argmin(values))
    extreme = "highest" if better == "higher" else "lowest"
    extent = f"{extreme} {_number(values[best])} at step {steps[best]:,}"
    return f"{cell(label)}: {_number(values[-1])} at step {steps[-1]:,}, {extent}"


def _dots(
    curve: Curve,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    columns: int,
    rows: int,
) -> list[tuple[int, int]]:
    """Return the dots of a curve, (column, row) from the upper left corner, without gaps."""
    steps, values = curve
    spread = x_range[1] - x_range[0]
    places = (steps - x_range[0]) / spread * (columns - 1) if spread else np.zeros(len(steps))
    heights = (y_range[1] - values) / (y_range[1] - y_range[0]) * (rows - 1)
    found = set()
    before = None
    for column in range(math.floor(places[0]), math.ceil(places[-1]) + 1):
        # All values within a column, so that a spike of a single step is drawn in a run of a
        # million; the curve itself; and the way from the column before.
        here = float(np.interp(column, places, heights))
        inside = heights[(places >= column - 0.5) & (places < column + 0.5)]
        reach = [here, *([inside.min(), inside.max()] if len(inside) else [])]
        reach += [] if before is None else [before]
        before = here
        found |= {(column, row) for row in range(round(min(reach)), round(max(reach)) + 1)}
    return sorted(found)


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
