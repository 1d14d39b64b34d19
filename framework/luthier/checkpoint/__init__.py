"""Checkpoints: asynchronous, atomic, checked. Orbax is imported here only, and at first use.

Warm starts are here too, from other runs and from pretrained weights.
"""

from luthier.checkpoint import commit
from luthier.checkpoint.commit import Commit
from luthier.checkpoint.copies import CheckpointCopy
from luthier.checkpoint.directory import Directory, require_space
from luthier.checkpoint.policy import (
    Checkpoints,
    DeviceCopy,
    FastTier,
    HostCopy,
    HostTier,
    SavedCheckpoint,
    Storage,
)
from luthier.checkpoint.restore import (
    FromRun,
    Importer,
    Init,
    Pax,
    Provenance,
    Resize,
    Restoration,
    Restore,
    Rule,
    Safetensors,
    Skip,
    Take,
    Target,
)
from luthier.checkpoint.store import Store
from luthier.checkpoint.tiers import Saves, Tiers, open_checkpoints

__all__ = [
    "CheckpointCopy",
    "Checkpoints",
    "Commit",
    "DeviceCopy",
    "Directory",
    "FastTier",
    "FromRun",
    "HostCopy",
    "HostTier",
    "Importer",
    "Init",
    "Pax",
    "Provenance",
    "Resize",
    "Restoration",
    "Restore",
    "Rule",
    "Safetensors",
    "SavedCheckpoint",
    "Saves",
    "Skip",
    "Storage",
    "Store",
    "Take",
    "Target",
    "Tiers",
    "commit",
    "open_checkpoints",
    "require_space",
]
