"""What a sampler looks back on: a study of Optuna in memory, in the order of the settings.

It is kept small: when it has grown to twice what the sampler may look back on, a new one is begun
with the best and the newest settings. When that happens depends on the settings alone, so a study
that is read from its journal has the same past.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

_BEST = 100
_CANNOT_RUN = "cannot run"
_TRANSIENT = "tpe:relative_params"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A suggestion.

    Args:
      assignment: The stored choice of every dimension that takes part.
      notes: What the sampler wrote down for itself, to be given back by `restore`.
    """

    assignment: Mapping[str, int | float]
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Past:
    """Settings that were asked and told, as Optuna keeps them.

    Args:
      directions: Of the objectives: `lower` or `higher`.
      most: Most settings that are looked back on; None for no limit.
    """

    def __init__(self, directions: Sequence[str], most: int | None):
        self._directions = [as_direction(direction) for direction in directions]
        self._most = most
        self._running: dict[int, int] = {}  # setting -> number in Optuna's study
        self._begin()

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(storage=self._storage, directions=self._directions)
        self._size = 0

    @property
    def _id(self) -> int:
        return self._storage.get_study_id_from_name(self._study.study_name)

    def ask(self, setting: int, sampler: Any, choose: Callable[[Any], dict[str, Any]]) -> Asked:
        """Return what a sampler suggests.

        Args:
          setting: The number of the setting.
          sampler: The sampler.
          choose: Takes a trial of Optuna through the space.
        """
        self._make_room()
        before = dict(self._storage.get_study_system_attrs(self._id))
        self._study.sampler = sampler
        trial = self._study.ask()
        assignment = choose(trial)
        id = self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)
        notes = {
            "trial": _lasting(self._storage.get_trial_system_attrs(id)),
            "study": {
                key: value
                for key, value in self._storage.get_study_system_attrs(self._id).items()
                if before.get(key) != value
            },
        }
        self._keep(setting, trial.number)
        return Asked(assignment, {key: found for key, found in notes.items() if found})

    def restore(self, setting: int, asked: Asked, distributions: Mapping[str, Any]) -> None:
        """Take in a suggestion that was made before.

        Args:
          setting: The number of the setting.
          asked: What was suggested.
          distributions: Of its dimensions.
        """
        self._make_room()
        for key, value in asked.notes.get("study", {}).items():
            self._storage.set_study_system_attr(self._id, key, value)
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(asked.assignment),
                distributions=dict(distributions),
                system_attrs=dict(asked.notes.get("trial", {})),
            )
        )
        self._keep(setting, self._size)

    def _keep(self, setting: int, number: int) -> None:
        self._running[setting] = number
        self._size += 1

    def tell(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
    ) -> None:
        """Take in what came of a setting; one that was never asked is passed over.

        Args:
          setting: The number of the setting.
          state: Its outcome.
          values: Of the objectives.
          series: Value by step, of a setting that was pruned.
        """
        number = self._running.pop(setting, None)
        if number is None:
            return
        self._study.sampler = optuna.samplers.RandomSampler()
        id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        if state in ("complete", "infeasible"):
            # As `Trial.set_constraint` does; there is no handle of a trial that was read back.
            key = f"constraints:{_CANNOT_RUN}"
            self._storage.set_trial_system_attr(id, key, float(state == "infeasible"))
        if state == "complete" and values and not any(map(math.isnan, values)):
            self._study.tell(number, list(values))
            return
        if state == "pruned" and len(self._directions) == 1:
            for step, value in series.items():
                self._storage.set_trial_intermediate_value(id, step, value)
        is_known = state in ("pruned", "infeasible")
        self._study.tell(number, state=TrialState.PRUNED if is_known else TrialState.FAIL)

    def _make_room(self) -> None:
        if self._most is None or self._size < 2 * self._most:
            return
        trials = self._study.get_trials(deepcopy=False)
        attributes = self._storage.get_study_system_attrs(self._id)
        running = {number: setting for setting, number in self._running.items()}
        kept = self._choose_kept([t for t in trials if t.number not in running])
        self._begin()
        self._running.clear()
        for key, value in attributes.items():
            self._storage.set_study_system_attr(self._id, key, value)
        for trial in trials:
            if trial.number in running:
                self._running[running[trial.number]] = self._size
            elif trial.number not in kept:
                continue
            self._study.add_trial(trial)
            self._size += 1

    def _choose_kept(self, ended: Sequence[Any]) -> set[int]:
        """Return the numbers of the settings that are kept: the newest, and the best of all."""
        assert self._most is not None
        newest = {trial.number for trial in ended[-(self._most - _BEST) :]}
        sign = 1 if self._directions[0] is StudyDirection.MINIMIZE else -1
        complete = [t for t in ended if t.state == TrialState.COMPLETE]
        best = sorted(complete, key=lambda t: (sign * t.values[0], t.number))
        rest = [trial.number for trial in best if trial.number not in newest]
        return newest | set(rest[:_BEST])


def _lasting(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a sampler wrote down, without what counts only until the trial is asked."""
    return {k: v for k, v in attributes.items() if not k.startswith(_TRANSIENT)}


def as_direction(direction: str) -> StudyDirection:
    """Return what Optuna calls `lower` and `higher`."""
    return StudyDirection.MINIMIZE if direction == "lower" else StudyDirection.MAXIMIZE
