"""What corrupt documents were left out of data, to tell the user of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from luthier.data.filters.filtered import Filtered

_Node = TypeVar("_Node")


def left_out(data: Any) -> list[str]:
    """Return one line for each source that lacks documents which could not be read.

    Args:
      data: A node of data, or anything that is built of sources.
    """
    lines = []
    for source in nodes_of(data, Filtered):
        if problems := source.verdict.problems:
            count, total = len(problems), len(source.source)
            documents = "document" if count == 1 else "documents"
            first = "" if count == 1 else "the first: "
            lines.append(
                f"{count} {documents} of {total} cannot be used, left out: {first}{problems[0]}"
            )
    return lines


def nodes_of(node: Any, kind: type[_Node]) -> Iterator[_Node]:
    """Yield the nodes of one kind in data, itself and what it is built of.

    Args:
      node: A node of data, or anything that is built of them.
      kind: The class of the nodes that are asked for.
    """
    if isinstance(node, kind):
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
        yield from nodes_of(part, kind)
