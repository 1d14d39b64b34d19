"""The search space of a study: dimensions over config paths, sub-spaces, and grids."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from luthier.errors import BadInput, Problem
from luthier.graph import load_module, nearest

# The choice at one path: a range, an ordered list, or one of several options.
#
# A choice is stored as a primitive: the number itself, the exponent of a power of two, or the index
# of a value. So samplers see order where there is one, and any value of a graph can be chosen.

Stored = int | float


class Dimension(Protocol):
    """A dimension of a search space; a class of your own may be one."""

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text."""

    def value(self, stored: Stored) -> Any:
        """Return the value in the graph for a stored choice."""

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
    """A number, uniform in its logarithm.

    Args:
      low: Lower endpoint of the range, inclusive and above zero.
      high: Upper endpoint of the range, inclusive.

    Example:
      >>> from luthier import study
      >>> study.Log(1e-4, 1e-2).points(3)
      (0.0001, 0.001, 0.01)
    """

    low: float
    high: float

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        yield from _range_problems(self.low, self.high, (int, float))
        if isinstance(self.low, int | float) and self.low <= 0:
            yield f"a logarithmic range begins above zero, not at {self.low!r}"

    def value(self, stored: Stored) -> float:
        """Return the value in the graph for a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          A float.
        """
        return float(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return the stored choice for a value of the graph; None outside of the range.

        Args:
          value: A value of the graph.

        Returns:
          The choice, or None.
        """
        is_number = type(value) in (int, float)
        return float(value) if is_number and self.low <= value <= self.high else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit.

        Returns:
          Choices at the ends of the range.
        """
        # In the middle a number that is not round: 10.0, of log(1, 100), would fit a whole number.
        return float(self.low), math.sqrt(self.low * self.high) * (1 + 1e-9), float(self.high)

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid with `resolution` points.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        if resolution == 1:
            return (math.sqrt(self.low * self.high),)
        ratio = self.high / self.low
        inner = [self.low * ratio ** (i / (resolution - 1)) for i in range(1, resolution - 1)]
        # The ends as they were given, and not as a power of their ratio, which may round past them.
        return float(self.low), *inner, float(self.high)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A number, uniform in a range.

    Args:
      low: Lower endpoint of the range, inclusive.
      high: Upper endpoint of the range, inclusive.

    Example:
      >>> from luthier import study
      >>> study.Uniform(0.0, 0.2).points(3)
      (0.0, 0.1, 0.2)
    """

    low: float
    high: float

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        yield from _range_problems(self.low, self.high, (int, float))

    def value(self, stored: Stored) -> float:
        """Return the value in the graph for a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          A float.
        """
        return float(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return the stored choice for a value of the graph; None outside of the range.

        Args:
          value: A value of the graph.

        Returns:
          The choice, or None.
        """
        is_number = type(value) in (int, float)
        return float(value) if is_number and self.low <= value <= self.high else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit.

        Returns:
          Choices at the ends of the range.
        """
        low, high = float(self.low), float(self.high)
        return low, low + (high - low) / math.pi, high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid with `resolution` points.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        low, high = float(self.low), float(self.high)
        if resolution == 1:
            return ((low + high) / 2,)
        return *(low + (high - low) * i / (resolution - 1) for i in range(resolution - 1)), high


@dataclasses.dataclass(frozen=True)
class Int:
    """A whole number.

    Args:
      low: Lower endpoint of the range, inclusive.
      high: Upper endpoint of the range, inclusive.
      step: Difference between neighbouring values.

    Example:
      >>> from luthier import study
      >>> study.Int(2, 8, step=2).points(10)
      range(2, 9, 2)
    """

    low: int
    high: int
    step: int = 1

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        found = list(_range_problems(self.low, self.high, (int,)))
        yield from found
        if type(self.step) is not int or self.step < 1:
            yield f"the step {self.step!r} is not a whole number above zero"
        elif not found and (self.high - self.low) % self.step:
            last = self.high - (self.high - self.low) % self.step
            yield f"steps of {self.step} from {self.low} do not meet {self.high}, but {last}"

    def value(self, stored: Stored) -> int:
        """Return the value in the graph for a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          An integer.
        """
        return int(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return the stored choice for a value of the graph; None outside of the range.

        Args:
          value: A value of the graph.

        Returns:
          The choice, or None.
        """
        is_number = type(value) is int and self.low <= value <= self.high
        return value if is_number and (value - self.low) % self.step == 0 else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit.

        Returns:
          Choices at the ends of the range.
        """
        return self.low, self.high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return every stored choice, whatever the `resolution`.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        del resolution
        return range(self.low, self.high + 1, self.step)


@dataclasses.dataclass(frozen=True)
class Pow2:
    """A power of two; its exponent is stored.

    Args:
      low: Lower endpoint of the range, a power of two, inclusive.
      high: Upper endpoint of the range, a power of two, inclusive.

    Example:
      >>> from luthier import study
      >>> dim = study.Pow2(64, 512)
      >>> [dim.value(stored) for stored in dim.points(10)]
      [64, 128, 256, 512]
    """

    low: int
    high: int

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
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
        """Return the value in the graph for a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          A power of two.
        """
        # An int by shifting: `2.0 ** stored` would be a float, which does not fit a setting that
        # wants a whole number.
        return 1 << int(stored)

    def stored(self, value: Any) -> Stored | None:
        """Return the stored choice for a value of the graph; None outside of the range.

        Args:
          value: A value of the graph.

        Returns:
          The choice, or None.
        """
        is_number = type(value) is int and self.low <= value <= self.high
        return value.bit_length() - 1 if is_number and not value & (value - 1) else None

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit.

        Returns:
          Choices at the ends of the range.
        """
        return self.exponents[0], self.exponents[-1]

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return every stored choice, whatever the `resolution`.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
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
      values: The values, in their order; `Option`s where they are written as overrides.

    Example:
      >>> from luthier import study
      >>> depth = study.Ordinal([2, 4, 8])
      >>> depth.value(1)
      4
    """

    values: Sequence[Any]

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        if len(self.values) < 2:
            yield "an ordered list needs two values or more"

    def value(self, stored: Stored) -> Any:
        """Return the value in the graph for a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          One of the values.
        """
        return self.values[int(stored)]

    def __len__(self) -> int:
        return len(self.values)


@dataclasses.dataclass(frozen=True)
class Option:
    """One of the options of a choice.

    Args:
      value: The value that is set at the path of the choice: a plain value or a node.
      overrides: Overrides that are applied instead: `fiddler:NAME(...)`, `a.b=3`.
      space: Search space of further choices that exist only with this option; a `Space`, or None.
      name: Label of the option; if empty, the value or the overrides.
    """

    value: Any = None
    overrides: Sequence[str] = ()
    space: Any = None
    name: str = ""

    @property
    def label(self) -> str:
        """Its name, in tables and messages."""
        if self.name or self.overrides:
            return self.name or " ".join(self.overrides)
        target = getattr(self.value, "__fn_or_cls__", self.value)
        # Labels become parts of names in journals (`sub_prefix`): a class goes by its name, because
        # its repr may differ between processes.
        plain = target is None or isinstance(target, bool | int | float | str | tuple | list)
        return str(target) if plain else getattr(target, "__name__", repr(target))


@dataclasses.dataclass(frozen=True)
class Choice(_Listed):
    """One of several options without an order; the index is stored.

    Args:
      options: Plain values, nodes, or `Option`s with overrides or a space of their own.
    """

    options: Sequence[Any]

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        if len(self.options) < 2:
            yield "a choice needs two options or more"
        if any(getattr(o, "__fn_or_cls__", None) is Option for o in self.options):
            # A `Choice` that is a plain object is a leaf of the config: nothing inside it is built,
            # and a Config of an option would be taken for the value itself.
            yield "a Config of Option is not built here; write Option(...) itself"
            return
        labels = [option.label for option in self.all_options]
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            # Names of sub-dimensions start with the label of their option: two alike would be one
            # dimension.
            yield f"two options are called {label!r}; give them names"

    @property
    def all_options(self) -> tuple[Option, ...]:
        """The options, plain values too, as `Option`s."""
        return tuple(o if isinstance(o, Option) else Option(o) for o in self.options)

    def value(self, stored: Stored) -> Option:
        """Return the option of a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          One of the options.
        """
        return self.all_options[int(stored)]

    def __len__(self) -> int:
        return len(self.options)


@dataclasses.dataclass(frozen=True)
class Zipped(_Listed):
    """One row of a table: values of several paths that are set together; the index is stored.

    Args:
      rows: Value by path, the same paths in every row.

    Example:
      >>> from luthier import study
      >>> table = study.Zipped([{"model.dim": 64, "seed": 0}, {"model.dim": 128, "seed": 1}])
      >>> table.value(1)
      {'model.dim': 128, 'seed': 1}
    """

    rows: Sequence[Mapping[str, Any]]

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        if not self.rows:
            yield "a table needs a row"
        for number, row in enumerate(self.rows, 1):
            if set(row) != set(self.rows[0]):
                yield f"row {number} sets {_listed(row)}, but row 1 {_listed(self.rows[0])}"

    def value(self, stored: Stored) -> Mapping[str, Any]:
        """Return the row of a stored choice.

        Args:
          stored: The choice, as the study stores it: a number.

        Returns:
          Values by path.
        """
        return self.rows[int(stored)]

    def __len__(self) -> int:
        return len(self.rows)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "nothing"


# A space: dimensions by path, sub-spaces of options, and what must hold of a graph.

Assignment = Mapping[str, Stored]
"""The stored choice of every dimension that takes part, by its name."""

Predicate = str | Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Space:
    """The search space of a study.

    Args:
      dimensions: The choices by location: a path of the experiment, or a pattern of the override
        grammar (`any:dropout`, `tag:LearningRate`). A table of rows, and a choice of options that
        consist of overrides only, may have any name.
      constraints: Conditions that a graph must meet before it is run: expressions such as
        `model.dim % 64 == 0`, or functions of the graph.

    Example:
      >>> from luthier import study
      >>> space = study.Space({"optimizer.b2": study.Uniform(0.9, 0.999)})
      >>> space.overrides({"optimizer.b2": 0.95})
      ['optimizer.b2=0.95']
    """

    dimensions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constraints: Sequence[Predicate] = ()

    @property
    def is_conditional(self) -> bool:
        """Whether some dimensions take part only where an option is chosen."""
        return any(named.depth for named in self.every())

    def every(self, prefix: str = "", depth: int = 0) -> Iterator[Named]:
        """Yield every dimension there can be, those of sub-spaces too.

        Args:
          prefix: The prefix of the names.
          depth: Number of options around these dimensions.

        Yields:
          The name of each dimension, and the dimension.
        """
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
          prefix: The prefix of the names.

        Returns:
          Choices by name.
        """
        found: dict[str, Stored] = {}
        for key, dimension in self.dimensions.items():
            stored = chooser(prefix + key, dimension)
            if stored is None:
                continue
            # The order of dimensions is that of the space, and that in which a sampler is asked:
            # both decide what a seeded sampler suggests.
            found[prefix + key] = stored
            if isinstance(dimension, Choice):
                option = dimension.value(stored)
                if option.space is not None:
                    found |= option.space.choose(chooser, sub_prefix(prefix + key, option))
        return found

    def overrides(self, assignment: Assignment, prefix: str = "") -> list[str | tuple[str, Any]]:
        """Return the overrides of an assignment, for `graph.apply`.

        Args:
          assignment: Stored choices by name.
          prefix: The prefix of the names.

        Returns:
          Overrides, in the order of the dimensions.
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
    """Return the prefix of the names of dimensions that depend on an option."""
    return f"{name}={option.label}/"


def settings(key: str, dimension: Dimension, value: Any) -> list[str | tuple[str, Any]]:
    """Return the overrides that set one chosen value of a dimension at its `key`."""
    if isinstance(dimension, Zipped):
        return [setting(path, inside) for path, inside in value.items()]
    if isinstance(value, Option):
        return list(value.overrides) or [setting(key, value.value)]
    return [setting(key, value)]


def setting(key: str, value: Any) -> str | tuple[str, Any]:
    """Return the override that sets a value: as text, where it can be written as text."""
    if value is None or type(value) in (bool, int, float, str):
        # `repr` of a float is the shortest text that reads back as the same number, so nothing is
        # lost in words.
        return f"{key}={value!r}"
    return key, value


def override_text(override: str | tuple[str, Any]) -> str:
    """Return an override as text, for display.

    Args:
      override: A statement, or a pair of a path and a value.

    Returns:
      The text; the arguments of a node are left out.

    Example:
      >>> from luthier import study
      >>> study.override_text(("optimizer.b2", 0.95))
      'optimizer.b2=0.95'
    """
    if isinstance(override, str):
        return override
    path, value = override
    target = getattr(value, "__fn_or_cls__", None)
    return f"{path}={value!r}" if target is None else f"{path}={Option(value).label}(...)"


# The points of a grid over a space, in order; every one is handed out once.


@dataclasses.dataclass(frozen=True)
class Grid:
    """A sampler of all combinations; the last dimension varies fastest.

    Optuna's `GridSampler` calls `Study.stop`, which needs `Study.optimize` and not ask-and-tell.

    Args:
      resolution: Number of points of every continuous range, including its endpoints.
    """

    resolution: int = 5

    RANGES: ClassVar[dict[str, str]] = {"resolution": "1 <= x"}


def grid_points(space: Space, resolution: int, prefix: str = "") -> Iterator[dict[str, Stored]]:
    """Yield the assignment of every point, with those of the options' own spaces.

    Args:
      space: The search space.
      resolution: Points of every continuous range.
      prefix: The prefix of the names.

    Yields:
      Values by name, the last dimension changing fastest; of options, their index.

    Example:
      >>> from luthier import study
      >>> space = study.parse_space(["model.dim=choice(64,128)", "seed=choice(0,1)"])
      >>> len(list(study.grid_points(space, resolution=2)))
      4
    """
    yield from _points(list(space.dimensions.items()), resolution, prefix)


def num_points(space: Space, resolution: int) -> int:
    """Return how many points a grid has.

    Args:
      space: The search space.
      resolution: Points of every continuous range.
    """
    # Counted without going through the points: a grid can have millions. A choice is a sum over its
    # options, each with the points of its own space.
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
        # Depth first: the points of an option's own space, then those of the dimensions that
        # follow. A generator, so that a large grid takes no memory.
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


# Named generators of settings: functions `sweep_NAME` beside an experiment, and their product.
#
# def sweep_lr():
#     for peak in (1e-3, 3e-3):
#         yield {"optimizer.learning_rate.peak": peak, "optimizer.weight_decay": 0.1}

_PREFIX = "sweep_"


def generate(module_name: str, names: Sequence[str]) -> dict[str, Zipped]:
    """Return the settings that generators of a module yield, as one table for each of them.

    Args:
      module_name: The module of the experiment.
      names: The generators, without `sweep_`.

    Returns:
      The rows of each generator, by its name.

    Raises:
      BadInput: There is none of a name, or it yields other objects than settings.
    """
    # Generators are plain functions beside the experiment: they may compute, loop and read files.
    # They are called once, here, and the study records the rows and not the function, so that
    # resuming needs no second call.
    module = load_module(module_name)
    known = {
        name.removeprefix(_PREFIX): found
        for name, found in vars(module).items()
        if name.startswith(_PREFIX) and inspect.isfunction(found)
    }
    problems: list[Problem] = []
    tables: dict[str, Zipped] = {}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            listed = ", ".join(known)
            remedy = f"there are {listed}" if known else f"define def {_PREFIX}{name}() there"
            what = f"{module_name} has no generator {name!r}"
            problems.append(Problem(what, remedy="" if near else remedy, nearest=near))
            continue
        # An exception of the generator passes through with its traceback: it is the user's code.
        rows = list(known[name]())
        # The table is made although a row is bad, so that problems of all generators are listed at
        # once.
        if bad := [row for row in rows if not _is_row(row)]:
            what = f"{module_name}:{_PREFIX}{name} yields {bad[0]!r}, no dict from paths to values"
            problems.append(Problem(what))
        tables[name] = Zipped(tuple(rows))
    if problems:
        raise BadInput(problems)
    return tables


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and bool(row) and all(isinstance(path, str) for path in row)
