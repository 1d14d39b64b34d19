"""Attention over rows that are split along their length: context parallelism."""

from luthier.layers.attention.context_parallel.all_to_all import AllToAllAttention
from luthier.layers.attention.context_parallel.ring import (
    Contiguous,
    RingAttention,
    RingOrder,
    Zigzag,
)

__all__ = ["AllToAllAttention", "Contiguous", "RingAttention", "RingOrder", "Zigzag"]
