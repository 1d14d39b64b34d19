"""The diff as one HTML file, to be read, searched and sent to others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.graph import compare
from luthier.graph.compare import Change, Comparison, Document
from luthier.view.diff import terminal
from luthier.view.page import document

_FILES = ("diff.css", "diff.js", "effects.js", "diff_page.js")


def render(comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None) -> str:
    """Return the page of a comparison as the text of one HTML file.

    Args:
      comparison: What `luthier.graph.compare.to_json` returns.
      effects: What follows from the changes: `quantities`, `charts` and `verdicts`; None for
        nothing.
    """
    first, second = (side["title"] for side in comparison["sides"])
    return document(
        f"{first} → {second}",
        {"comparison": dict(comparison), "effects": effects},
        _FILES,
        "This page needs JavaScript. The command `luthier diff` prints the same.",
    )


# `luthier.diff(a, b)`: what differs between two graphs, for a notebook or a program.


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two graphs; false where nothing does.

    Args:
      comparison: The changes, and the tree of both graphs.
    """

    comparison: Comparison

    @property
    def changes(self) -> Sequence[Change]:
        """The changes that turn the first into the second."""
        return self.comparison.changes

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __str__(self) -> str:
        content = terminal.difference(compare.to_json(self.comparison))
        return terminal.rendered(content, width=terminal.UNBOUNDED).rstrip("\n")

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values; see `luthier.graph.compare.to_json`."""
        return compare.to_json(self.comparison)

    def as_html(self) -> str:
        """Return the page of the comparison, as one HTML file."""
        return render(self.as_json())


def diff(a: Any, b: Any) -> Difference:
    """Return what differs between two graphs.

    Args:
      a: A node, or what `luthier.graph.compare.read` made of a record.
      b: The same.

    Raises:
      RecordError: A graph goes round in a circle, or is nested too deeply.
    """
    before, after = (
        graph if isinstance(graph, Document) else compare.document(graph, title)
        for graph, title in ((a, "the first"), (b, "the second"))
    )
    return Difference(compare.compare(before, after))
