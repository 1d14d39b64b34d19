"""Configs of Hydra, NeMo-Run (`_target_`) and konfig (`__qualname__`), read as graphs."""

from __future__ import annotations

from luthier.graph.formats.targets.hydra import from_hydra
from luthier.graph.formats.targets.konfig import from_konfig

__all__ = ["from_hydra", "from_konfig"]
