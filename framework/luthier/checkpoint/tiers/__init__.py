"""How checkpoints reach the disk: in tiers, over copies, and in files of a chosen size."""

from luthier.checkpoint.tiers.copying import Copying, DeviceCopy, HostCopy
from luthier.checkpoint.tiers.fast import FastTier
from luthier.checkpoint.tiers.storage import Storage

__all__ = ["Copying", "DeviceCopy", "FastTier", "HostCopy", "Storage"]
