"""`luthier diff --textconv`: a recorded graph as lines of text, for `git diff`.

A line is a path and its value, so that a line of a diff says by itself what it is about.
"""

from __future__ import annotations

import sys
from pathlib import Path

from luthier.errors import BadInput, Problem, RecordError


def print_text(file: str) -> None:
    """Print a recorded graph as lines; what is no record is printed as it is.

    Args:
      file: The path of a config.json, or a copy of one that git made.

    Raises:
      BadInput: It cannot be read.
    """
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(Problem(f"cannot read {file}: {error.strerror}")) from error
    try:
        lines = lines_of(text, file)
    except RecordError:  # git would show nothing at all where this fails
        sys.stdout.write(text)
        return
    print("\n".join(lines))


def lines_of(text: str, source: str) -> list[str]:
    """Return a recorded graph as lines `path = value`, in the order of the graph.

    Args:
      text: The record.
      source: What it was read from.

    Raises:
      RecordError: It is no record.
    """
    from luthier.graph import compare

    document = compare.read(text, source)
    rows = compare.compare(document, document).rows
    return [f"{row.path} = {row.after}" if row.path else str(row.after) for row in rows]
