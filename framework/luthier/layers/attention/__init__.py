"""Attention: projections, what attends, and masks."""

from luthier.layers.attention.cores import Core, EinsumAttention, FusedAttention
from luthier.layers.attention.masks import Causal, Mask, SameDocument
from luthier.layers.attention.multi_head import Attention, KeyValues

__all__ = [
    "Attention",
    "Causal",
    "Core",
    "EinsumAttention",
    "FusedAttention",
    "KeyValues",
    "Mask",
    "SameDocument",
]
