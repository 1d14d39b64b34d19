"""Mixtures: the component of each row is a pure function of its position in the global order.

K components, P = 65,536 rows in a period.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.data.node import DataNode
from luthier.data.order import Order, Visit
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.errors import DataError, Problem

if TYPE_CHECKING:
    from luthier.data.loader import Batch
    from luthier.data.order import Rows


# Shares are realised to within one row in so many; a period takes a megabyte.
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
class Period:
    """A period of rows in which every component has its quota, spread evenly.

    The ideal place of the j-th of the q rows of a component is P (j + 1/2) / q. Rows are sorted by
    their ideal places, so that the first n rows have n q / P rows of a component up to about one,
    and (K - 1) / 2 times the share at the most.

    Args:
      quotas: The rows of each component in a period, int64 [K].
      components: The component of the row at each place, int64 [P].
      occurrences: Its number among the rows of that component, from 0, int64 [P].
    """

    # Sampling a component for each row would need a random number for each, would give shares only
    # up to its noise (sqrt(n) rows after n), and could not tell without a scan how often a
    # component has come before a position. A period answers that by a division and a look-up.

    quotas: np.ndarray
    components: np.ndarray
    occurrences: np.ndarray

    def counts(self, length: int) -> np.ndarray:
        """Return the rows of each component among the first `length`; int64 [K]."""
        periods, rest = divmod(length, PERIOD)
        part = np.bincount(self.components[:rest], minlength=len(self.quotas))
        return periods * self.quotas + part

    # The inverse of `counts`: whole periods first, then the place of the rest within one.
    def length_of(self, component: int, count: int) -> int:
        """Return the shortest run from the start that has `count` >= 1 rows of a component."""
        periods, rest = divmod(count - 1, int(self.quotas[component]))
        places = np.flatnonzero(self.components == component)
        return periods * PERIOD + int(places[rest]) + 1


@functools.lru_cache(maxsize=64)
def period_of(weights: tuple[float, ...]) -> Period:
    """Return a period with shares as close to the weights as P rows allow.

    Args:
      weights: One for each component, not negative; a positive one gets a row at least.
    """
    # Largest-remainder apportionment of P rows, then an even spread of each component's rows.
    # Cached by the weights: descriptions and the segments of an order ask for the same periods.
    shares = np.array(weights, np.float64) * (PERIOD / math.fsum(weights))
    quotas = np.floor(shares).astype(np.int64)
    short = PERIOD - int(quotas.sum())
    # Largest remainders get the rows that rounding down has left; a stable sort decides ties alike
    # everywhere.
    quotas[np.argsort(quotas - shares, kind="stable")[:short]] += 1
    # A component with a tiny weight would never come at all; the largest gives up a row for it.
    starved = (quotas == 0) & (shares > 0)
    quotas[starved] = 1
    quotas[np.argmax(quotas)] -= int(starved.sum())
    components = np.repeat(np.arange(len(quotas)), quotas)
    occurrences = np.concatenate([np.arange(quota) for quota in quotas])
    places = (2 * occurrences + 1) / (2 * quotas[components])
    # Ties by the component's number, so that the period is the same on every machine.
    order = np.lexsort((components, places))
    return Period(quotas, components[order], occurrences[order])


@dataclasses.dataclass(frozen=True, eq=False)
class _Segment:
    """A run of rows with the same weights, and how many rows each component gave before it."""

    start: int
    before: np.ndarray
    period: Period


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed:
    """The order of a mixture: at each position, a component and its next row.

    A component's rows come in its own order, so none comes twice before all have come. One that
    has given all that its limit allows leaves its share to the others, in proportion.

    Args:
      seed: Seed of the mixture.
      orders: The order of each component's rows.
      num_rows: The rows of each component.
      limits: The total rows that each component may give; None for no limit.
      stages: The first position of each stage, from 0, and its weights.
    """

    # Position -> (component, its n-th row) by the periods, then -> row by the component's order. No
    # step depends on the one before, so resuming, and any number of processes, need no state. A
    # counter per component in the iterator would have to be saved, and would differ by process.
    seed: int
    orders: Sequence[Order]
    num_rows: Sequence[int]
    limits: Sequence[int | None]
    stages: Sequence[tuple[int, tuple[float, ...]]]

    @functools.cached_property
    def _segments(self) -> tuple[list[_Segment], int | None]:
        """Return the runs of equal weights, and the position at which nothing is left, or None."""
        # Positions are cut where the weights change: at the start of a stage, and where a component
        # reaches its limit, after which its share is divided among the others. Each cut takes the
        # shortest run until one of these happens, counted exactly by the periods, so that there are
        # few segments however long the training.
        before = np.zeros(len(self.orders), np.int64)
        segments: list[_Segment] = []
        start, number = 0, 0
        while True:
            while number + 1 < len(self.stages) and self.stages[number + 1][0] <= start:
                number += 1
            left = [
                None if limit is None else limit - int(used)
                for limit, used in zip(self.limits, before, strict=True)
            ]
            weights = tuple(
                # A component at its limit drops out; `period_of` divides by the sum of the rest.
                0.0 if rest == 0 else float(weight)
                for weight, rest in zip(self.stages[number][1], left, strict=True)
            )
            # The order ends here, even if a later stage weighs other components: no row could take
            # the positions until then.
            if not any(weights):
                return segments, start
            here = period_of(weights)
            segments.append(_Segment(start, before, here))
            # The run ends where the first of the limited components has given its last row, or
            # where the next stage begins; a component without weight never gets there.
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
        # It is part of the iterator's state: a resume with other weights or stages is refused,
        # because positions would mean other rows.
        return "-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def counts(self, length: int) -> np.ndarray:
        """Return the rows of each component among the first `length`, or all of them; int64 [K]."""
        segments, end = self._segments
        length = length if end is None else min(length, end)
        last = max((s for s in segments if s.start <= length), key=lambda s: s.start)
        return last.before + last.period.counts(length - last.start)

    def components(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the component at each position, and how many of its rows came before.

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
        # Positions of one batch lie in one or two segments; all of them are looked up at once.
        numbers = np.searchsorted(starts, positions, side="right") - 1
        components = np.empty(len(positions), np.int64)
        occurrences = np.empty(len(positions), np.int64)
        for number in np.unique(numbers):
            here, segment = numbers == number, segments[number]
            periods, places = np.divmod(positions[here] - segment.start, PERIOD)
            whose = segment.period.components[places]
            components[here] = whose
            occurrences[here] = (
                segment.before[whose]
                + periods * segment.period.quotas[whose]
                + segment.period.occurrences[places]
            )
        return components, occurrences

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows, numbered through all components, and their epochs, int64 [n]."""
        components, occurrences = self.components(positions)
        # Rows of all components share one numbering, component after component, so that everything
        # after this sees a single set of rows (`MixedRows`). Epochs are the component's own: a
        # small one is in its third while a large one is in its first.
        rows, epochs = np.empty_like(occurrences), np.empty_like(occurrences)
        first_rows = np.cumsum([0, *self.num_rows])
        for component in np.unique(components):
            here = components == component
            own, epochs[here] = self.orders[component](occurrences[here])
            rows[here] = first_rows[component] + own
        return rows, epochs


