"""A comparison as text: a tree of what differs, grouped by the parts of the graph.

It reads the JSON of a comparison, so that nothing which a graph names is imported.
"""

from __future__ import annotations

import collections
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from luthier.graph.paths import join, parse_path
from luthier.terminal import Printable, cell

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
    """Return what Rich makes of something, as text.

    Args:
      content: What to draw.
      width: Columns of a line; `UNBOUNDED` breaks none.
      colour: Whether to write the codes of colours.
      unicode: Whether lines may be drawn with more than ASCII.
    """
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
    """Return the tree of what differs.

    Args:
      comparison: The JSON of a comparison.
      why: Whether to tell what set both sides of each change.
    """
    return Group(*_heads(comparison["sides"]), _tree(comparison["changes"], why))


def summary(changes: Sequence[Mapping[str, Any]]) -> str:
    """Return how many changes there are, by kind."""
    if not changes:
        return "nothing differs"
    counts = collections.Counter(change["kind"] for change in changes)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in _ORDER if counts[kind])
    return f"{len(changes)} change{'s' if len(changes) > 1 else ''}: {told}"


def _heads(sides: Sequence[Mapping[str, Any]]) -> list[Text]:
    found = []
    for side, (mark, style) in zip(sides, (("-", "red"), ("+", "green")), strict=True):
        line = Text(f"{mark} {cell(side['title'])}", style=style)
        if side["detail"]:
            line.append(f"  ({cell(side['detail'])})", style="dim")
        found.append(line)
    return found


class _Branch:
    """A part of the graph: what changes there, and the parts below it."""

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
    line.append(told(change), style=style)
    if not change["effective"]:
        line.append("  (no effect)", style="dim")
    added = tree.add(line)
    if why:
        for side, mark in (("before", "-"), ("after", "+")):
            if change[f"origin_{side}"]:
                added.add(Text(f"{mark} set by {change[f'origin_{side}']}", style="dim"))
    return added


def told(change: Mapping[str, Any]) -> str:
    """Return what changed, on one line, with the ratio of two numbers.

    Args:
      change: The JSON of a change.
    """
    factor = factor_of(change["ratio"], change["difference"])
    arrow = f"{change['before']} -> {change['after']}"
    if factor and change["told"].startswith(arrow):
        return f"{arrow} ({factor}){change['told'].removeprefix(arrow)}"
    return change["told"]


def factor_of(ratio: float | None, difference: float | None) -> str:
    """Return how two numbers differ: `x2`; where there is no ratio, `+3`; else nothing.

    Args:
      ratio: The second number over the first.
      difference: The second number minus the first.
    """
    if ratio is not None and ratio > 0:
        return f"x{ratio:.3g}"
    return "" if difference is None else f"{difference:+.3g}"
