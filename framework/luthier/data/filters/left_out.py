"""What corrupt documents were left out of data, to tell the user of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.data.filters.filtered import Filtered


def left_out(data: Any) -> list[str]:
    """Return one line for each source that lacks documents which could not be read.

    Args:
      data: A node of data, or anything that is built of sources.
    """
    lines = []
    for source in _filtered(data):
        if problems := source.verdict.problems:
            count, total = len(problems), len(source.source)
            documents = "document" if count == 1 else "documents"
            first = "" if count == 1 else "the first: "
            lines.append(
                f"{count} {documents} of {total} cannot be used, left out: {first}{problems[0]}"
            )
    return lines


def _filtered(node: Any) -> Iterator[Filtered]:
    if isinstance(node, Filtered):
        yield node
    if isinstance(node, Mapping):
        parts: Sequence[Any] = list(node.values())
    elif isinstance(node, list | tuple):
        parts = node
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        parts = [getattr(node, field.name) for field in dataclasses.fields(node)]
    else:
        parts = ()
    for part in parts:
        yield from _filtered(part)
