"""Effects as text: numbers of both sides, curves in a line, and what follows for a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from luthier.view.diff.terminal import factor_of

_MOST = 8
"""Most rows of one group; the others are counted."""
_BARS = "▁▂▃▄▅▆▇█"
_NO_NUMBER = "×"
_WIDTH = 32
_TOTALS = ("parameters", "in all", "model FLOPs per step", "tokens per step")


def consequences(effects: Mapping[str, Any], unicode: bool = True) -> RenderableType:
    """Return what follows from a difference.

    Args:
      effects: The JSON of `luthier.view.effects.effects`.
      unicode: Whether curves may be drawn.
    """
    lines = [Text("effects", style="bold")]
    for group in dict.fromkeys(quantity["group"] for quantity in effects["quantities"]):
        lines += _group(group, [q for q in effects["quantities"] if q["group"] == group])
    for chart in effects["charts"]:
        lines += _chart(chart, unicode)
    for verdict in effects["verdicts"]:
        lines += _verdict(verdict)
    return Group(*lines)


def _group(name: str, quantities: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return the totals of a group, and whatever of it differs."""
    shown = [q for q in quantities if q["before"] != q["after"] or q["name"] in _TOTALS]
    if not shown:
        return []
    notes = dict.fromkeys(q["note"] for q in shown if q["note"])
    heading = Text(f"  {name}", style="bold")
    heading.append(f"  ({', '.join(notes)})" if notes else "", style="dim")
    width = max(len(q["name"]) for q in shown[:_MOST])
    lines = [heading, *(_quantity(quantity, width) for quantity in shown[:_MOST])]
    if len(shown) > _MOST:
        lines.append(Text(f"    and {len(shown) - _MOST} more", style="dim"))
    return lines


def _quantity(quantity: Mapping[str, Any], width: int) -> Text:
    before, after = quantity["before"], quantity["after"]
    line = Text(f"    {quantity['name']:<{width}}  ")
    if before == after:
        return line.append(f"{formatted(after, quantity['unit'])}  (the same)", style="dim")
    numbers = [value for value in (before, after) if isinstance(value, int | float)]
    factor = ""
    if len(numbers) == 2:
        factor = factor_of(numbers[1] / numbers[0] if numbers[0] else None, None)
    line.append(" -> ".join(formatted(value, quantity["unit"]) for value in (before, after)))
    return line.append(f" ({factor})" if factor else "", style="yellow")


def formatted(value: Any, unit: str) -> str:
    """Return a quantity for reading.

    Args:
      value: A number, a text or None.
      unit: `bytes`, `FLOPs` or empty.
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return _bytes(value)
    if unit:
        return f"{value:.4g} {unit}"
    return f"{value:,}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"


def _chart(chart: Mapping[str, Any], unicode: bool) -> list[Text]:
    """Return a curve of both sides, one line each; none where they are the same."""
    series = [found for found in chart["series"] if found["points"]]
    if len(series) == 2 and series[0]["points"] == series[1]["points"]:
        return []
    values = [[y for _, y in found["points"]] for found in series]
    finite = [y for ys in values for y in ys if math.isfinite(y)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    last = max(found["points"][-1][0] for found in series)
    lines = [Text(f"  {chart['title']}", style="bold")]
    for found, ys in zip(series, values, strict=True):
        mark, style = (("-", "red"), ("+", "green"))[found["side"]]
        drawn = f"{_drawn(found['points'], last, low, high)}  " if unicode else ""
        highest = max((y for y in ys if math.isfinite(y)), default=math.nan)
        text = f"    {mark} {drawn}from {ys[0]:.4g} to {ys[-1]:.4g}, highest {highest:.4g}"
        lines.append(Text(text, style=style))
    return lines


def _drawn(points: Sequence[Sequence[float]], last: float, low: float, high: float) -> str:
    """Return a curve in blocks, on the axes of both sides."""
    columns: list[list[float]] = [[] for _ in range(_WIDTH)]
    for x, y in points:
        columns[min(_WIDTH - 1, int(x / max(last, 1) * _WIDTH))].append(y)
    end = max(index for index, column in enumerate(columns) if column)
    return "".join(_blocks(columns[: end + 1], low, high)).ljust(_WIDTH)


def _blocks(columns: Sequence[Sequence[float]], low: float, high: float) -> Iterable[str]:
    level = 0
    for column in columns:
        numbers = [y for y in column if math.isfinite(y)]
        if numbers:
            share = _share(sum(numbers) / len(numbers), low, high)
            level = min(len(_BARS) - 1, int(share * len(_BARS)))
        yield _NO_NUMBER if column and not numbers else _BARS[level]


def _share(y: float, low: float, high: float) -> float:
    """Return how far up a value is; 0 where the distance cannot be told."""
    if not 0 < high - low < math.inf or not math.isfinite(y):
        return 0.0
    return (y - low) / (high - low)


def _verdict(verdict: Mapping[str, Any]) -> list[Text]:
    style = "green" if verdict["severity"] == "ok" else "yellow"
    first, *reasons = verdict["text"].splitlines()
    line = Text(f"  {verdict['name']}  ", style="bold")
    return [line.append(first, style=style), *(Text(f"    {reason}") for reason in reasons)]
