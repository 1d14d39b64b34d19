"""A space: dimensions by path, sub-spaces of options, and what must hold of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from luthier.sweep.space.dimensions import Choice, Dimension, Option, Stored, Zipped

Assignment = Mapping[str, Stored]
"""The stored choice of every dimension that takes part, by its name."""

Predicate = str | Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Space:
    """What a study may choose.

    Args:
      dimensions: What is chosen, by where: a path of the experiment, or a pattern of the override
        grammar (`any:dropout`, `tag:LearningRate`). A table of rows, and a choice of options that
        say all in words, may have any name.
      constraints: What must hold of a graph before it is run: conditions such as
        `model.dim % 64 == 0`, or functions of the graph.
    """

    dimensions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constraints: Sequence[Predicate] = ()

    @property
    def is_conditional(self) -> bool:
        """Whether some dimensions take part only where an option is chosen."""
        return any(named.depth for named in self.every())

    def every(self, prefix: str = "", depth: int = 0) -> Iterator[Named]:
        """Yield every dimension there can be, those of sub-spaces too."""
        for key, dimension in self.dimensions.items():
            yield Named(prefix + key, key, dimension, depth)
            for option in dimension.all_options if isinstance(dimension, Choice) else ():
                if option.space is not None:
                    inside = sub_prefix(prefix + key, option)
                    yield from option.space.every(inside, depth + 1)

    def choose(
        self, chooser: Callable[[str, Dimension], Stored | None], prefix: str = ""
    ) -> dict[str, Stored]:
        """Return the stored choices of all dimensions that take part.

        Args:
          chooser: Chooses for one dimension, given its name; None leaves it out.
          prefix: What stands before the names.
        """
        found: dict[str, Stored] = {}
        for key, dimension in self.dimensions.items():
            stored = chooser(prefix + key, dimension)
            if stored is None:
                continue
            found[prefix + key] = stored
            if isinstance(dimension, Choice):
                option = dimension.value(stored)
                if option.space is not None:
                    found |= option.space.choose(chooser, sub_prefix(prefix + key, option))
        return found

    def overrides(self, assignment: Assignment, prefix: str = "") -> list[str | tuple[str, Any]]:
        """Return what an assignment sets, for `graph.apply`.

        Args:
          assignment: Stored choices by name.
          prefix: What stands before the names.
        """
        found: list[str | tuple[str, Any]] = []
        for key, dimension in self.dimensions.items():
            if prefix + key not in assignment:
                continue
            value = dimension.value(assignment[prefix + key])
            found += settings(key, dimension, value)
            if isinstance(value, Option) and value.space is not None:
                found += value.space.overrides(assignment, sub_prefix(prefix + key, value))
        return found


@dataclasses.dataclass(frozen=True)
class Named:
    """A dimension with its names.

    Args:
      name: Its name in assignments: the path, behind the option that it is of
        (`optimizer=adafactor/optimizer.decay`).
      key: Where it sets.
      dimension: What is chosen.
      depth: How many options it depends on.
    """

    name: str
    key: str
    dimension: Any
    depth: int


def sub_prefix(name: str, option: Option) -> str:
    """Return what stands before the names of the dimensions that depend on an option."""
    return f"{name}={option.label}/"


def settings(key: str, dimension: Dimension, value: Any) -> list[str | tuple[str, Any]]:
    """Return the overrides that set one chosen value of a dimension at its `key`."""
    if isinstance(dimension, Zipped):
        return [setting(path, inside) for path, inside in value.items()]
    if isinstance(value, Option):
        return list(value.words) or [setting(key, value.value)]
    return [setting(key, value)]


def setting(key: str, value: Any) -> str | tuple[str, Any]:
    """Return the override that sets a value: as a word, where it can be written as one."""
    if value is None or type(value) in (bool, int, float, str):
        return f"{key}={value!r}"
    return key, value


def told(override: str | tuple[str, Any]) -> str:
    """Return an override in words, for people."""
    if isinstance(override, str):
        return override
    path, value = override
    target = getattr(value, "__fn_or_cls__", None)
    return f"{path}={value!r}" if target is None else f"{path}={Option(value).label}(...)"
