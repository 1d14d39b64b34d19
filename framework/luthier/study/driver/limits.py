"""The limits of a study's budget, beside the number of its trials."""

from __future__ import annotations

import math

from luthier.study.driver.trial_table import Ledger
from luthier.study.objectives import is_better
from luthier.study.rungs import Rungs
from luthier.study.study import Study

EXCESS = 0.25
"""The part of `budget.device_hours` by which the only trial that gets complete may exceed it."""
_FEW = 3
"""Measurements that include the compilation of a device group's first trial."""


class Limits:
    """Watches the limits that end a study: device time, a target, and trials without a better one.

    They follow from the trial table alone, so that a resumed study ends where an undisturbed one
    does.

    Args:
      study: The study.
      ledger: Its trial table, which grows.
    """

    def __init__(self, study: Study, ledger: Ledger):
        self._study, self._ledger = study, ledger
        self._num_seen = 0  # reports that were looked at
        self._counted: set[int] = set()  # settings; one that is reopened is reported twice
        self._best: float | None = None
        self._best_setting = 0
        self._num_without = 0  # trials since the best one

    def reached(self, running_device_seconds: float = 0.0) -> str:
        """Return the limit that was reached, with its value; empty where none was.

        Args:
          running_device_seconds: Devices times seconds that running trials have had so far.
        """
        budget = self._study.budget
        if self.is_used_up(running_device_seconds):
            return f"budget.device_hours={budget.device_hours:g} are used up"
        self._look_at_new()
        if self._reaches_target():
            trial = self._ledger.settings[self._best_setting].trials[0]
            return f"trial {trial} reaches budget.target={budget.target:g}"
        limit = budget.no_improvement
        if limit is not None and self._num_without >= limit:
            return f"{self._num_without} trials without a better one (budget.no_improvement)"
        return ""

    def is_used_up(self, running_device_seconds: float = 0.0) -> bool:
        """Return whether `budget.device_hours` are used up.

        Args:
          running_device_seconds: Devices times seconds that running trials have had so far.
        """
        hours = self._study.budget.device_hours
        spent = self._ledger.device_seconds + running_device_seconds
        return hours is not None and spent >= hours * 3600

    def reserves(self, rungs: Rungs, running_device_seconds: float = 0.0) -> int | None:
        """Return the trial that the rest of the device time is reserved for, so that it completes.

        That is the best trial at the highest rung, as soon as the rest of `budget.device_hours` is
        what finishing it takes at the measured rate, while no trial is complete.

        Args:
          rungs: The rungs of the study.
          running_device_seconds: Devices times seconds that running trials have had so far.

        Returns:
          Its number; None where others may run, or where it would exceed the budget by too much.
        """
        hours, leader = self._study.budget.device_hours, rungs.leader
        if hours is None or leader is None:
            return None
        spent = self._ledger.device_seconds + running_device_seconds
        left = 3600 * hours - spent
        # To its next rung and not to its end: a trial at a low rung may turn out to be cheaper than
        # it seems, as most of what was measured so far is to compile, to start and to save.
        if left + EXCESS * 3600 * hours < rungs.cost_to_next(leader):
            return None
        is_known = rungs.num_measured > _FEW or 2 * left < 3600 * hours
        return leader if is_known and left <= rungs.cost_to_finish(leader) else None

    def none_complete(self, rungs: Rungs) -> str:
        """Return that the device time did not suffice for one whole trial; empty where it did.

        Args:
          rungs: The rungs of the study, which is over.
        """
        hours = self._study.budget.device_hours
        if hours is None or not self.is_used_up() or self._ledger.count("complete"):
            return ""
        what = f"no trial is complete: budget.device_hours={hours:g} are used up"
        leader = rungs.leader
        if leader is None or rungs.full_cost is None:
            return f"{what}, and no trial has reached a rung"
        cost = rungs.cost_to_finish(leader)
        more = (self._ledger.device_seconds + cost) / 3600
        return (
            f"{what}, and a whole trial takes about {rungs.full_cost / 3600:.2g}; "
            f"to finish trial {leader}, resume with --budget device_hours={_rounded_up(more)}"
        )

    def _look_at_new(self) -> None:
        if self._study.budget.no_improvement is None and self._study.budget.target is None:
            return
        objective = self._study.objectives[0]  # the only one (`checks`)
        # In the order of the reports to the sampler, each once: this is called for every trial that
        # may start.
        for number in self._ledger.reported[self._num_seen :]:
            setting = self._ledger.settings[number]
            outcome = self._ledger.outcome_of(setting)
            if outcome is None or outcome[0] not in ("complete", "pruned"):
                continue
            state, values = outcome
            is_feasible = all(v <= 0 for v in self._ledger.violations_of(setting))
            # One that cannot be the best counts as NaN, than which any number is better.
            value = values[0] if state == "complete" and values and is_feasible else math.nan
            if is_better(objective, value, math.nan if self._best is None else self._best):
                self._best, self._best_setting, self._num_without = value, number, 0
            elif number not in self._counted:
                self._num_without += len(setting.trials)
            self._counted.add(number)
        self._num_seen = len(self._ledger.reported)

    def _reaches_target(self) -> bool:
        target = self._study.budget.target
        if target is None or self._best is None:
            return False
        return not is_better(self._study.objectives[0], target, self._best)


def _rounded_up(number: float) -> str:
    """Return a positive number with two digits that is not below it."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{math.ceil(number / unit) * unit:.2g}"
