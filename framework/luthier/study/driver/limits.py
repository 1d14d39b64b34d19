"""The limits of a study's budget, beside the number of its trials."""

from __future__ import annotations

import math

from luthier.study.driver.trial_table import Ledger
from luthier.study.objectives import is_better
from luthier.study.study import Study


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
        spent = self._ledger.device_seconds + running_device_seconds
        if budget.device_hours is not None and spent >= budget.device_hours * 3600:
            return f"budget.device_hours={budget.device_hours:g} are used up"
        self._look_at_new()
        if self._reaches_target():
            trial = self._ledger.settings[self._best_setting].trials[0]
            return f"trial {trial} reaches budget.target={budget.target:g}"
        limit = budget.no_improvement
        if limit is not None and self._num_without >= limit:
            return f"{self._num_without} trials without a better one (budget.no_improvement)"
        return ""

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
