"""Comparison of more than two graphs: a matrix of the settings that vary, a column per graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from luthier.terminal import cell
from luthier.view.page import document

VERSION = 1
_SAME = "."


def matrix(
    title: str,
    columns: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    objectives: Sequence[Mapping[str, Any]] = (),
    noun: str = "config",
) -> dict[str, Any]:
    """Return the matrix of several graphs against the first of them, as plain JSON values.

    Args:
      title: Its title.
      columns: `{"title", "state", "link"}` of every graph.
      comparisons: The JSON of comparisons of the first graph with each of the others.
      objectives: `{"name", "values", "direction"}` with a value of every graph, or None.
      noun: The graphs by their kind: `config`, `run` or `trial`.

    Returns:
      `{"version", "title", "noun", "columns", "objectives", "rows"}`; a row has the `path` of a
      setting that varies, its `texts` in all graphs, and its `values` where they are plain numbers.
    """
    # Each graph was compared with the first only. A path is a row if any of them differs there; a
    # graph without a change at a path has the value of the first.
    paths = dict.fromkeys(
        change["path"] or change["path_before"]
        for comparison in comparisons
        for change in comparison["changes"]
    )
    by_column = [_by_path(comparison) for comparison in comparisons]
    rows = []
    for path in paths:
        found = [changes.get(path, ()) for changes in by_column]
        # Any change at the path will do: in all of them, `before` is of the first graph.
        first = next(change for changes in found for change in changes)
        before = (first["before"], first["value_before"])
        cells = [before, *(_after(changes, before) for changes in found)]
        rows.append(
            {
                "path": path or "the root",
                "texts": [text if text is not None else "" for text, _ in cells],
                "values": [_number(value) for _, value in cells],
            }
        )
    return {
        "version": VERSION,
        "title": title,
        "noun": noun,
        "columns": [dict(column) for column in columns],
        "objectives": [dict(objective) for objective in objectives],
        "rows": rows,
    }


def _by_path(comparison: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for change in comparison["changes"]:
        found.setdefault(change["path"] or change["path_before"], []).append(change)
    return found


def _after(
    changes: Sequence[Mapping[str, Any]], before: tuple[str | None, Any]
) -> tuple[str | None, Any]:
    """Return the value of a graph at a path, as text and as a plain value."""
    # Several changes of one path, or one of sharing or tags, have no single value after them.
    if not changes:
        return before
    if len(changes) == 1 and changes[0]["kind"] not in ("shared", "unshared", "tags", "moved"):
        return changes[0]["after"], changes[0]["value_after"]
    return "; ".join(change["told"] for change in changes), None


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def table(matrix: Mapping[str, Any], width: int) -> RenderableType:
    """Return a matrix as text: a legend, and as many columns at a time as fit.

    Args:
      matrix: The output of `matrix`.
      width: Columns of a line.
    """
    # Titles of graphs are long, so the columns are lettered and the legend explains the letters.
    names = [_letter(index) for index in range(len(matrix["columns"]))]
    lines = [Text(cell(matrix["title"]), style="bold")]
    for name, column in zip(names, matrix["columns"], strict=True):
        line = Text(f"{name:>3}  {cell(column['title'])}")
        line.append(f"  ({cell(column['state'])})" if column["state"] else "", style="dim")
        lines.append(line)
    # Results are shown beside the settings that may explain them. Where no setting differs there is
    # no table, and so no results; the JSON and the page have them in any case.
    if not matrix["rows"]:
        return Group(*lines, Text("nothing differs", style="bold"))
    heads = [_objective_head(objective) for objective in matrix["objectives"]]
    heads += [row["path"] for row in matrix["rows"]]
    cells = [[_formatted(v) for v in objective["values"]] for objective in matrix["objectives"]]
    cells += [_against_first(row["texts"]) for row in matrix["rows"]]
    first = max(map(len, heads))
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
    for start, end in _blocks(widths, width - first):
        part = slice(start, end)
        lines += [Text(""), _line("", names[part], first, widths[part], "bold")]
        for head, row in zip(heads, cells, strict=True):
            # `heads` has both kinds. Objectives have names that no setting has (`held_out/loss`,
            # `device_hours`), so the head is enough; one that is a path, too, would only lose its
            # colour.
            is_objective = head not in [row["path"] for row in matrix["rows"]]
            style = "cyan" if is_objective else ""
            lines.append(_line(head, row[part], first, widths[part], style))
    return Group(*lines)


def _objective_head(objective: Mapping[str, Any]) -> str:
    direction = objective["direction"]
    return f"{objective['name']} ({direction})" if direction else objective["name"]


def _formatted(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _against_first(texts: Sequence[str]) -> list[str]:
    return [texts[0], *(_SAME if text == texts[0] else text for text in texts[1:])]


def _blocks(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Return the ranges of columns that fit side by side, at least one at a time."""
    blocks, start, used = [], 0, 0
    for index, width in enumerate(widths):
        if index > start and used + width + 2 > room:
            blocks.append((start, index))
            start, used = index, 0
        used += width + 2
    return [*blocks, (start, len(widths))]


def _line(head: str, cells: Sequence[str], first: int, widths: Sequence[int], style: str) -> Text:
    texts = [text.rjust(width) for text, width in zip(cells, widths, strict=True)]
    return Text(
        cell("  ".join([head.ljust(first), *texts])), style=style, no_wrap=True, overflow="ignore"
    )


def _letter(index: int) -> str:
    """Return the name of a column as in spreadsheets: A, B, ..., Z, AA."""
    # Base 26 without a zero ("A" is 1), hence the shift by one before each division.
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


# The matrix as one HTML file.


def render(matrix: Mapping[str, Any]) -> str:
    """Return the page of a matrix as the text of one HTML file.

    Args:
      matrix: `title`; `noun`, the kind of its columns (`trial` without one); `columns`, each with
        `title`, `state` and `link`; `objectives`, each with `name`, `values` and `direction`;
        `rows`, the paths that vary, each with `path`, `texts` and `values`, which are None where a
        text is not a number. A cell that equals that of the first column is shown as a dot.
    """
    return document(
        matrix["title"],
        dict(matrix),
        ("matrix.css", "matrix.js", "matrix_page.js"),
        "This page needs JavaScript. The command `luthier diff` prints the same.",
    )
