"""Random numbers that are a function of the example, the epoch and the seed alone."""

from __future__ import annotations

import numpy as np

from luthier.data.order import Visit, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Random numbers for each of B examples.

    They are the same whatever batch, host or thread the example is in. A second call gives other
    numbers.

    Args:
      examples: The number of each example, int64 [B].
      visit: The epoch of each, and the seed of the run.
      salt: Tells several uses for the same examples apart.
    """

    def __init__(self, examples: np.ndarray, visit: Visit, salt: int = 0):
        seed = np.array([visit.seed % 2**64], np.uint64)
        # An array, since NumPy warns where a scalar wraps around.
        key = mix(mix(seed) + np.array([salt], np.uint64) * _GOLDEN)
        key = mix(key + np.asarray(examples).astype(np.uint64) * _GOLDEN)
        self._keys = mix(key + np.asarray(visit.epochs).astype(np.uint64) * _GOLDEN)
        self._calls = 0

    def uniform(self, *shape: int) -> np.ndarray:
        """Return numbers in [0, 1); float64 [B, *shape].

        Args:
          *shape: The shape for one example.

        Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators
          (SplitMix64).
        """
        self._calls += 1
        count = int(np.prod(shape, dtype=np.int64))
        streams = mix(self._keys + np.uint64(self._calls))
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = mix(streams[:, None] + counters[None, :])
        numbers = (bits >> np.uint64(11)) * 2.0**-53
        return numbers.reshape(len(self._keys), *shape)

    def normal(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers; float64 [B, *shape].

        Args:
          *shape: The shape for one example.

        Source: Box and Muller 1958, A note on the generation of random normal deviates.
        """
        radius = np.sqrt(-2 * np.log1p(-self.uniform(*shape)))
        return radius * np.cos(2 * np.pi * self.uniform(*shape))