def component_seed(seed: int, name: str) -> int:
    """Return the seed of a component's order, which does not depend on the other components."""
    # By name and not by number: adding a component leaves the order of the others as it was.
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# Several data nodes as one, each with its share of the rows.

ID_ENTRIES = ("documents", "examples")
_MAX_ID = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class MixedRows:
    """The rows of all components, one component after another.

    Args:
      components: The rows of each component by name.
    """

    components: Mapping[str, Rows]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([rows.num_rows for rows in self.components.values()])

    @property
    def num_rows(self) -> int:
        """The rows of all components."""
        return int(self._ends[-1])

    @property
    def num_examples(self) -> int:
        """The largest number among `documents` and `examples`."""
        return sum(rows.num_examples for rows in self.components.values())

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        parts = [(name, rows.num_rows, rows.digest) for name, rows in self.components.items()]
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` has an effect on a component."""
        return any(getattr(rows, "reads_ahead", False) for rows in self.components.values())

    def prefetch(self, rows: np.ndarray) -> bool:
        """Begin to read rows that will be wanted soon, of the components in object stores.

        Args:
          rows: As of `gather`.

        Returns:
          Whether there was room for all of them.
        """
        has_room = True
        numbers = np.where(rows >= 0, np.searchsorted(self._ends, rows, side="right"), -1)
        for number, component in enumerate(self.components.values()):
            here = rows[numbers == number]
            if here.size and getattr(component, "reads_ahead", False):
                reader: Any = component
                has_room &= reader.prefetch(here - (self._ends[number] - component.num_rows))
        return has_room

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> Batch:
        """Assemble rows; `documents` and `examples` are numbered through all components.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: In training, what random augmentation draws from; None in evaluation.

        Returns:
          The entries of the components.
        """
        # Each component assembles its own rows in one call, and they are put at their places: a
        # batch has as many calls as it has components, not rows. -1 sorts as padding, whose places
        # stay 0.
        batch: Batch = {}
        numbers = np.where(rows >= 0, np.searchsorted(self._ends, rows, side="right"), -1)
        first_id = 0
        for number, (name, component) in enumerate(self.components.items()):
            here = np.flatnonzero(numbers == number)
            # The last component answers for a batch of nothing but padding, whose entries are
            # needed all the same.
            if here.size or (not batch and number == len(self.components) - 1):
                own = rows[here] - (self._ends[number] - component.num_rows)
                # A component draws the same random numbers as it would by itself under that seed.
                seen = visit and Visit(visit.epochs[here], component_seed(visit.seed, name))
                for entry, values in component.gather(own, seen).items():
                    if entry in ID_ENTRIES:
                        values = np.where(values > 0, _renumbered(values, first_id), 0)
                    if entry not in batch:
                        batch[entry] = np.zeros((len(rows), *values.shape[1:]), values.dtype)
                    batch[entry][here] = values
            # Numbers of examples run through all components, so that metrics per document do not
            # mix those of two.
            first_id += component.num_examples
        return batch


def _renumbered(ids: np.ndarray, first: int) -> np.ndarray:
    """Return the numbers in the whole mixture; beyond 31 bits they begin again at 1."""
    return ((ids.astype(np.int64) + first - 1) % _MAX_ID + 1).astype(ids.dtype)


@dataclasses.dataclass(frozen=True)
class Mixture(DataNode):
    """Rows of several data nodes, in shares that may change during training.

    Which component a row is from is a function of its position in the global order alone: any run
    of rows has the shares of its stage up to a row or two, and resuming and the number of hosts
    change nothing. Each component's rows come shuffled and without replacement, epoch after epoch.
    Evaluation sees every row of every component once.

    Args:
      components: The data nodes by name; all have the same batch entries and shapes.
      stages: Stages of training, each with its weights and its first step; the first stage begins
        at step 0.
      max_epochs: Maximum number of epochs of a component, by name; one that has reached it leaves
        its share to the others. A component that is not named has no limit.

    Raises:
      DataError: at first use, when components differ in their entries, or stages or limits name
        components that do not exist, have no weight, or are out of order; in training, when every
        component is used up.

    Example:
      >>> from luthier import data
      >>> texts = {"plays": b"to be, or not to be", "notes": b"that is the question"}
      >>> parts = {
      ...     name: data.Packed(data.Documents([text]), data.Bytes(), 4, data.Concatenate())
      ...     for name, text in texts.items()
      ... }
      >>> mixture = data.Mixture(parts, [data.Stage({"plays": 0.75, "notes": 0.25})])
      >>> mixture.num_rows
      11
    """

    components: Mapping[str, DataNode]
    stages: Sequence[Stage]
    max_epochs: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"a mixture of {', '.join(self.components)} has {self.num_rows} rows"

    @functools.cached_property
    def rows(self) -> MixedRows:
        """The rows of all components; reads the data."""
        _raise(self._settings())
        return MixedRows({name: node.rows for name, node in self.components.items()})

    @property
    def tokens_per_row(self) -> int:
        """The most targets that a row can have."""
        return max(node.tokens_per_row for node in self.components.values())

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of all components, or None where they differ or have none."""
        tokenizers = [getattr(node, "tokenizer", None) for node in self.components.values()]
        same = bool(tokenizers) and all(other == tokenizers[0] for other in tokenizers)
        return tokenizers[0] if same else None

    def batch_spec(self, global_batch_size: int) -> Mapping[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape and dtype of every entry of the global batch; no data is read.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          Global shape and dtype of every entry.
        """
        _raise(self._settings())
        return next(iter(self.components.values())).batch_spec(global_batch_size)

    def problems(self, global_batch_size: int) -> list[Problem]:
        """Return the problems of training on this data in batches of this size.

        Args:
          global_batch_size: The rows of all processes together.

        Returns:
          The problems; none if training can start.
        """
        return self._settings() or [
            Problem(f"component {name!r} has no rows", remedy="add data, or leave it out")
            for name, node in self.components.items()
            if not node.num_rows
        ]

    def order(self, *, seed: int, global_batch_size: int) -> Mixed:
        """Return the order of rows in training.

        Args:
          seed: Seed of the order; any integer.
          global_batch_size: The rows of a step: stages begin at steps.

        Returns:
          A function from positions to rows and epochs.
        """
        # Steps become positions here, once: the order itself knows rows only. A component gets a
        # seed of its own by its name, and the limit of epochs is rounded up to whole rows, so that
        # a small fraction of an epoch still allows one row.
        names = list(self.components)
        sizes = [self.components[name].num_rows for name in names]
        return Mixed(
            seed,
            [
                self.components[name].order(
                    seed=component_seed(seed, name), global_batch_size=global_batch_size
                )
                for name in names
            ],
            sizes,
            [
                math.ceil(self.max_epochs[name] * size) if name in self.max_epochs else None
                for name, size in zip(names, sizes, strict=True)
            ],
            [
                (
                    stage.start_step * global_batch_size,
                    tuple(float(stage.weights.get(name, 0.0)) for name in names),
                )
                for stage in self.stages
            ],
        )

    def describe(self) -> dict[str, Any]:
        """Return the size of every component and its share in every stage.

        Returns:
          `rows`, and `components` by name: the description of each, and `shares`, its fraction of
          the rows in each stage.
        """
        order = self.order(seed=0, global_batch_size=1)
        shares = [
            period_of(weights).quotas / period_of(weights).quotas.sum()
            for _, weights in order.stages
        ]
        return {
            "rows": self.num_rows,
            "components": {
                name: {**node.describe(), "shares": [float(share[k]) for share in shares]}
                for k, (name, node) in enumerate(self.components.items())
            },
        }

    def _settings(self) -> list[Problem]:
        """Return the problems of the settings, without reading data."""
        # All of them at once. Not in the constructor: a config is edited node by node, and weights
        # may be tracers in a sweep. What depends on sizes is in `problems`, which reads data. Only
        # what is missing as a whole returns at once, since the other checks look into it.
        if not self.components or not self.stages:
            missing = "components" if not self.components else "stages"
            return [Problem(f"a mixture without {missing}", remedy="give it one or more")]
        specs = {name: dict(node.batch_spec(1)) for name, node in self.components.items()}
        first, *others = specs
        # Each against the first only: equality of specs carries over to all others.
        problems = [
            Problem(
                f"components {first!r} and {name!r} have different batch entries or shapes",
                remedy="give them the same kind of data and the same sizes",
            )
            for name in others
            if specs[name] != specs[first]
        ]
        # An inner mixture counts its own positions, not steps of the run, so that its stages would
        # begin later than they say.
        problems += [
            Problem(f"component {name!r} is itself a mixture with several stages")
            for name, node in self.components.items()
            if isinstance(node, Mixture) and len(node.stages) > 1
        ]
        # Their rows would be seen twice as often as the weights say, which is hardly ever meant.
        problems += [
            Problem(
                f"components {one!r} and {other!r} are the same data",
                remedy="leave one out and add up their weights, or give it another seed or source",
            )
            for one, other in itertools.combinations(self.components, 2)
            if self.components[one] == self.components[other]
        ]
        known = "its components are " + ", ".join(self.components)
        starts = [stage.start_step for stage in self.stages]
        if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
            what = f"stages begin at steps {', '.join(map(str, starts))}"
            remedy = "start the first stage at 0, and each later one after the one before it"
            problems.append(Problem(what, remedy=remedy))
        for number, stage in enumerate(self.stages):
            problems += [
                Problem(f"stage {number} weighs {name!r}, which is not a component", remedy=known)
                for name in stage.weights
                if name not in self.components
            ]
            weights = list(stage.weights.values())
            if not all(math.isfinite(w) and w >= 0 for w in weights) or not sum(weights):
                what = f"stage {number} has weights {weights}"
                problems.append(
                    Problem(what, remedy="give finite weights of at least 0, not all 0")
                )
        for name, epochs in self.max_epochs.items():
            if name not in self.components:
                what = f"max_epochs names {name!r}, which is not a component"
                problems.append(Problem(what, remedy=known))
            elif not (math.isfinite(epochs) and epochs > 0):
                what = f"max_epochs of {name!r} is {epochs}"
                remedy = "give a finite number above 0, or leave it out of max_epochs for no limit"
                problems.append(Problem(what, remedy=remedy))
        return problems


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise DataError(problems)
