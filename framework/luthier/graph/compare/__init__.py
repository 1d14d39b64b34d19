"""Comparison of two graphs: live ones, or records that are read as data.

    a, b = compare.read(text, "run 7"), compare.document(graph, "configs.lm.quickstart")
    comparison = compare.compare(a, b)

Nothing that a record names is imported.
"""

from __future__ import annotations

from luthier.graph.compare.changes import Change, NoOverride, Row, Side
from luthier.graph.compare.comparing import compare, to_json
from luthier.graph.compare.differ import Comparison
from luthier.graph.compare.document import Document, document, read
from luthier.graph.compare.overrides import OverridePatch, overrides_of
from luthier.graph.compare.patch import patch_of
from luthier.graph.compare.rows import rows_of

__all__ = [
    "Change",
    "Comparison",
    "Document",
    "NoOverride",
    "OverridePatch",
    "Row",
    "Side",
    "compare",
    "document",
    "overrides_of",
    "patch_of",
    "read",
    "rows_of",
    "to_json",
]
