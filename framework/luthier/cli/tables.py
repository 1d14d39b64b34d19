"""Tables in plain text, which pipes and searches read as well as people do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luthier.terminal import cell


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in plain text; columns of numbers stand to the right.

    Args:
      heads: The heads of the columns.
      rows: What stands below them; control characters in it, line ends too, are escaped.
    """
    texts = [list(heads), *([cell(str(value)) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(heads))]
    numeric = [all(_is_number(row[column]) for row in texts[1:]) for column in range(len(heads))]
    lines = []
    for row in texts:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").isdigit()
