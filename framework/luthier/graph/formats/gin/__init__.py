"""Gin files: read over a graph or to a graph of their own, and written; no global state of gin."""

from __future__ import annotations

from luthier.graph.formats.gin.reading import apply_words, files_of, from_gin, make_root
from luthier.graph.formats.gin.writing import to_gin

__all__ = ["apply_words", "files_of", "from_gin", "make_root", "to_gin"]
