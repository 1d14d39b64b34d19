"""What must hold before a graph is recorded and run; every problem is told, all at once."""

from __future__ import annotations

from luthier.graph.validation.validate import validate

__all__ = ["validate"]
