"""Schedulers of trials by rungs: a trial pauses at a rung, and the best of a rung are promoted.

A rung is a fraction of a trial's own full length. A trial that reaches one is compared there with
all trials that did: it continues, or it is saved, gives up its place and may be promoted later,
from its exact state. With `horizon="rung"`, a trial is trained from its first step to each of its
rungs instead, by a schedule that ends there. Schedulers know no training and no devices. `Rungs` is
folded from the lines of a study's journal, so that a resumed driver decides as the one before it.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from luthier.durations import Steps

if TYPE_CHECKING:  # it imports arrays, which views do without
    from luthier.metrics.metric import Direction


Horizon = Literal["full", "rung"]
"""The length that the schedules of a trial are planned for: its full length, or its next rung."""


class Scheduler(Protocol):
    """Decides which trials are promoted from a rung, and when."""

    waits: ClassVar[bool]
    """Whether a rung is decided only when every trial that can reach it has."""

    @property
    def reduction(self) -> int:
        """The best `1 / reduction` of a rung are promoted."""

    @property
    def num_rungs(self) -> int:
        """The number of rungs, the full length included."""

    @property
    def first(self) -> Steps | None:
        """The lowest rung; None for a fraction of the full length."""

    @property
    def horizon(self) -> Horizon:
        """The length that schedules are planned for."""


@dataclasses.dataclass(frozen=True)
class Asha:
    """Asynchronous successive halving with promotion from checkpoints.

    Rung k of K is at `reduction ** (k - K)` of a trial's full length: with the defaults at 1/27,
    1/9 and 1/3, and the last rung is the full length. A trial that reaches a rung among the best
    `1 / reduction` of those that have reached it so far continues at once; all others pause. A free
    place takes the best paused trial that is among the best of its rung by now, from the highest
    rung down, and a new suggestion where no trial can be promoted.

    When there is nothing left to suggest, every rung from which no trial was promoted promotes its
    best one, so that at least one trial reaches the full length. Trials that stay paused end as
    `pruned`.

    Source: Li et al., 2020, arXiv:1810.05934, algorithm 2. Deviation: a trial that is promotable
    when it reaches a rung keeps its place, where the paper gives that to the best promotable trial
    of all rungs; it saves a restart from a checkpoint.

    Args:
      reduction: The best `1 / reduction` of a rung are promoted.
      num_rungs: The number of rungs, the full length included.
      first: The lowest rung in optimizer steps, and each next one `reduction` times as high; None
        places all rungs as fractions of the full length.
      horizon: The length that the trial's schedules are planned for. `full`: the trial's own; a
        trial is trained once, and pauses at rungs. `rung`: the next rung; a trial is trained from
        its first step to each rung that it gets to, and no rung is compared before its schedule has
        ended. A trial that gets to rung k then takes the steps of all rungs up to k.

    Example:
      >>> from luthier import study
      >>> [round(f, 3) for f in study.rung_fractions(study.Asha())]
      [0.037, 0.111, 0.333, 1.0]
    """

    reduction: int = 3
    num_rungs: int = 4
    first: Steps | None = None
    horizon: Horizon = "full"

    waits: ClassVar[bool] = False
    RANGES: ClassVar[dict[str, str]] = {"reduction": "2 <= x", "num_rungs": "2 <= x"}


@dataclasses.dataclass(frozen=True)
class SuccessiveHalving:
    """Successive halving: a rung promotes its best trials when all have reached it.

    Rungs are those of `Asha`. Every trial pauses at each rung until the rung is full, so that which
    trials are promoted does not depend on the order in which they are trained. It needs a study of
    a known number of trials.

    Source: Jamieson and Talwalkar, 2016, arXiv:1502.07943.

    Args:
      reduction: The best `1 / reduction` of a rung are promoted, and at least one trial.
      num_rungs: The number of rungs, the full length included.
      first: The lowest rung in optimizer steps, and each next one `reduction` times as high; None
        places all rungs as fractions of the full length.
      horizon: The length that the trial's schedules are planned for, as for `Asha`.
    """

    reduction: int = 3
    num_rungs: int = 4
    first: Steps | None = None
    horizon: Horizon = "full"

    waits: ClassVar[bool] = True
    RANGES: ClassVar[dict[str, str]] = {"reduction": "2 <= x", "num_rungs": "2 <= x"}


def rung_fractions(scheduler: Scheduler, steps: int | None = None) -> list[float]:
    """Return the rungs of a scheduler as fractions of a trial's full length, rising to 1.

    Args:
      scheduler: The scheduler.
      steps: Optimizer steps of the trial, which a scheduler with `first` needs.

    Returns:
      A fraction for each rung; with `first`, rungs beyond the full length are left out.

    Example:
      >>> from luthier import durations, study
      >>> asha = study.Asha(reduction=2, num_rungs=4, first=durations.Steps(25))
      >>> study.rung_fractions(asha, steps=200)
      [0.125, 0.25, 0.5, 1.0]
    """
    reduction, below = scheduler.reduction, range(1, scheduler.num_rungs)
    if scheduler.first is None or steps is None:
        return [float(reduction) ** (k - scheduler.num_rungs) for k in below] + [1.0]
    fractions = [scheduler.first.count * reduction ** (k - 1) / steps for k in below]
    return [fraction for fraction in fractions if fraction < 1] + [1.0]


def reached_rung(scheduler: Scheduler, step: int, fraction: float) -> int:
    """Return the highest rung below the full length that a trial has reached, from 1.

    Args:
      scheduler: The scheduler.
      step: Optimizer steps of the trial.
      fraction: The part of its full length that it has trained.

    Returns:
      The number of the rung; 0 below the first, and at the full length, where there is nothing
      left to decide.

    Example:
      >>> from luthier import study
      >>> study.reached_rung(study.Asha(), step=40, fraction=0.2)
      2
    """
    if fraction >= 1:
        return 0
    if scheduler.first is not None:
        first, below = scheduler.first.count, range(1, scheduler.num_rungs)
        return bisect.bisect([first * scheduler.reduction ** (k - 1) for k in below], step)
    # A third of 600 steps is step 200, whatever the division leaves over.
    return bisect.bisect(rung_fractions(scheduler)[:-1], fraction * (1 + 1e-9))


_Key = tuple[float, int]
"""The value, lower is better, and the trial: the first one wins where values are equal."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Measured:
    """The device time of a trial at its highest rung.

    Args:
      fraction: What it has trained, of all that it trains up to its full length.
      spent: Device seconds so far.
      cost: Device seconds for the full length, at the rate from its rung before.
      next: What it trains to its next rung, of all.
    """

    fraction: float = 0.0
    spent: float = 0.0
    cost: float = 0.0
    next: float = 0.0


