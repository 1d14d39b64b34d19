"""The points of a grid over a space, in order; every one is handed out once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from luthier.sweep.space.dimensions import Choice, Stored
from luthier.sweep.space.space import Space, sub_prefix


@dataclasses.dataclass(frozen=True)
class Grid:
    """A sampler that goes through all combinations; the last dimension moves first.

    Optuna's own grid stops its study from within, which a driver that asks and tells cannot have.

    Args:
      resolution: Points of every continuous range, the ends among them.
    """

    resolution: int = 5

    RANGES: ClassVar[dict[str, str]] = {"resolution": "1 <= x"}


def grid_points(space: Space, resolution: int, prefix: str = "") -> Iterator[dict[str, Stored]]:
    """Yield the assignment of every point; an option's own space is gone through below it.

    Args:
      space: What may be chosen.
      resolution: Points of every continuous range.
      prefix: What stands before the names.
    """
    yield from _points(list(space.dimensions.items()), resolution, prefix)


def num_points(space: Space, resolution: int) -> int:
    """Return how many points a grid has.

    Args:
      space: What may be chosen.
      resolution: Points of every continuous range.
    """
    product = 1
    for dimension in space.dimensions.values():
        count = 0
        for stored in dimension.points(resolution):
            option = dimension.value(stored) if isinstance(dimension, Choice) else None
            inner = None if option is None else option.space
            count += 1 if inner is None else num_points(inner, resolution)
        product *= count
    return product


def _points(rest: list, resolution: int, prefix: str) -> Iterator[dict[str, Stored]]:
    if not rest:
        yield {}
        return
    key, dimension = rest[0]
    for stored in dimension.points(resolution):
        here = {prefix + key: stored}
        below: list[dict[str, Stored]] = [{}]
        if isinstance(dimension, Choice):
            option = dimension.value(stored)
            if option.space is not None:
                inside = sub_prefix(prefix + key, option)
                below = list(grid_points(option.space, resolution, inside))
        for inner in below:
            for others in _points(rest[1:], resolution, prefix):
                yield {**here, **inner, **others}
