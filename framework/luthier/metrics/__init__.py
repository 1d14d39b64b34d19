"""Typed metrics as sums and counts that merge exactly."""

from luthier.metrics.metric import (
    ACCURACY,
    BITS_PER_BYTE,
    LOSS,
    NATS_PER_BYTE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    Metric,
)
from luthier.metrics.ratio import Ratio
from luthier.metrics.selector import Selector
from luthier.metrics.totals import Totals

__all__ = [
    "ACCURACY",
    "BITS_PER_BYTE",
    "LOSS",
    "NATS_PER_BYTE",
    "NATS_PER_TOKEN",
    "PERPLEXITY",
    "Metric",
    "Ratio",
    "Selector",
    "Totals",
]
