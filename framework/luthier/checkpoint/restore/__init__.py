"""Warm starts: initial parameters from other checkpoints, by rules, with provenance."""

from luthier.checkpoint.restore.foreign_weights import Importer, Safetensors
from luthier.checkpoint.restore.pax import Pax
from luthier.checkpoint.restore.restoration import Provenance, Restoration
from luthier.checkpoint.restore.rules import ADAPTERS, Claim, Init, Resize, Rule, Skip, Take, claim
from luthier.checkpoint.restore.runs import FromRun
from luthier.checkpoint.restore.source import (
    Found,
    ModelDescription,
    OpenedSource,
    Restore,
    SourcePiece,
    Target,
    Wanted,
    assemble,
)

__all__ = [
    "ADAPTERS",
    "Claim",
    "Found",
    "FromRun",
    "Importer",
    "Init",
    "ModelDescription",
    "OpenedSource",
    "Pax",
    "Provenance",
    "Resize",
    "Restoration",
    "Restore",
    "Rule",
    "Safetensors",
    "Skip",
    "SourcePiece",
    "Take",
    "Target",
    "Wanted",
    "assemble",
    "claim",
]
