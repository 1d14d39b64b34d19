"""Optimizers, one family per module: its stages and its recipes."""

from luthier.optim.families.adafactor import (
    AdamDecay,
    LargestDims,
    LastDims,
    PowerDecay,
    adafactor,
)
from luthier.optim.families.capped_adam import capped_adamw
from luthier.optim.families.lion import lion
from luthier.optim.families.muon import AdamScale, NewtonSchulz, SpectralScale, muon

__all__ = [
    "AdamDecay",
    "AdamScale",
    "LargestDims",
    "LastDims",
    "NewtonSchulz",
    "PowerDecay",
    "SpectralScale",
    "adafactor",
    "capped_adamw",
    "lion",
    "muon",
]
