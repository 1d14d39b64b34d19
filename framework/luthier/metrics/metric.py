"""Names of what is measured, as typed keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

from luthier.metrics.ratio import Ratio

Direction = Literal["lower", "higher"]


def identity(value: float) -> float:
    """Return the mean as it is."""
    return value


def exponential(value: float) -> float:
    """Return e to the mean: a perplexity from nats per token. Infinite where a float ends."""
    # At the start of a training that diverges, nats per token may exceed 709.
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def bits(value: float) -> float:
    """Return nats in bits."""
    return value / math.log(2)


@dataclasses.dataclass(frozen=True)
class Metric:
    """A typed key: what a `Ratio` measures, and which way is better.

    Metrics are keys of the dictionaries that jitted functions return, so they hash, and sort by
    name.

    Args:
      name: The name in records and on the command line (`nats_per_byte`).
      better: Whether a `lower` or a `higher` value is better.
      transform: From the merged ratio's value to the value reported, on the host: a function of a
        float, or of the float64 array of quotients where the ratio holds arrays.
      num_guesses: k of a top-k accuracy; None for other metrics. With k classes or fewer it is 1
        whatever the model predicts, so it is refused as an objective.
    """

    name: str
    better: Direction = "lower"
    transform: Callable[[Any], float] = identity
    num_guesses: int | None = None

    # Metrics are keys of pytrees (dictionaries that leave a jitted function), and JAX sorts the
    # keys of a dictionary.
    def __lt__(self, other: Metric) -> bool:
        return self.name < other.name

    def __str__(self) -> str:
        return self.name

    def is_constant(self, num_classes: int | None) -> bool:
        """Return whether the metric has the same value for every model.

        Args:
          num_classes: The number of classes; None where it is unknown.

        Returns:
          True where that is known.

        Example:
          >>> from luthier import metrics
          >>> metrics.TOP_5_ACCURACY.is_constant(3), metrics.TOP_5_ACCURACY.is_constant(10)
          (True, False)
        """
        if self.num_guesses is None or num_classes is None:
            return False
        return num_classes <= self.num_guesses

    # The transform comes last, on the mean over everything: the mean of the perplexities of the
    # batches is not the perplexity of the set.
    def value(self, ratio: Ratio) -> float:
        """Return the reported value of `ratio`, in double precision.

        Args:
          ratio: A numerator and its weight.

        Returns:
          The mean, or a function of it such as its exponential.

        Example:
          >>> import numpy as np
          >>> from luthier import metrics
          >>> recall = metrics.Metric("macro_recall", better="higher", transform=np.mean)
          >>> recall.value(metrics.Ratio(np.array([9.0, 1.0]), np.array([10.0, 2.0])))
          0.7
        """
        return float(self.transform(ratio.host().value()))


# Perplexity and bits are no sums of their own: a task reports the same ratio of nats under several
# keys, whose transforms differ.
LOSS = Metric("loss")
NATS_PER_TOKEN = Metric("nats_per_token")
NATS_PER_BYTE = Metric("nats_per_byte")
BITS_PER_BYTE = Metric("bits_per_byte", transform=bits)
PERPLEXITY = Metric("perplexity", transform=exponential)
ACCURACY = Metric("accuracy", better="higher")
EXACT_MATCH = Metric("exact_match", better="higher")
NATS_PER_EXAMPLE = Metric("nats_per_example")
TOP_5_ACCURACY = Metric("top_5_accuracy", better="higher", num_guesses=5)
MEAN_SQUARED_ERROR = Metric("mean_squared_error")
MEAN_ABSOLUTE_ERROR = Metric("mean_absolute_error")
MEAN_ABSOLUTE_SCALED_ERROR = Metric("mean_absolute_scaled_error")
PREFERENCE_ACCURACY = Metric("preference_accuracy", better="higher")
REWARD_MARGIN = Metric("reward_margin", better="higher")
CHOSEN_REWARD = Metric("chosen_reward", better="higher")
REJECTED_REWARD = Metric("rejected_reward")
RETRIEVAL_ACCURACY = Metric("retrieval_accuracy", better="higher")
CONSISTENCY = Metric("consistency")
LOAD_BALANCE = Metric("load_balance")
ROUTER_Z = Metric("router_z")
DROPPED_FRACTION = Metric("dropped_fraction")
LARGEST_LOAD = Metric("largest_load")
SMALLEST_LOAD = Metric("smallest_load", better="higher")
