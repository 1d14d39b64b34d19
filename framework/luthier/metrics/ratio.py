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

_Place = tuple[str, int, tuple[int, ...]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ratio:
    """A sum and the weight it is to be divided by: means merge exactly only before the division.

    On the device both are float32; on the host they are double precision, so that adding up many
    batches loses nothing. `sum(ratios, Ratio.zero())` and `+` merge.

    Most metrics are a quotient of two scalars. A metric that is a function of several sums, such
    as a macro-averaged F1 score or R^2, puts them into arrays, and its `transform` makes a number
    of the quotients.

    Args:
      numerator: Sum of the weighted values, a scalar or an array.
      denominator: Sum of the weights, a scalar or an array that broadcasts with the numerator.

    Example:
      >>> import numpy as np
      >>> from luthier import metrics
      >>> (metrics.Ratio(2.0, 1.0) + metrics.Ratio(4.0, 2.0)).value()
      2.0
      >>> print(metrics.Ratio(np.array([1.0, 6.0]), np.array([2.0, 4.0])).value())
      [0.5 1.5]
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
        """Return the same ratio in double precision, waiting for the device if need be.

        Returns:
          Python floats in place of scalars, and float64 arrays in place of arrays.
        """
        return Ratio(_double(self.numerator), _double(self.denominator))

    def value(self) -> Any:
        """Return numerator / denominator.

        The mean of nothing is NaN, on the host as on the device.

        Returns:
          A float from numbers of the host, and an array from arrays.
        """
        # On the device, 0 / 0 is NaN by itself; Python's floats would raise.
        host_types = (int, float, np.generic, np.ndarray)
        if not (
            isinstance(self.numerator, host_types) and isinstance(self.denominator, host_types)
        ):
            return self.numerator / self.denominator
        if np.ndim(self.numerator) or np.ndim(self.denominator):
            with np.errstate(divide="ignore", invalid="ignore"):
                quotients = np.divide(self.numerator, self.denominator)
            return np.where(np.equal(self.denominator, 0), math.nan, quotients)
        if self.denominator == 0:
            return math.nan
        return float(self.numerator) / float(self.denominator)


def _double(value: Any) -> Any:
    """Return a number as a float, and an array as a float64 array."""
    return np.asarray(value, np.float64) if np.ndim(value) else float(value)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["places"]
)
@dataclasses.dataclass(frozen=True)
class StackedRatios:
    """Ratios as one vector for each dtype, so that one transfer fetches all of them.

    Args:
      vectors: Numerators and denominators, [n], by the name of their dtype.
      places: For each ratio its key, and the places of the numerator and of the denominator: dtype,
        index of the first element, and shape.
    """

    vectors: dict[str, Any]
    places: tuple[tuple[Any, _Place, _Place], ...]

    @classmethod
    def of(cls, ratios: Mapping[Any, Ratio]) -> StackedRatios:
        """Return ratios in this form; also inside a trace.

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
        flat: dict[str, list[jax.Array]] = {}

        def put(value: Any) -> _Place:
            array = jnp.asarray(value)
            same = flat.setdefault(array.dtype.name, [])
            start = sum(part.size for part in same)
            same.append(array.reshape(-1))
            return array.dtype.name, start, array.shape

        # Sorted, as JAX sorts the keys of any dict that leaves a compiled function: metrics are
        # printed and recorded in one order, whatever the order of the task.
        places = tuple(
            (key, put(ratios[key].numerator), put(ratios[key].denominator))
            for key in sorted(ratios)
        )
        return cls({name: jnp.concatenate(same) for name, same in flat.items()}, places)

    def ratios(self) -> dict[Any, Ratio]:
        """Return the ratios in double precision, waiting for the device if need be.

        Returns:
          Ratios by key, as `Ratio.host` returns them.
        """
        fetched = jax.device_get(self.vectors)

        def taken(place: _Place) -> Any:
            name, start, shape = place
            if not shape:
                return float(fetched[name][start])
            return fetched[name][start : start + math.prod(shape)].astype(float).reshape(shape)

        return {key: Ratio(*map(taken, parts)) for key, *parts in self.places}
