"""A mean that has not been divided yet."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ratio:
    """A sum and the weight it is to be divided by: means merge exactly only before the division.

    On the device both are float32 scalars; on the host they are Python floats (double), so that
    adding up many batches loses nothing. `sum(ratios, Ratio.zero())` and `+` merge.

    Args:
      numerator: Sum of the weighted values, a scalar.
      denominator: Sum of the weights, a scalar.

    Example:
      >>> from luthier import metrics
      >>> (metrics.Ratio(2.0, 1.0) + metrics.Ratio(4.0, 2.0)).value()
      2.0
    """

    numerator: Any
    denominator: Any

    @classmethod
    def zero(cls) -> Ratio:
        """Return the ratio of nothing, which merges as zero on host and device.

        Returns:
          A ratio of two zeros.
        """
        return cls(0.0, 0.0)

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)

    def host(self) -> Ratio:
        """Return the same ratio in Python floats, waiting for the device if need be.

        Returns:
          The ratio.
        """
        return Ratio(float(self.numerator), float(self.denominator))

    def value(self) -> Any:
        """Return numerator / denominator: a float from host numbers, an array from arrays.

        The mean of nothing is NaN, in either case.

        Returns:
          A float, or an array scalar.
        """
        # On the device, 0 / 0 is NaN by itself; Python's floats would raise.
        host_types = (int, float, np.generic, np.ndarray)
        if not (
            isinstance(self.numerator, host_types) and isinstance(self.denominator, host_types)
        ):
            return self.numerator / self.denominator
        if self.denominator == 0:
            return math.nan
        return float(self.numerator) / float(self.denominator)