class _Rung:
    """The trials that have reached a rung, best first."""

    def __init__(self) -> None:
        self.reached: list[_Key] = []
        self.paused: list[_Key] = []
        # Trials that were promoted from here and have not failed since.
        self.num_promoted = 0


class Rungs:
    """The rungs of a study, folded from its journal; a decision takes logarithmic time.

    Args:
      scheduler: Where rungs are, and how trials are promoted.
      direction: Whether a `lower` or a `higher` value of the objective is better.
    """

    def __init__(self, scheduler: Scheduler, direction: Direction):
        self.scheduler = scheduler
        self._sign = 1.0 if direction == "lower" else -1.0
        # By the number of the rung; the last one is the full length, where nothing is decided.
        self._rungs = {k: _Rung() for k in range(1, scheduler.num_rungs)}
        # The rung that a trial trains towards, of trials that wait or run, and how many there are.
        self._next: dict[int, int] = {}
        self._num_coming = [0] * (scheduler.num_rungs + 1)
        self._keys: dict[int, dict[int, _Key]] = {}  # by trial and rung
        self._promoted: dict[int, int] = {}  # the highest rung from which a trial was promoted
        self._num_complete = 0
        self._measured: dict[int, _Measured] = {}  # by trial, at its highest rung
        self._costs: list[float] = []  # of all measurements, sorted

    def follow(self, line: Mapping[str, Any]) -> None:
        """Apply one line of the journal.

        Args:
          line: What was read, or is written.
        """
        kind, trial = line["kind"], line.get("trial")
        if kind == "asked":
            for number in line["trials"]:
                self._set_next(number, 1)
        elif trial is None:
            return
        elif kind == "admitted" and line.get("copy_of") is not None:
            self._set_next(trial, None)  # it takes the result of another trial, and never runs
        elif kind == "reached":
            key = self._key(trial, line["value"])
            self._keys.setdefault(trial, {})[line["rung"]] = key
            bisect.insort(self._rungs[line["rung"]].reached, key)
            self._set_next(trial, None)
            if "fraction" in line:
                self._measure(trial, line["fraction"], line["spent"])
        elif kind == "paused":
            bisect.insort(self._rungs[line["rung"]].paused, self._keys[trial][line["rung"]])
        elif kind == "promoted":
            rung = self._rungs[line["rung"]]
            _discard(rung.paused, self._keys[trial][line["rung"]])
            rung.num_promoted += 1
            self._promoted[trial] = line["rung"]
            self._set_next(trial, line["rung"] + 1)
        elif kind == "ended":
            self._end(trial, line["outcome"])
        elif kind == "reopened":
            if (at_rung := self._keys.get(trial)) is not None:  # not of a copy, which never runs
                highest = max(at_rung)
                bisect.insort(self._rungs[highest].paused, at_rung[highest])
        elif kind == "retried":
            self._set_next(trial, 1)
            self._measured.pop(trial, None)

    def promotes_at_once(self, trial: int, rung: int) -> bool:
        """Return whether a trial that has just reached a rung continues there and then.

        Args:
          trial: Its number.
          rung: The rung.
        """
        if self.scheduler.waits:
            return False
        return self._is_among_best(self._rungs[rung], self._keys[trial][rung])

    def promotable(self, may_ask: bool) -> Iterator[int]:
        """Yield the paused trials that are to be promoted, in this order.

        Args:
          may_ask: Whether further trials can be suggested.
        """
        if not self.scheduler.waits:
            for rung in reversed(self._rungs.values()):
                for key in rung.paused:
                    if not self._is_among_best(rung, key):
                        break
                    yield key[1]
        if may_ask:
            return
        # Nothing new can come: a rung is decided for good when no trial trains towards it, or
        # towards one below it, any more.
        for number, rung in self._rungs.items():
            if self._num_coming[number]:
                return
            # Asynchronously, the others were promoted above. At least one, or a rung of fewer than
            # `reduction` trials would end the study before the full length.
            best = len(rung.reached) // self.scheduler.reduction if self.scheduler.waits else 0
            missing = max(1, best) - rung.num_promoted
            finite = [key[1] for key in rung.paused[: max(missing, 0)] if math.isfinite(key[0])]
            yield from finite
            if finite:
                return  # the next rung is decided when these have reached it

    @property
    def leader(self) -> int | None:
        """The best trial at the highest rung that any has reached; None where one is complete."""
        if self._num_complete:
            return None
        for rung in reversed(self._rungs.values()):
            if rung.reached:
                value, trial = rung.reached[0]
                return trial if math.isfinite(value) else None
        return None

    @property
    def full_cost(self) -> float | None:
        """Device seconds of a whole trial, as measured; None where no trial has reached a rung.

        The median over trials, each from its rung before: the first ones on a device group compile.
        """
        return self._costs[len(self._costs) // 2] if self._costs else None

    @property
    def num_measured(self) -> int:
        """How many times `full_cost` was measured."""
        return len(self._costs)

    def cost_to_finish(self, trial: int) -> float:
        """Return the device seconds that a trial takes from its highest rung to its full length.

        At the rate of all trials; from its last rung at its own, which most of it was measured for.

        Args:
          trial: Its number.
        """
        done = self._measured.get(trial, _Measured())
        to_next = self.cost_to_next(trial)
        is_last = done.fraction + done.next >= 1
        return to_next if is_last else (1 - done.fraction) * (self.full_cost or 0.0)

    def cost_to_next(self, trial: int) -> float:
        """Return the device seconds that a trial takes to its next rung, at its own rate.

        Args:
          trial: Its number.
        """
        done = self._measured.get(trial, _Measured())
        return done.next * done.cost

    def _measure(self, trial: int, fraction: float, spent: float) -> None:
        before = self._measured.get(trial, _Measured())
        part = fraction - before.fraction
        if part <= 0:
            return
        cost, reduction = (spent - before.spent) / part, self.scheduler.reduction
        # A run to a rung is `reduction` times as long as the one before; without restarts, the rung
        # is as much further.
        restarts = self.scheduler.horizon == "rung"
        following = part * reduction if restarts else fraction * (reduction - 1)
        # The last rung is the full length, also of a trial that is too short for the others.
        rung = max(self._keys[trial])
        rest = 1 - fraction
        following = rest if rung + 1 == self.scheduler.num_rungs else min(following, rest)
        self._measured[trial] = _Measured(fraction, spent, cost, following)
        bisect.insort(self._costs, cost)

    def _is_among_best(self, rung: _Rung, key: _Key) -> bool:
        num_best = len(rung.reached) // self.scheduler.reduction
        # A trial that has diverged is not worth a step more, however few are better.
        return math.isfinite(key[0]) and bisect.bisect_left(rung.reached, key) < num_best

    def _key(self, trial: int, value: float) -> _Key:
        return (math.inf if math.isnan(value) else self._sign * value), trial

    def _end(self, trial: int, outcome: str) -> None:
        self._set_next(trial, None)
        self._num_complete += outcome == "complete"
        has_failed = outcome in ("failed", "infeasible")
        for number, key in self._keys.get(trial, {}).items():
            rung = self._rungs[number]
            _discard(rung.paused, key)
            # A failed trial is no yardstick for others: it leaves the comparison.
            if has_failed:
                _discard(rung.reached, key)
                rung.num_promoted -= number <= self._promoted.get(trial, 0)
        if has_failed:
            self._keys.pop(trial, None)
            self._promoted.pop(trial, None)

    def _set_next(self, trial: int, rung: int | None) -> None:
        if (before := self._next.pop(trial, None)) is not None:
            self._num_coming[before] -= 1
        if rung is not None:
            self._next[trial] = rung
            self._num_coming[rung] += 1


def _discard(keys: list[_Key], key: _Key) -> None:
    index = bisect.bisect_left(keys, key)
    if index < len(keys) and keys[index] == key:
        del keys[index]
