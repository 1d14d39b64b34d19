"""Output of commands for other programs to read, and notices beside it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from luthier.terminal import cell


def print_json(told: Any) -> None:
    """Print facts as JSON, which every reader takes: numbers that are none become words.

    Args:
      told: Plain JSON; `nan`, `inf` and `-inf` stand for what JSON has no number for.
    """
    print(json.dumps(_finite(told), indent=1, allow_nan=False))


def _finite(told: Any) -> Any:
    if isinstance(told, float):
        return told if math.isfinite(told) else str(told)
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    return [_finite(value) for value in told] if isinstance(told, list | tuple) else told


def tell(line: str) -> None:
    """Tell something beside what a command prints: one line on the standard error.

    Args:
      line: What to tell; it may hold what came from a record.
    """
    from luthier.terminal import cell

    print(f"luthier: {cell(line)}", file=sys.stderr)


def tell_damage(metrics: Iterable[Path]) -> None:
    """Tell what is damaged or missing in records of metrics, a line for each that is not whole.

    Args:
      metrics: The files; one that is missing is whole.

    Raises:
      RunError: One cannot be read.
      VersionError: One was written by a later luthier.
    """
    from luthier.records.metrics_file import damage_of

    for path in dict.fromkeys(metrics):
        if damage := damage_of(path):
            tell(damage)


# Tables in plain text, which pipes and searches read as well as people do.


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
