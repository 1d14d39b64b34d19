"""Serializers of graphs for other readers: Python, YAML, SVG."""

from __future__ import annotations

from luthier.graph.export.picture import to_svg
from luthier.graph.export.python import to_python
from luthier.graph.export.yaml import (
    Entries,
    Items,
    YamlError,
    YamlReference,
    YamlScalar,
    from_yaml,
    to_yaml,
)
from luthier.graph.export.yaml import read as read_yaml

__all__ = [
    "Entries",
    "Items",
    "YamlError",
    "YamlReference",
    "YamlScalar",
    "from_yaml",
    "read_yaml",
    "to_python",
    "to_svg",
    "to_yaml",
]
