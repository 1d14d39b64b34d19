"""The search space of a study: dimensions over config paths, sub-spaces, and grids."""

from __future__ import annotations

import abc
import dataclasses
import decimal
import inspect
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

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
    """A number, uniform in a range; with a `step`, one of evenly spaced numbers.

    Args:
      low: Lower endpoint of the range, inclusive.
      high: Upper endpoint of the range, inclusive.
      step: Difference between neighbouring values; None for any number.

    Example:
      >>> from luthier import study
      >>> study.Uniform(0.0, 0.2).points(3)
      (0.0, 0.1, 0.2)
      >>> study.Uniform(0.0, 0.3, step=0.1).points(2)
      (0.0, 0.1, 0.2, 0.3)
    """

    low: float
    high: float
    step: float | None = None

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        found = list(_range_problems(self.low, self.high, (int, float)))
        yield from found
        step = self.step
        if step is None:
            return
        if type(step) not in (int, float) or not math.isfinite(step) or step <= 0:
            yield f"the step {step!r} is not a number above zero"
        elif not found and not math.isclose(self.at(self.num_steps), self.high, rel_tol=1e-9):
            last = self.at(math.floor((self.high - self.low) / step))
            yield f"steps of {step} from {self.low} do not meet {self.high}, but {last}"

    @property
    def num_steps(self) -> int:
        """The number of steps from `low` to `high`; 0 without a step."""
        return 0 if self.step is None else round((self.high - self.low) / self.step)

    def at(self, index: int) -> float:
        """Return the value after so many steps.

        Args:
          index: The number of steps from `low`.

        Returns:
          A float, the nearest to the decimal number: 0.3 and not 0.1 + 0.2.
        """
        low, step = (decimal.Decimal(repr(float(x))) for x in (self.low, self.step or 0.0))
        return float(low + index * step)

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
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            return None
        if self.step is not None and self.at(round((value - self.low) / self.step)) != value:
            return None
        return float(value)

    def probes(self) -> Sequence[Stored]:
        """Return stored choices that show whether all of them fit.

        Returns:
          Choices at the ends of the range, and one inside.
        """
        low, high = float(self.low), float(self.high)
        return low, low + (high - low) / math.pi if self.step is None else self.at(1), high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid with `resolution` points; every one with a step.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        if self.step is not None:
            return tuple(self.at(index) for index in range(self.num_steps + 1))
        low, high = float(self.low), float(self.high)
        if resolution == 1:
            return ((low + high) / 2,)
        return *(low + (high - low) * i / (resolution - 1) for i in range(resolution - 1)), high


TAIL = 1e-6
"""Normal numbers are drawn between the quantiles `TAIL` and 1 - `TAIL`, at 4.75 deviations."""


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """A normal number: most values are near the mean.

    It is cut off 4.75 standard deviations away from the mean. Samplers see its quantile, which is
    uniform.

    Args:
      mean: The mean.
      std: The standard deviation, above zero.

    Example:
      >>> from luthier import study
      >>> study.Gaussian(1.0, 0.1).points(1)
      (1.0,)
    """

    mean: float
    std: float

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        for name, number in (("mean", self.mean), ("standard deviation", self.std)):
            if type(number) not in (int, float) or not math.isfinite(number):
                yield f"the {name} {number!r} is not a finite number"
                return
        if self.std <= 0:
            yield f"the standard deviation {self.std!r} is not above zero"

    @property
    def low(self) -> float:
        """The lowest value."""
        return self.quantile(TAIL)

    @property
    def high(self) -> float:
        """The highest value."""
        return self.quantile(1 - TAIL)

    def quantile(self, probability: float) -> float:
        """Return the value below which so much of the distribution is.

        Args:
          probability: Between 0 and 1.

        Returns:
          A float.
        """
        return statistics.NormalDist(self.mean, self.std).inv_cdf(probability)

    def probability(self, value: float) -> float:
        """Return how much of the distribution is below a value.

        Args:
          value: A value of the graph.

        Returns:
          A probability between `TAIL` and 1 - `TAIL`.
        """
        found = statistics.NormalDist(self.mean, self.std).cdf(value)
        return min(max(found, TAIL), 1 - TAIL)

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
          Choices at the ends of the range, and one inside that is not round.
        """
        return self.low, self.quantile(1 / math.pi), self.high

    def points(self, resolution: int) -> Sequence[Stored]:
        """Return the stored choices of a grid: the middles of `resolution` equally likely parts.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        return tuple(self.quantile((2 * i + 1) / (2 * resolution)) for i in range(resolution))


@dataclasses.dataclass(frozen=True)
class LogNormal(Gaussian):
    """A number above zero whose natural logarithm is normal.

    Args:
      mean: The mean of the logarithm; the median of the number is its exponential.
      std: The standard deviation of the logarithm, above zero.

    Example:
      >>> import math
      >>> from luthier import study
      >>> [round(x, 6) for x in study.LogNormal(math.log(1e-3), 1.0).points(1)]
      [0.001]
    """

    def problems(self) -> Iterator[str]:
        """Yield its problems, as text.

        Yields:
          A sentence for each problem.
        """
        found = list(super().problems())
        yield from found
        # The largest float is about exp(709).
        if not found and abs(self.mean) + 5 * self.std > 700:
            yield "the mean and the standard deviation are those of the logarithm, and too large"

    def quantile(self, probability: float) -> float:
        """Return the value below which so much of the distribution is.

        Args:
          probability: Between 0 and 1.

        Returns:
          A float above zero.
        """
        return math.exp(super().quantile(probability))

    def probability(self, value: float) -> float:
        """Return how much of the distribution is below a value.

        Args:
          value: A value of the graph, above zero.

        Returns:
          A probability between `TAIL` and 1 - `TAIL`.
        """
        return super().probability(math.log(value))


