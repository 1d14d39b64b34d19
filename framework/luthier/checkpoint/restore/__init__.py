"""Warm starts: initial parameters from other checkpoints, by rules, with provenance."""

from luthier.checkpoint.restore.foreign_weights import Importer, Safetensors
from luthier.checkpoint.restore.pax import Pax
from luthier.checkpoint.restore.restoration import Provenance, Restoration
from luthier.checkpoint.restore.rules import Init, Resize, Rule, Skip, Take
from luthier.checkpoint.restore.runs import FromRun
from luthier.checkpoint.restore.source import Restore, Target

__all__ = [
    "FromRun",
    "Importer",
    "Init",
    "Pax",
    "Provenance",
    "Resize",
    "Restoration",
    "Restore",
    "Rule",
    "Safetensors",
    "Skip",
    "Take",
    "Target",
]
