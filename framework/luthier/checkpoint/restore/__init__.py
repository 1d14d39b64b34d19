"""Warm starts: initial parameters from other checkpoints, by rules, with provenance."""

from luthier.checkpoint.restore.foreign_weights import Safetensors
from luthier.checkpoint.restore.origins import T5X, BigVision, MaxText
from luthier.checkpoint.restore.pax import Pax
from luthier.checkpoint.restore.restoration import Provenance, Restoration
from luthier.checkpoint.restore.rules import Init, Resize, Rule, Skip, Take
from luthier.checkpoint.restore.runs import FromRun
from luthier.checkpoint.restore.source import Restore, Target

__all__ = [
    "T5X",
    "BigVision",
    "FromRun",
    "Init",
    "MaxText",
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
