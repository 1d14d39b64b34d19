"""Two documents in, everything that differs between them out."""

from __future__ import annotations

from luthier.graph.compare.changes import Comparison
from luthier.graph.compare.differ import Differ
from luthier.graph.compare.documents.document import Document
from luthier.graph.compare.telling import change_of


def compare(a: Document, b: Document) -> Comparison:
    """Return what differs between two documents.

    Args:
      a: The first document.
      b: The second document.

    Raises:
      RecordError: A live graph is nested too deeply.
    """
    differ = Differ(a, b)
    root = differ.run()
    changes = [change_of(draft, differ) for draft in differ.drafts]
    return Comparison(a, b, changes, root, differ)
