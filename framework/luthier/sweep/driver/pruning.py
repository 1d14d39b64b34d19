"""Pruners of Optuna, asked by the driver after each report; workers never see Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import TrialState

from luthier.sweep.driver.past import as_direction


class Pruning:
    """Which trials go on after an evaluation.

    Args:
      pruner: A pruner of Optuna.
      direction: Of the only objective.
      name: Of the study; Hyperband takes its brackets from it.
      remembered: Trials that it looks back on; the oldest are forgotten when it has twice as many.
    """

    def __init__(self, pruner: Any, direction: str, name: str, remembered: int = 1000):
        self._pruner, self._name, self._remembered = pruner, name, remembered
        self._direction = as_direction(direction)
        self._numbers: dict[int, int] = {}  # trial -> number in Optuna's study
        self._begin()

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(
            storage=self._storage, direction=self._direction, study_name=self._name
        )
        self._size = 0

    def report(self, trial: int, step: int, value: float) -> bool:
        """Take in a report; return whether the trial goes on.

        Args:
          trial: Its number.
          step: Optimizer steps done.
          value: Of the objective, so far.
        """
        id = self._find(trial)
        self._storage.set_trial_intermediate_value(id, step, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return not self._pruner.prune(self._study, self._storage.get_trial(id))

    def end(
        self, trial: int, outcome: str, value: float | None, series: Mapping[int, float]
    ) -> None:
        """Take in how a trial ended.

        Args:
          trial: Its number.
          outcome: How it ended.
          value: Of the objective.
          series: Value by step, of a trial that is read back and was not reported here.
        """
        if outcome not in ("complete", "pruned"):
            if trial in self._numbers:
                id = self._find(trial)
                self._storage.set_trial_state_values(id, TrialState.FAIL)
                del self._numbers[trial]
            return
        id = self._find(trial)
        known = self._storage.get_trial(id).intermediate_values
        for step, reported in series.items():
            if step not in known:
                self._storage.set_trial_intermediate_value(id, step, reported)
        if outcome == "complete" and value is not None and value == value:
            self._storage.set_trial_state_values(id, TrialState.COMPLETE, [value])
        else:
            self._storage.set_trial_state_values(id, TrialState.PRUNED)
        del self._numbers[trial]

    def _find(self, trial: int) -> int:
        if trial not in self._numbers:
            self._make_room()
            made = optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs={"trial": trial})
            self._study.add_trial(made)
            self._numbers[trial] = self._size
            self._size += 1
        study = self._storage.get_study_id_from_name(self._name)
        return self._storage.get_trial_id_from_study_id_trial_number(study, self._numbers[trial])

    def _make_room(self) -> None:
        if self._size < 2 * self._remembered:
            return
        trials = self._study.get_trials(deepcopy=False)
        running = {number: trial for trial, number in self._numbers.items()}
        ended = [t.number for t in trials if t.number not in running]
        kept = set(ended[-self._remembered :])
        self._begin()
        self._numbers = {}
        for trial in trials:
            if trial.number in running:
                self._numbers[running[trial.number]] = self._size
            elif trial.number not in kept:
                continue
            self._study.add_trial(trial)
            self._size += 1
