"""Comparisons and their effects as text for the terminal."""

from __future__ import annotations

import collections
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from luthier.graph.paths import join, parse_path
from luthier.terminal import Printable, cell

_MOST = 8
"""The largest number of rows of a group; the others are counted."""
_BARS = "▁▂▃▄▅▆▇█"
_NO_NUMBER = "×"
_WIDTH = 32
_TOTALS = ("parameters", "in all", "model FLOPs per step", "tokens per step")


def consequences(effects: Mapping[str, Any], unicode: bool = True) -> RenderableType:
    """Return the effects of a difference: quantities, curves and verdicts.

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
    """Return the totals of a group, and its quantities that differ."""
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
    # Two sides are compared: one digit after the point, as elsewhere, would hide what differs.
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
    """Return a curve in block characters, on the axes of both sides."""
    # Both curves have one scale in height and width, so that they can be compared by eye; a shorter
    # run is padded.
    columns: list[list[float]] = [[] for _ in range(_WIDTH)]
    for x, y in points:
        columns[min(_WIDTH - 1, int(x / max(last, 1) * _WIDTH))].append(y)
    end = max(index for index, column in enumerate(columns) if column)
    return "".join(_blocks(columns[: end + 1], low, high)).ljust(_WIDTH)


def _blocks(columns: Sequence[Sequence[float]], low: float, high: float) -> Iterable[str]:
    # A column without points repeats the level before it; one of NaN and infinities only is marked.
    level = 0
    for column in columns:
        numbers = [y for y in column if math.isfinite(y)]
        if numbers:
            share = _share(sum(numbers) / len(numbers), low, high)
            level = min(len(_BARS) - 1, int(share * len(_BARS)))
        yield _NO_NUMBER if column and not numbers else _BARS[level]


def _share(y: float, low: float, high: float) -> float:
    """Return the position of a value between `low` and `high`; 0 where that has no meaning."""
    if not 0 < high - low < math.inf or not math.isfinite(y):
        return 0.0
    return (y - low) / (high - low)


def _verdict(verdict: Mapping[str, Any]) -> list[Text]:
    style = "green" if verdict["severity"] == "ok" else "yellow"
    first, *reasons = verdict["text"].splitlines()
    line = Text(f"  {verdict['name']}  ", style="bold")
    return [line.append(first, style=style), *(Text(f"    {reason}") for reason in reasons)]


# Filters of the changes that are shown.

Only = Literal["changed", "values", "structure"]

_VALUES = ("changed", "set", "reset", "default")
ONLY: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "changed": lambda change: change["effective"],
    "values": lambda change: change["kind"] in _VALUES,
    "structure": lambda change: change["kind"] not in _VALUES,
}
"""Filters by name: changes with an effect, values of arguments, and all other changes."""

_PARTS = re.compile(r"\*\*\.|\*\*|\[\*\]|\*|[^*\[]+|\[")
_PATTERNS = {
    "**.": r"(?:.*\.)?",
    "**": r".*",
    "*": r"[^.\[\]]*",
    "[*]": r"\[[^\]]*\]",
}


def chosen(
    comparison: Mapping[str, Any], only: Only | None = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a comparison with some of its changes; the tree of rows stays complete.

    Args:
      comparison: The JSON of a comparison.
      only: The kind of changes to keep; None keeps all.
      ignore: Patterns of paths to leave out with what is below them: `**.name`, `records`,
        `model.layers[*].dropout`; `*` is one part of a path, `**` any number.
    """
    # Rows refer to changes by number, so these are renumbered. A patch makes all changes or none,
    # and is dropped; the overrides of the remaining changes are kept.
    ignored = [pattern_of(pattern) for pattern in ignore]
    kept = [
        index
        for index, change in enumerate(comparison["changes"])
        if (only is None or ONLY[only](change))
        and not any(_matches(pattern, change) for pattern in ignored)
    ]
    if len(kept) == len(comparison["changes"]):
        return dict(comparison)  # with its patch, which is right as long as nothing is left out
    changes = [comparison["changes"][index] for index in kept]
    number = {old: new for new, old in enumerate(kept)}
    # None for rows without a change, and for those whose change is left out.
    rows = [{**row, "change": number.get(row["change"])} for row in comparison["rows"]]
    words = dict.fromkeys(change["override"] for change in changes if change["override"])
    paths = {change["path"] for change in changes}
    return {
        **comparison,
        "changes": changes,
        "rows": rows,
        "patch": None,
        "overrides": list(words),
        "unsayable": [one for one in comparison["unsayable"] if one["path"] in paths],
    }


