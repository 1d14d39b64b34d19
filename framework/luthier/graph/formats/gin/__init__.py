"""Gin files: read over a graph or to a graph of their own, and written; no global state of gin."""

from __future__ import annotations

from luthier.graph.formats.gin.overlay import apply_words, files_of, from_gin, make_root
from luthier.graph.formats.gin.writing import to_gin
from luthier.graph.grammar import front_ends
from luthier.graph.grammar.statements import WORDS_OF_GIN

__all__ = ["apply_words", "files_of", "from_gin", "make_root", "to_gin"]

front_ends.register_words(WORDS_OF_GIN, apply_words)
