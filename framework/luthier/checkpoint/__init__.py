"""Checkpoints: asynchronous, atomic, checked. Orbax is imported here only, and at first use.

Warm starts are here too, from other runs and from the weights of others.
"""

from luthier.checkpoint.policy import Checkpoints, Saved
from luthier.checkpoint.restore import (
    FromRun,
    Init,
    Provenance,
    Restoration,
    Restore,
    Rule,
    Safetensors,
    Skip,
    Take,
    Target,
)
from luthier.checkpoint.space import require_space
from luthier.checkpoint.store import Store

__all__ = [
    "Checkpoints",
    "FromRun",
    "Init",
    "Provenance",
    "Restoration",
    "Restore",
    "Rule",
    "Safetensors",
    "Saved",
    "Skip",
    "Store",
    "Take",
    "Target",
    "require_space",
]
