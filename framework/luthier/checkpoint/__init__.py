"""Checkpoints: asynchronous, atomic, checked. Orbax is imported here only, and at first use."""

from luthier.checkpoint.policy import Checkpoints, Saved
from luthier.checkpoint.space import require_space
from luthier.checkpoint.store import Store

__all__ = ["Checkpoints", "Saved", "Store", "require_space"]
