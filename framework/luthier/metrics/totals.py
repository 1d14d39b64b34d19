"""Sums over many batches, on the host."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from luthier.metrics.metric import Metric
from luthier.metrics.ratio import Ratio, StackedRatios


class Totals:
    """Merges the ratios of many batches in double precision, without waiting for the last few.

    The sums are correctly rounded (`math.fsum`), so that neither the number nor the order of the
    batches changes the result by more than the float32 sum within each batch does.

    Args:
      num_pending: Number of batches that may still be on the device; older ones are fetched, which
        also keeps the host from running further ahead than that.
      on_fetch: Called after each batch that was fetched.

    Example:
      >>> from luthier import metrics
      >>> loss = metrics.Metric("loss", "lower")
      >>> totals = metrics.Totals()
      >>> totals.add({loss: metrics.Ratio(2.0, 1.0)})
      >>> totals.add({loss: metrics.Ratio(4.0, 2.0)})
      >>> totals.values()[loss]
      2.0
    """

    def __init__(self, num_pending: int = 2, on_fetch: Callable[[], None] = lambda: None):
        self._on_fetch = on_fetch
        # JAX dispatches asynchronously: an entry of `_pending` may still be computed. To fetch the
        # newest would make the host wait for the device, and the device for the host.
        self._num_pending = num_pending
        self._pending: collections.deque[StackedRatios | Mapping[Metric, Ratio]]
        self._pending = collections.deque()
        self._parts: dict[Metric, tuple[list[Any], list[Any]]] = {}

    def add(self, ratios: StackedRatios | Mapping[Metric, Ratio]) -> None:
        """Merge one batch; its arrays may still be being computed.

        Args:
          ratios: The sums of the batch, by metric.
        """
        self._pending.append(ratios)
        while len(self._pending) > self._num_pending:
            self._fetch()

    def ratios(self) -> dict[Metric, Ratio]:
        """Return the merged ratios of everything added, in double precision.

        Returns:
          Sums by metric, as `Ratio.host` returns them.
        """
        while self._pending:
            self._fetch()
        # Each part is kept, not a running sum: `fsum` rounds once, whatever the order. Two numbers
        # a batch and metric are little.
        return {
            metric: Ratio(_sum(numerators), _sum(denominators))
            for metric, (numerators, denominators) in self._parts.items()
        }

    def values(self) -> dict[Metric, float]:
        """Return the reported value of every metric: its merged ratio, divided and transformed.

        Returns:
          Values by metric.
        """
        return {metric: metric.value(ratio) for metric, ratio in self.ratios().items()}

    def _fetch(self) -> None:
        oldest = self._pending.popleft()
        ratios = oldest.ratios() if isinstance(oldest, StackedRatios) else oldest
        for metric, ratio in ratios.items():
            ratio = ratio.host()
            numerators, denominators = self._parts.setdefault(metric, ([], []))
            numerators.append(ratio.numerator)
            denominators.append(ratio.denominator)
        self._on_fetch()


def _sum(parts: list[Any]) -> Any:
    """Return the correctly rounded sum of floats, or of arrays of one shape by element."""
    if not np.ndim(parts[0]):
        return math.fsum(parts)
    return np.apply_along_axis(math.fsum, 0, np.stack(parts))