@dataclasses.dataclass(frozen=True)
class Int:
    """A whole number.

    Args:
      low: Lower endpoint of the range, inclusive.
      high: Upper endpoint of the range, inclusive.
      step: Difference between neighbouring values.
      log: Whether it is uniform in its logarithm; `low` is then 1 or more, and `step` 1.

    Example:
      >>> from luthier import study
      >>> study.Int(2, 8, step=2).points(10)
      range(2, 9, 2)
      >>> study.Int(1, 1000, log=True).points(4)
      (1, 10, 100, 1000)
    """

    low: int
    high: int
    step: int = 1
    log: bool = False

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
        if type(self.log) is not bool:
            yield f"log is true or false, not {self.log!r}"
        elif self.log and not found and self.low < 1:
            yield f"a logarithmic range begins above zero, not at {self.low!r}"
        elif self.log and self.step != 1:
            yield f"a logarithmic range has no step, and {self.step!r} was given"

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
        """Return every stored choice; of a logarithmic range `resolution` of them at most.

        Args:
          resolution: Points of every continuous range.

        Returns:
          Choices in ascending order.
        """
        if self.log:
            points = Log(self.low, self.high).points(resolution)
            return tuple(dict.fromkeys(round(point) for point in points))
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
      rows: Value by path, the same paths in every row; `Option`s where they are written as
        overrides.

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
class Constraint:
    """A bound on a number that a trial measures: `peak_bytes <= 8 GiB`.

    Args:
      quantity: The number; any objective. Its direction does not matter.
      bound: The bound, in the unit of the quantity.
      relation: `<=` or `>=`; the bound itself is feasible.

    Example:
      >>> from luthier import study
      >>> memory = study.Constraint(study.PeakBytes(), bound=8 * 2**30)
      >>> memory.name, memory.violation(10 * 2**30)
      ('peak_bytes<=8GiB', 0.25)
    """

    quantity: Any
    bound: float
    relation: Literal["<=", ">="] = "<="

    @property
    def name(self) -> str:
        """The constraint as text."""
        return f"{self.quantity.name}{self.relation}{self._bound}"

    @property
    def _bound(self) -> str:
        if self.quantity.name.endswith("_bytes"):
            for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
                if self.bound >= size:
                    return f"{self.bound / size:.12g}{unit}"
        return f"{self.bound:.12g}"

    def violation(self, value: float) -> float:
        """Return by how much a value violates it.

        Args:
          value: Of the quantity.

        Returns:
          The excess relative to the bound (absolute for a bound of 0), so that constraints in
          different units weigh alike for a sampler. Zero or below where it is met; infinity for
          NaN.
        """
        if math.isnan(value):
            return math.inf
        excess = value - self.bound if self.relation == "<=" else self.bound - value
        return excess / abs(self.bound) if self.bound else excess

    def check(self, evaluations: Any) -> list[Problem]:
        """Return its problems.

        Args:
          evaluations: Metrics by the name of the evaluation; None where unknown.

        Returns:
          The problems, with paths below this constraint.
        """
        found = [
            dataclasses.replace(problem, path=f"quantity.{problem.path}".rstrip("."))
            for problem in self.quantity.check(evaluations)
        ]
        if not math.isfinite(self.bound):
            found.append(Problem(f"{self.bound} is not a finite number", "bound"))
        return found


@dataclasses.dataclass(frozen=True)
class Space:
    """The search space of a study.

    Args:
      dimensions: The choices by location: a path of the experiment, or a pattern of the override
        grammar (`any:dropout`, `tag:LearningRate`). A table of rows, and a choice of options that
        consist of overrides only, may have any name.
      constraints: Conditions that a graph must meet before it is run: expressions such as
        `model.dim % 64 == 0`, or functions of the graph. A `Constraint` bounds what a trial
        measures: one that violates it is complete, but cannot be the best, and samplers learn by
        how much it does.

    Example:
      >>> from luthier import study
      >>> space = study.Space({"optimizer.b2": study.Uniform(0.9, 0.999)})
      >>> space.overrides({"optimizer.b2": 0.95})
      ['optimizer.b2=0.95']
    """

    dimensions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constraints: Sequence[Predicate | Constraint] = ()

    @property
    def predicates(self) -> tuple[Predicate, ...]:
        """The conditions of a graph, which are known before a trial runs."""
        return tuple(c for c in self.constraints if not isinstance(c, Constraint))

    @property
    def bounds(self) -> tuple[Constraint, ...]:
        """The constraints of what a trial measures."""
        return tuple(c for c in self.constraints if isinstance(c, Constraint))

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


def settings(key: str, dimension: Dimension | None, value: Any) -> list[str | tuple[str, Any]]:
    """Return the overrides that set one chosen value of a dimension at its `key`."""
    if isinstance(dimension, Zipped):
        return [one for path, inside in value.items() for one in settings(path, None, inside)]
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
