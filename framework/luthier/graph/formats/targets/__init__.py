"""Dicts that name what they build, of Hydra and NeMo (`_target_`) and konfig: read as graphs."""

from __future__ import annotations

from luthier.graph.formats.targets.hydra import from_hydra
from luthier.graph.formats.targets.konfig import from_konfig

__all__ = ["from_hydra", "from_konfig"]
