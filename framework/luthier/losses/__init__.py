"""Loss functions: pure, per token or per example, never divided."""

from luthier.losses.chunking import Chunked, Chunking, Fused, Whole
from luthier.losses.cross_entropy import (
    TokenLosses,
    cross_entropy,
    unembedded_cross_entropy,
    weighted_cross_entropy,
)
from luthier.losses.preferences import DPO, IPO, PreferenceHinge, PreferenceLoss
from luthier.losses.regression import (
    AbsoluteError,
    Huber,
    Quantiles,
    RegressionLoss,
    SquaredError,
)
from luthier.losses.routing import load_balance, router_z

__all__ = [
    "DPO",
    "IPO",
    "AbsoluteError",
    "Chunked",
    "Chunking",
    "Fused",
    "Huber",
    "PreferenceHinge",
    "PreferenceLoss",
    "Quantiles",
    "RegressionLoss",
    "SquaredError",
    "TokenLosses",
    "Whole",
    "cross_entropy",
    "load_balance",
    "router_z",
    "unembedded_cross_entropy",
    "weighted_cross_entropy",
]
