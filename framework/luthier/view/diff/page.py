"""The diff as one HTML file that can be searched and sent to others, and `luthier.diff`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.graph import Graph, compare
from luthier.graph.compare import Change, Comparison, Document
from luthier.view.diff import terminal
from luthier.view.page import document

_FILES = ("diff.css", "diff.js", "effects.js", "diff_page.js")


def render(comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None) -> str:
    """Return the page of a comparison as the text of one HTML file.

    Args:
      comparison: The output of `luthier.graph.compare.to_json`.
      effects: The effects of the changes: `quantities`, `charts` and `verdicts`; None to leave
        them out.
    """
    first, second = (side["title"] for side in comparison["sides"])
    return document(
        f"{first} → {second}",
        {"comparison": dict(comparison), "effects": effects},
        _FILES,
        "This page needs JavaScript. The command `luthier diff` prints the same.",
    )


# `luthier.diff(a, b)`: the difference of two graphs, for notebooks and programs.


@dataclasses.dataclass(frozen=True, repr=False)
class Difference:
    """The difference of two graphs; false where they are equal.

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

    def __repr__(self) -> str:
        # The last line of a cell shows it: the tree, and not the nodes of both graphs.
        return str(self)

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values; see `luthier.graph.compare.to_json`."""
        return compare.to_json(self.comparison)

    def as_html(self) -> str:
        """Return the page of the comparison, as one HTML file."""
        return render(self.as_json())


def diff(a: Graph | Document, b: Graph | Document) -> Difference:
    """Compare two graphs.

    Args:
      a: A node, or a record read by `luthier.graph.compare.read`.
      b: The same.

    Returns:
      The difference; empty, and so false, if and only if nothing differs.

    Raises:
      RecordError: A graph contains a cycle, or is nested too deeply.

    Example:
      >>> import luthier
      >>> before = luthier.experiment("quickstart")
      >>> after = luthier.experiment("quickstart", ["optimizer.b2=0.99"])
      >>> bool(luthier.diff(before, after)), bool(luthier.diff(before, before))
      (True, False)
    """
    titles = [graph.title if isinstance(graph, Document) else _name(graph) for graph in (a, b)]
    if titles[0] == titles[1] or not all(titles):
        titles = ["the first", "the second"]
    before, after = (
        graph if isinstance(graph, Document) else compare.document(graph, title)
        for graph, title in zip((a, b), titles, strict=True)
    )
    return Difference(compare.compare(before, after))


def _name(graph: Graph) -> str:
    """Return the name of an experiment or a study; empty for a node without a name."""
    name = getattr(graph, "name", "")
    return name if isinstance(name, str) else ""
