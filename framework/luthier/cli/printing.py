"""Output of commands: JSON, tables, and notices on the standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from luthier.terminal import cell


def print_json(value: Any) -> None:
    """Print a value as strict JSON.

    Args:
      value: Plain JSON; `nan`, `inf` and `-inf` become strings.
    """
    # Python would write NaN and Infinity as bare words, which are not JSON: strict parsers such as
    # JavaScript's reject the whole document for one diverged loss.
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def notice(line: str) -> None:
    """Print one line on the standard error, where it does not mix with a command's output.

    Args:
      line: The notice; it may hold text of a record.
    """
    print(f"luthier: {cell(line)}", file=sys.stderr)


def report_damage(metrics: Iterable[Path]) -> None:
    """Report what is damaged or missing in files of metrics, a line for each damaged file.

    Args:
      metrics: The files; a file that does not exist is not damaged.

    Raises:
      RunError: One cannot be read.
      VersionError: One was written by a newer luthier.
    """
    from luthier.records.metrics_file import damage_of

    for path in dict.fromkeys(metrics):
        if damage := damage_of(path):
            notice(damage)


# Tables in plain text, which pipes and searches read as well as people do.


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in plain text; columns of numbers are right-aligned.

    Args:
      heads: The heads of the columns.
      rows: The cells below them; control characters in them, line ends too, are escaped.
    """
    # Not Rich: it would fit the columns to a width of 80 in a pipe, and cut what `grep` looks for.
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
