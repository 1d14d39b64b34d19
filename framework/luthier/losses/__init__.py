"""Loss functions: pure, per token or per example, never divided."""

from luthier.losses.chunking import Chunked, Chunking, Whole
from luthier.losses.cross_entropy import TokenLosses, cross_entropy, unembedded_cross_entropy

__all__ = [
    "Chunked",
    "Chunking",
    "TokenLosses",
    "Whole",
    "cross_entropy",
    "unembedded_cross_entropy",
]