def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern of paths as a regular expression that includes all paths below.

    Args:
      text: The pattern.
    """
    parts = [_PATTERNS.get(part) or re.escape(part) for part in _PARTS.findall(text)]
    return re.compile("".join(parts) + r"(?:[.\[].*)?", re.DOTALL)


def _matches(pattern: re.Pattern[str], change: Mapping[str, Any]) -> bool:
    return any(pattern.fullmatch(path) for path in (change["path"], change["path_before"]) if path)


# A comparison as text: a tree of the changes, grouped by the parts of the graph.
#
# It reads the JSON of a comparison, so that nothing that a graph names is imported.

UNBOUNDED = 100_000
"""A width at which no line is broken."""

_MARKS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "moved": (">", "blue"),
    "shared": ("=", "cyan"),
    "unshared": ("=", "cyan"),
    "tags": ("#", "magenta"),
}
_CHANGED = ("~", "yellow")
_ORDER = ("changed", "set", "reset", "default", "class", "added", "removed", "moved", "shared",
          "unshared", "tags")  # fmt: skip


class _Unicode(io.StringIO):
    """Text that may hold anything."""

    encoding = "utf-8"


class _Ascii(io.StringIO):
    """Text for a terminal that knows ASCII only."""

    encoding = "ascii"


def rendered(
    content: RenderableType, *, width: int = 80, colour: bool = False, unicode: bool = True
) -> str:
    """Render a Rich renderable as text.

    Args:
      content: The renderable.
      width: Columns of a line; `UNBOUNDED` breaks none.
      colour: Whether to write escape codes of colours.
      unicode: Whether lines may be drawn with more than ASCII.
    """
    # Everything is fixed here that Rich would otherwise take from the terminal or guess from the
    # text: values of a config may look like markup, emoji codes or numbers to be highlighted. The
    # encoding of the file is what Rich looks at to decide between Unicode and ASCII lines.
    file = _Unicode() if unicode else _Ascii()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    console.print(Printable(content))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def difference(comparison: Mapping[str, Any], why: bool = False) -> RenderableType:
    """Return the tree of the changes.

    Args:
      comparison: The JSON of a comparison.
      why: Whether to show the origins of both sides of each change.
    """
    return Group(*_heads(comparison["sides"]), _tree(comparison["changes"], why))


def summary(changes: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of changes by kind.

    Args:
      changes: The JSON of changes.
    """
    if not changes:
        return "nothing differs"
    counts = collections.Counter(change["kind"] for change in changes)
    by_kind = ", ".join(f"{counts[kind]} {kind}" for kind in _ORDER if counts[kind])
    return f"{len(changes)} change{'s' if len(changes) > 1 else ''}: {by_kind}"


def _heads(sides: Sequence[Mapping[str, Any]]) -> list[Text]:
    found = []
    for side, (mark, style) in zip(sides, (("-", "red"), ("+", "green")), strict=True):
        line = Text(f"{mark} {cell(side['title'])}", style=style)
        if side["detail"]:
            line.append(f"  ({cell(side['detail'])})", style="dim")
        found.append(line)
    return found


class _Branch:
    """A part of the graph: its changes, and the parts below it."""

    def __init__(self) -> None:
        self.changes: list[Mapping[str, Any]] = []
        self.below: dict[Any, _Branch] = {}


def _tree(changes: Sequence[Mapping[str, Any]], why: bool) -> RenderableType:
    root = _Branch()
    for change in changes:
        branch = root
        for part in parse_path(change["path"]) if change["path"] else ():
            branch = branch.below.setdefault(part, _Branch())
        branch.changes.append(change)
    tree = Tree(Text(summary(changes), style="bold"), guide_style="dim")
    for change in root.changes:
        _add_change(tree, "the root", change, why)
    _add_below(tree, root, why)
    return tree


def _add_below(tree: Tree, branch: _Branch, why: bool) -> None:
    for part, child in branch.below.items():
        name = join("", part)
        while not child.changes and len(child.below) == 1:  # a path without forks is one line
            ((part, child),) = child.below.items()
            name = join(name, part)
        if not child.changes:
            _add_below(tree.add(Text(name, style="bold")), child, why)
            continue
        for change in child.changes:
            added = _add_change(tree, name, change, why)
        _add_below(added, child, why)


def _add_change(tree: Tree, name: str, change: Mapping[str, Any], why: bool) -> Tree:
    mark, style = _MARKS.get(change["kind"], _CHANGED)
    line = Text(f"{mark} ", style=style)
    line.append(name, style="bold")
    if change["path_before"]:
        line.append(f" (was {change['path_before']})", style="dim")
    line.append(": ")
    line.append(description(change), style=style)
    if not change["effective"]:
        line.append("  (no effect)", style="dim")
    added = tree.add(line)
    if why:
        for side, mark in (("before", "-"), ("after", "+")):
            if change[f"origin_{side}"]:
                added.add(Text(f"{mark} set by {change[f'origin_{side}']}", style="dim"))
    return added


def description(change: Mapping[str, Any]) -> str:
    """Return a change on one line, with the ratio of two numbers.

    Args:
      change: The JSON of a change.
    """
    # A ratio of 1: only the sharing of a number changed.
    factor = "" if change["ratio"] == 1 else factor_of(change["ratio"], change["difference"])
    arrow = f"{change['before']} -> {change['after']}"
    if factor and change["told"].startswith(arrow):
        return f"{arrow} ({factor}){change['told'].removeprefix(arrow)}"
    return change["told"]


def factor_of(ratio: float | None, difference: float | None) -> str:
    """Return the change of a number: `x2`; where there is no ratio, `+3`; else nothing.

    Args:
      ratio: The second number over the first.
      difference: The second number minus the first.
    """
    if ratio is not None and ratio > 0:
        return f"x{ratio:.3g}"
    return "" if difference is None else f"{difference:+.3g}"
