"""Which component a row of a mixture is from: a pure function of its position.

K components, P = 65,536 rows in a period.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from luthier.data.order import Order
from luthier.errors import DataError, Problem

PERIOD = 1 << 16


@dataclasses.dataclass(frozen=True)
class Stage:
    """Part of training with weights of its own: a step of a curriculum.

    For a part that begins at a fraction of the run, let `start_step` be computed in the graph from
    the number of steps, as `floor_divide(multiply(steps, 6), 10)`.

    Args:
      weights: The share of rows of each component, up to a common factor; a component that is not
        named has none.
      start_step: The optimizer step at which the stage begins; the first stage begins at 0.
    """

    weights: Mapping[str, float]
    start_step: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A period of rows in which every component has its quota, spread evenly.

    The j-th of the q rows of a component would ideally stand at place P (j + 1/2) / q. Rows stand
    in the order of their ideal places, so that the first n rows have n q / P rows of a component
    up to about one, and (K - 1) / 2 times the share at the most.

    Args:
      quotas: The rows of each component in a period, int64 [K].
      components: Whose row stands at a place, int64 [P].
      occurrences: The how-manieth of its component it is, from 0, int64 [P].
    """

    quotas: np.ndarray
    components: np.ndarray
    occurrences: np.ndarray

    def counts(self, length: int) -> np.ndarray:
        """Return the rows of each component among the first `length`; int64 [K]."""
        periods, rest = divmod(length, PERIOD)
        part = np.bincount(self.components[:rest], minlength=len(self.quotas))
        return periods * self.quotas + part

    def length_of(self, component: int, count: int) -> int:
        """Return the shortest run from the start that has `count` >= 1 rows of a component."""
        periods, rest = divmod(count - 1, int(self.quotas[component]))
        places = np.flatnonzero(self.components == component)
        return periods * PERIOD + int(places[rest]) + 1


@functools.lru_cache(maxsize=64)
def table(weights: tuple[float, ...]) -> Table:
    """Return a period with shares as near to the weights as P rows allow.

    Args:
      weights: One for each component, not negative; a positive one gets a row at least.
    """
    shares = np.array(weights, np.float64) * (PERIOD / math.fsum(weights))
    quotas = np.floor(shares).astype(np.int64)
    short = PERIOD - int(quotas.sum())
    quotas[np.argsort(quotas - shares, kind="stable")[:short]] += 1
    starved = (quotas == 0) & (shares > 0)
    quotas[starved] = 1
    quotas[np.argmax(quotas)] -= int(starved.sum())
    components = np.repeat(np.arange(len(quotas)), quotas)
    occurrences = np.concatenate([np.arange(quota) for quota in quotas])
    places = (2 * occurrences + 1) / (2 * quotas[components])
    order = np.lexsort((components, places))
    return Table(quotas, components[order], occurrences[order])


@dataclasses.dataclass(frozen=True, eq=False)
class _Segment:
    """A run of rows with the same weights, and how many rows each component gave before it."""

    start: int
    before: np.ndarray
    table: Table


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed:
    """The order of a mixture: at each position, a component and its next row.

    A component's rows come in its own order, so none comes twice before all have come. One that
    has given all that its limit allows leaves its share to the others, in proportion.

    Args:
      seed: Of the mixture.
      orders: The order of each component's rows.
      num_rows: The rows of each component.
      limits: The rows that each component may give in all; None for no limit.
      stages: The first position of each stage, from 0, and its weights.
    """

    seed: int
    orders: Sequence[Order]
    num_rows: Sequence[int]
    limits: Sequence[int | None]
    stages: Sequence[tuple[int, tuple[float, ...]]]

    @functools.cached_property
    def _segments(self) -> tuple[list[_Segment], int | None]:
        """Return the runs of equal weights, and the position at which nothing is left, or None."""
        before = np.zeros(len(self.orders), np.int64)
        segments: list[_Segment] = []
        start, number = 0, 0
        while True:
            while number + 1 < len(self.stages) and self.stages[number + 1][0] <= start:
                number += 1
            left = [
                None if limit is None else limit - int(given)
                for limit, given in zip(self.limits, before, strict=True)
            ]
            weights = tuple(
                0.0 if rest == 0 else float(weight)
                for weight, rest in zip(self.stages[number][1], left, strict=True)
            )
            if not any(weights):
                return segments, start
            here = table(weights)
            segments.append(_Segment(start, before, here))
            lengths = [
                here.length_of(k, rest)
                for k, (rest, weight) in enumerate(zip(left, weights, strict=True))
                if rest is not None and weight
            ]
            if number + 1 < len(self.stages):
                lengths.append(self.stages[number + 1][0] - start)
            if not lengths:
                return segments, None
            before = before + here.counts(min(lengths))
            start += min(lengths)

    @functools.cached_property
    def rule(self) -> str:
        """A fingerprint of weights, stages, limits and the components' own rules."""
        rules = [order.rule for order in self.orders]
        text = repr((PERIOD, list(self.num_rows), list(self.limits), list(self.stages), rules))
        return "-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def counts(self, length: int) -> np.ndarray:
        """Return the rows of each component among the first `length`, or all of them; int64 [K]."""
        segments, end = self._segments
        length = length if end is None else min(length, end)
        last = max((s for s in segments if s.start <= length), key=lambda s: s.start)
        return last.before + last.table.counts(length - last.start)

    def components(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whose row stands at each position, and how many of its rows came before.

        Args:
          positions: Positions of the order, int64 [n].

        Returns:
          Components in 0..K - 1 and occurrences from 0, both int64 [n].

        Raises:
          DataError: when no component has rows left at a position.
        """
        positions = np.asarray(positions, np.int64)
        segments, end = self._segments
        if end is not None and positions.size and positions.max() >= end:
            what = f"the mixture ends after {end} rows: every component with weight is used up"
            remedy = "train for fewer steps, or allow more epochs with `max_epochs`"
            raise DataError(Problem(what, remedy=remedy))
        starts = np.array([segment.start for segment in segments])
        numbers = np.searchsorted(starts, positions, side="right") - 1
        components = np.empty(len(positions), np.int64)
        occurrences = np.empty(len(positions), np.int64)
        for number in np.unique(numbers):
            here, segment = numbers == number, segments[number]
            periods, places = np.divmod(positions[here] - segment.start, PERIOD)
            whose = segment.table.components[places]
            components[here] = whose
            occurrences[here] = (
                segment.before[whose]
                + periods * segment.table.quotas[whose]
                + segment.table.occurrences[places]
            )
        return components, occurrences

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows, numbered through all components, and their epochs, int64 [n]."""
        components, occurrences = self.components(positions)
        rows, epochs = np.empty_like(occurrences), np.empty_like(occurrences)
        first_rows = np.cumsum([0, *self.num_rows])
        for component in np.unique(components):
            here = components == component
            own, epochs[here] = self.orders[component](occurrences[here])
            rows[here] = first_rows[component] + own
        return rows, epochs


def component_seed(seed: int, name: str) -> int:
    """Return the seed of a component's order, which no other component changes."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
