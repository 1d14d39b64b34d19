"""Comparing two graphs: what has the same structure, and which elements belong together."""
