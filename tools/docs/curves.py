"""The picture of the benchmark of schedulers: a panel of curves for each study."""

from __future__ import annotations

import html
import itertools
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

Curve = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 300, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 34, 40
LEGEND = 28
# Distinguishable with the usual colour deficiencies; lines differ in their dashes, too.
STYLES = (("#0072b2", ""), ("#d55e00", "7 3"), ("#009e73", "2 3"), ("#cc79a7", "9 3 2 3"))
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.grid { stroke: #d0d7de; } .line { fill: none; stroke-width: 2; }
.back { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .grid { stroke: #3d444d; } .back { fill: #0d1117; }
}"""


def median_curve(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Return the median over seeds of the best loss, at each time at which one of them changes.

    Args:
      curves: (device seconds, best loss) at each improvement, of each seed.

    Returns:
      The points from the time on at which most seeds have a complete trial.
    """
    found: list[tuple[float, float]] = []
    for time in sorted({point[0] for curve in curves for point in curve}):
        best = [
            next((loss for at, loss in reversed(curve) if at <= time), float("inf"))
            for curve in curves
        ]
        middle = statistics.median(best)
        if middle != float("inf") and (not found or middle < found[-1][1]):
            found.append((time, middle))
    return found


def picture(path: pathlib.Path) -> str:
    """Return the picture as SVG.

    Args:
      path: What `tools/bench/schedulers.py --json` wrote.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    studies = content["settings"]["studies"]
    end = float(content["settings"]["seconds"])
    by_study: dict[str, dict[str, list[Curve]]] = {study: {} for study in studies}
    for entry in content["curves"]:
        by_study[entry["study"]].setdefault(entry["way"], []).append(entry["curve"])
    ways = list(dict.fromkeys(entry["way"] for entry in content["curves"]))
    styles = dict(zip(ways, STYLES, strict=False))
    width, height = WIDTH * len(studies), HEIGHT + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
    ]
    for number, (study, found) in enumerate(by_study.items()):
        medians = {way: median_curve(curves) for way, curves in found.items()}
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += _panel(study, medians, styles, end)
        parts.append("</g>")
    for number, (way, (color, dashes)) in enumerate(styles.items()):
        x = LEFT + number * 170
        parts.append(
            f'<path class="line" stroke="{color}" stroke-dasharray="{dashes}" '
            f'd="M{x} {HEIGHT + 8}h28"/><text x="{x + 34}" y="{HEIGHT + 12}">'
            f"{html.escape(way)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    study: str,
    medians: Mapping[str, Curve],
    styles: Mapping[str, tuple[str, str]],
    end: float,
) -> list[str]:
    losses = [loss for curve in medians.values() for _, loss in curve]
    # A first trial that diverged would leave no room for the others.
    low, high = min(losses), sorted(losses)[int(0.9 * (len(losses) - 1))]
    high = low + 1.1 * max(high - low, 1e-6)

    def x_of(time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(time / end, 1.0)

    def y_of(loss: float) -> float:
        part = (min(loss, high) - low) / (high - low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - part)

    bottom = HEIGHT - BOTTOM
    parts = [f'<text x="{LEFT}" y="20" font-weight="600">{html.escape(study)}</text>']
    for part in (0.0, 0.5, 1.0):
        x, y = x_of(part * end), y_of(low + part * (high - low))
        parts += [
            f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{low + part * (high - low):.3g}</text>",
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{part * end:g} s</text>',
        ]
    for way, curve in medians.items():
        color, dashes = styles[way]
        if not curve:
            continue
        steps = [f"M{x_of(curve[0][0]):.1f} {y_of(curve[0][1]):.1f}"]
        for (_, _), (time, loss) in itertools.pairwise(curve):
            steps.append(f"H{x_of(time):.1f}V{y_of(loss):.1f}")
        steps.append(f"H{x_of(end):.1f}")
        line = f'<path class="line" stroke="{color}" stroke-dasharray="{dashes}"'
        parts.append(f'{line} d="{"".join(steps)}"/>')
    return parts
