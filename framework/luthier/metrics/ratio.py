"""A mean that has not been divided yet."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
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


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["places"]
)
@dataclasses.dataclass(frozen=True)
class StackedRatios:
    """Ratios as one vector for each dtype, so that one transfer fetches all of them.

    Args:
      vectors: Numerators and denominators, [n], by the name of their dtype.
      places: For each ratio its key, and dtype and index of the numerator and of the denominator.
    """

    vectors: dict[str, Any]
    places: tuple[tuple[Any, tuple[str, int], tuple[str, int]], ...]

    @classmethod
    def of(cls, ratios: Mapping[Any, Ratio]) -> StackedRatios:
        """Return ratios of scalars in this form; also inside a trace.

        Args:
          ratios: By key, such as a metric; keys can be sorted.

        Returns:
          The same numbers.

        Example:
          >>> import jax.numpy as jnp
          >>> from luthier import metrics
          >>> ratios = {"loss": metrics.Ratio(jnp.float32(6), jnp.int32(2))}
          >>> metrics.StackedRatios.of(ratios).ratios()
          {'loss': Ratio(numerator=6.0, denominator=2.0)}
        """
        # By dtype, so that no number is rounded: a count may be an integer beyond 2^24.
        scalars: dict[str, list[jax.Array]] = {}

        def put(value: Any) -> tuple[str, int]:
            array = jnp.asarray(value).reshape(())
            same = scalars.setdefault(array.dtype.name, [])
            same.append(array)
            return array.dtype.name, len(same) - 1

        # Sorted, as JAX sorts the keys of any dict that leaves a compiled function: metrics are
        # printed and recorded in one order, whatever the order of the task.
        places = tuple(
            (key, put(ratios[key].numerator), put(ratios[key].denominator))
            for key in sorted(ratios)
        )
        return cls({name: jnp.stack(same) for name, same in scalars.items()}, places)

    def ratios(self) -> dict[Any, Ratio]:
        """Return the ratios in Python floats, waiting for the device if need be.

        Returns:
          Ratios by key.
        """
        fetched = {name: values.tolist() for name, values in jax.device_get(self.vectors).items()}
        return {
            key: Ratio(*(float(fetched[name][index]) for name, index in parts))
            for key, *parts in self.places
        }
