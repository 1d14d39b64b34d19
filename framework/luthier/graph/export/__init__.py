"""Graphs in forms for other readers: Python, YAML, a picture."""

from __future__ import annotations

from luthier.graph.export.picture import to_svg
from luthier.graph.export.python import to_python
from luthier.graph.export.yaml import from_yaml, to_yaml

__all__ = ["from_yaml", "to_python", "to_svg", "to_yaml"]
