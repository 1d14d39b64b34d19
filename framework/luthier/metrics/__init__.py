"""Typed metrics as sums and counts that merge exactly."""

from luthier.metrics.forecasts import naive_error
from luthier.metrics.metric import (
    ACCURACY,
    BITS_PER_BYTE,
    CHOSEN_REWARD,
    CONSISTENCY,
    EXACT_MATCH,
    LOSS,
    MEAN_ABSOLUTE_ERROR,
    MEAN_ABSOLUTE_SCALED_ERROR,
    MEAN_SQUARED_ERROR,
    NATS_PER_BYTE,
    NATS_PER_EXAMPLE,
    NATS_PER_TOKEN,
    PERPLEXITY,
    PREFERENCE_ACCURACY,
    REJECTED_REWARD,
    RETRIEVAL_ACCURACY,
    REWARD_MARGIN,
    TOP_5_ACCURACY,
    Metric,
)
from luthier.metrics.ranking import top_k_correct
from luthier.metrics.ratio import Ratio
from luthier.metrics.selector import Selector
from luthier.metrics.totals import Totals

__all__ = [
    "ACCURACY",
    "BITS_PER_BYTE",
    "CHOSEN_REWARD",
    "CONSISTENCY",
    "EXACT_MATCH",
    "LOSS",
    "MEAN_ABSOLUTE_ERROR",
    "MEAN_ABSOLUTE_SCALED_ERROR",
    "MEAN_SQUARED_ERROR",
    "NATS_PER_BYTE",
    "NATS_PER_EXAMPLE",
    "NATS_PER_TOKEN",
    "PERPLEXITY",
    "PREFERENCE_ACCURACY",
    "REJECTED_REWARD",
    "RETRIEVAL_ACCURACY",
    "REWARD_MARGIN",
    "TOP_5_ACCURACY",
    "Metric",
    "Ratio",
    "Selector",
    "Totals",
    "naive_error",
    "top_k_correct",
]
