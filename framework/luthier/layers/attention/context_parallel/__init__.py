"""Attention over rows that are shared out along their length: context parallelism."""

from luthier.layers.attention.context_parallel.all_to_all import AllToAllAttention
from luthier.layers.attention.context_parallel.orders import Contiguous, Order, Zigzag
from luthier.layers.attention.context_parallel.ring import RingAttention

__all__ = ["AllToAllAttention", "Contiguous", "Order", "RingAttention", "Zigzag"]
