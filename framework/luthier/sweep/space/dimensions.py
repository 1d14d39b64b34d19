"""What a study may choose at one path: a range, an ordered list, or one of several options.

A choice is stored as a primitive: the number itself, the exponent of a power of two, or the index
of a value. So samplers see order where there is one, and any value of a graph can be chosen.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Stored = int | float


class Dimension(Protocol):
    """One thing that is chosen; a class of your own may be one."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""

    def value(self, stored: Stored) -> Any:
        """Return what is set in the graph for a stored choice."""

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show, put into the graph, whether all of them fit there."""

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid.

        Args:
          resolution: How many there are of what is continuous.
        """


def _range_problems(low: Any, high: Any, kinds: tuple[type, ...]) -> Iterator[str]:
    for end in (low, high):
        if type(end) not in kinds or not math.isfinite(end):
            wanted = "a whole number" if kinds == (int,) else "a finite number"
            yield f"{end!r} is not {wanted}"
            return
    if low >= high:
        yield f"{low!r} is not below {high!r}"


@dataclasses.dataclass(frozen=True)
class Log:
    """A number whose logarithm is spread evenly.

    Args:
      low: The least, above zero.
      high: The greatest.
    """

    low: float
    high: float

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        yield from _range_problems(self.low, self.high, (int, float))
        if isinstance(self.low, int | float) and self.low <= 0:
            yield f"a logarithmic range begins above zero, not at {self.low!r}"

    def value(self, stored: Stored) -> float:
        """Return what is set in the graph for a stored choice."""
        return float(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return what is stored for a value of the graph; None where the range has it not."""
        is_number = type(value) in (int, float)
        return float(value) if is_number and self.low <= value <= self.high else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit."""
        return float(self.low), math.sqrt(self.low * self.high) * (1 + 1e-9), float(self.high)

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid with `resolution` points."""
        if resolution == 1:
            return (math.sqrt(self.low * self.high),)
        ratio = self.high / self.low
        inner = [self.low * ratio ** (i / (resolution - 1)) for i in range(1, resolution - 1)]
        return float(self.low), *inner, float(self.high)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A number, spread evenly.

    Args:
      low: The least.
      high: The greatest.
    """

    low: float
    high: float

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        yield from _range_problems(self.low, self.high, (int, float))

    def value(self, stored: Stored) -> float:
        """Return what is set in the graph for a stored choice."""
        return float(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return what is stored for a value of the graph; None where the range has it not."""
        is_number = type(value) in (int, float)
        return float(value) if is_number and self.low <= value <= self.high else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit."""
        low, high = float(self.low), float(self.high)
        return low, low + (high - low) / math.pi, high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid with `resolution` points."""
        low, high = float(self.low), float(self.high)
        if resolution == 1:
            return ((low + high) / 2,)
        return *(low + (high - low) * i / (resolution - 1) for i in range(resolution - 1)), high


@dataclasses.dataclass(frozen=True)
class Int:
    """A whole number.

    Args:
      low: The least.
      high: The greatest.
      step: From one to the next.
    """

    low: int
    high: int
    step: int = 1

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        found = list(_range_problems(self.low, self.high, (int,)))
        yield from found
        if type(self.step) is not int or self.step < 1:
            yield f"the step {self.step!r} is not a whole number above zero"
        elif not found and (self.high - self.low) % self.step:
            last = self.high - (self.high - self.low) % self.step
            yield f"steps of {self.step} from {self.low} do not meet {self.high}, but {last}"

    def value(self, stored: Stored) -> int:
        """Return what is set in the graph for a stored choice."""
        return int(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return what is stored for a value of the graph; None where the range has it not."""
        is_number = type(value) is int and self.low <= value <= self.high
        return value if is_number and (value - self.low) % self.step == 0 else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit."""
        return self.low, self.high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return every stored choice, whatever the `resolution`."""
        del resolution
        return range(self.low, self.high + 1, self.step)


@dataclasses.dataclass(frozen=True)
class Pow2:
    """A power of two; its exponent is stored.

    Args:
      low: The least, a power of two.
      high: The greatest, a power of two.
    """

    low: int
    high: int

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        found = list(_range_problems(self.low, self.high, (int,)))
        yield from found
        for end in () if found else (self.low, self.high):
            if end < 1 or end & (end - 1):
                yield f"{end!r} is not a power of two"

    @property
    def exponents(self) -> range:
        """The stored choices."""
        return range(self.low.bit_length() - 1, self.high.bit_length())

    def value(self, stored: Stored) -> int:
        """Return what is set in the graph for a stored choice."""
        return 1 << int(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return what is stored for a value of the graph; None where the range has it not."""
        is_number = type(value) is int and self.low <= value <= self.high
        return value.bit_length() - 1 if is_number and not value & (value - 1) else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit."""
        return self.exponents[0], self.exponents[-1]

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return every stored choice, whatever the `resolution`."""
        del resolution
        return self.exponents


class _Listed(abc.ABC):
    """A dimension whose choices are written out one by one; the index is stored."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of choices."""

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit."""
        return range(len(self))

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return every stored choice, whatever the `resolution`."""
        del resolution
        return range(len(self))


@dataclasses.dataclass(frozen=True)
class Ordinal(_Listed):
    """One of several values that have an order; the index is stored.

    Args:
      values: The values, in their order; `Option`s where they are given in words.
    """

    values: Sequence[Any]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        if len(self.values) < 2:
            yield "an ordered list needs two values or more"

    def value(self, stored: Stored) -> Any:
        """Return what is set in the graph for a stored choice."""
        return self.values[int(stored)]

    def __len__(self) -> int:
        return len(self.values)


@dataclasses.dataclass(frozen=True)
class Option:
    """One of the options of a choice.

    Args:
      value: What is set at the path of the choice: a plain value or a node.
      words: Words of the override grammar that are applied instead: `fiddler:NAME(...)`, `a.b=3`.
      space: What else is chosen where this option is; a `Space`, or None.
      name: What people call it; without one, the value or the words.
    """

    value: Any = None
    words: Sequence[str] = ()
    space: Any = None
    name: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        if self.name or self.words:
            return self.name or " ".join(self.words)
        target = getattr(self.value, "__fn_or_cls__", self.value)
        plain = target is None or isinstance(target, bool | int | float | str | tuple | list)
        return str(target) if plain else getattr(target, "__name__", repr(target))


@dataclasses.dataclass(frozen=True)
class Choice(_Listed):
    """One of several options without an order; the index is stored.

    Args:
      options: Plain values, nodes, or `Option`s that carry words or a space of their own.
    """

    options: Sequence[Any]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        if len(self.options) < 2:
            yield "a choice needs two options or more"
        labels = [option.label for option in self.all_options]
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            yield f"two options are called {label!r}; give them names"

    @property
    def all_options(self) -> tuple[Option, ...]:
        """The options, plain values too, as `Option`s."""
        return tuple(o if isinstance(o, Option) else Option(o) for o in self.options)

    def value(self, stored: Stored) -> Option:
        """Return the option of a stored choice."""
        return self.all_options[int(stored)]

    def __len__(self) -> int:
        return len(self.options)


@dataclasses.dataclass(frozen=True)
class Zipped(_Listed):
    """One row of a table: values of several paths that are set together; the index is stored.

    Args:
      rows: Value by path, the same paths in every row.
    """

    rows: Sequence[Mapping[str, Any]]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        if not self.rows:
            yield "a table needs a row"
        for number, row in enumerate(self.rows, 1):
            if set(row) != set(self.rows[0]):
                yield f"row {number} sets {_listed(row)}, but row 1 {_listed(self.rows[0])}"

    def value(self, stored: Stored) -> Mapping[str, Any]:
        """Return the row of a stored choice."""
        return self.rows[int(stored)]

    def __len__(self) -> int:
        return len(self.rows)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "nothing"
