"""Samplers and pruners of Optuna over an in-memory study, and grids.

A study must suggest the same trials after a kill as without one, so a suggestion may depend only on
what the journal holds. Optuna's samplers keep a random state between calls. Here a sampler is made
anew for each setting, seeded by the study's seed and the setting's number, and asked about an
in-memory study that was filled from the journal. What a sampler stores in Optuna's own attributes
(CMA-ES its state, NSGA-II its generations) goes into the journal as `notes` and comes back from it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.study.space import (
    TAIL,
    Choice,
    Gaussian,
    Grid,
    Int,
    Log,
    LogNormal,
    Ordinal,
    Pow2,
    Space,
    Stored,
    Uniform,
    grid_points,
)

if TYPE_CHECKING:  # it imports JAX, which reports and the mirror do without
    from luthier.study.study import Study

# The memory of a sampler: a study of Optuna in memory, in the order of the settings.
#
# It is kept small: when it has grown to twice what the sampler may look back on, a new one is
# started with the best and the newest settings. When that happens depends on the settings alone, so
# a study that is read from its journal has the same past.

_BEST = 100
_CANNOT_RUN = "cannot run"
# A private key of Optuna's TPESampler (`_RELATIVE_PARAMS_KEY`): the sampler keeps parameters there
# between two calls about one trial, and nothing reads it later. There is no public name for it;
# another name in a later version would only make notes longer.
_TRANSIENT = "tpe:relative_params"


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A suggestion.

    Args:
      assignment: The stored choice of every dimension that takes part.
      notes: What the sampler wrote down for itself, to be given back by `restore`.
    """

    assignment: Mapping[str, int | float]
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class _Storage(optuna.storages.InMemoryStorage):
    """Shows trials that still run, or wait at a rung, as pruned where they reached a rung.

    So a sampler learns from the highest rung that each trial has reached, as BOHB does (Falkner et
    al., 2018, arXiv:1807.01774). Optuna has no state for a trial that may be resumed (optuna#3351),
    and one that was reported as pruned cannot run again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[int, Any] = {}  # by number

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> list[Any]:
        """Return the trials as samplers see them."""
        trials = [self.shown.get(trial.number, trial) for trial in self.stored_trials(study_id)]
        trials = [t for t in trials if states is None or t.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def stored_trials(self, study_id: int) -> list[Any]:
        """Return the trials as they are."""
        return super().get_all_trials(study_id, deepcopy=False)


class InMemoryStudy:
    """The settings of a study and their results, in a study of Optuna in memory.

    Args:
      directions: Of the objectives: `lower` or `higher`.
      most: Most settings that are looked back on; None for no limit.
    """

    def __init__(self, directions: Sequence[str], most: int | None):
        self._directions = [as_direction(direction) for direction in directions]
        self._most = most
        self._running: dict[int, int] = {}  # setting -> number in Optuna's study
        self._pruned: dict[int, int] = {}  # the same, of those that may be reopened
        self._begin()

    def _begin(self) -> None:
        # The storage is driven directly where Optuna's `Study` has no method: attributes that
        # samplers write are not reachable otherwise.
        self._storage = _Storage()
        with quiet_optuna():
            self._study = optuna.create_study(storage=self._storage, directions=self._directions)
        self._size = 0

    @property
    def _id(self) -> int:
        return self._storage.get_study_id_from_name(self._study.study_name)

    def ask(
        self, setting: int, sampler: Any, choose: Callable[[Any], dict[str, Any]]
    ) -> Suggestion:
        """Return the suggestion of a sampler.

        Args:
          setting: The number of the setting.
          sampler: The sampler.
          choose: Takes a trial of Optuna through the space.
        """
        self._make_room()
        # Samplers write into the attributes of the trial or of the study, and do not say which:
        # what changed over the call is what they wrote.
        before = dict(self._storage.get_study_system_attrs(self._id))
        # Set on the study, because `Study.ask` takes it from there: Optuna has no argument for it.
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
        # The trial stays RUNNING in Optuna's study until `record`: samplers with a constant liar
        # see it as pending, as they would in a study of Optuna's own.
        self._keep(setting, trial.number)
        return Suggestion(assignment, {key: found for key, found in notes.items() if found})

    def restore(
        self, setting: int, suggestion: Suggestion, distributions: Mapping[str, Any]
    ) -> None:
        """Add a suggestion that an earlier driver made.

        Args:
          setting: The number of the setting.
          suggestion: The assignment, and the notes of the sampler that belong to it.
          distributions: Of its dimensions.
        """
        self._make_room()
        # The attributes first: the sampler of the next setting reads them through the study,
        # whichever trial wrote them.
        for key, value in suggestion.notes.get("study", {}).items():
            self._storage.set_study_system_attr(self._id, key, value)
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(suggestion.assignment),
                distributions=dict(distributions),
                system_attrs=dict(suggestion.notes.get("trial", {})),
            )
        )
        self._keep(setting, self._size)

    def _keep(self, setting: int, number: int) -> None:
        self._running[setting] = number
        self._size += 1

    def show_rungs(self, setting: int, values: Mapping[int, float]) -> None:
        """Let samplers see a setting that has not ended as pruned at its highest rung.

        Args:
          setting: The number of the setting; one that was never asked is ignored.
          values: The objective's value by rung.
        """
        number = self._running.get(setting)
        if number is None:
            return
        stored = self._storage.get_trial(
            self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        )
        shown = copy.copy(stored)
        shown.state, shown.intermediate_values = TrialState.PRUNED, dict(values)
        self._storage.shown[number] = shown

    def reopen(self, setting: int) -> None:
        """Take back the outcome of a setting that was pruned at a rung: it may get further.

        Args:
          setting: The number of the setting; one that was forgotten or never asked is ignored.
        """
        if (number := self._pruned.pop(setting, None)) is not None:
            self._running[setting] = number

    def record(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
        violations: Sequence[float] = (),
    ) -> None:
        """Record the outcome of a setting; one that was never asked is ignored.

        Args:
          setting: The number of the setting.
          state: Its outcome.
          values: Of the objectives.
          series: Value by step, or by rung, of a setting that was pruned.
          violations: Amounts by which a complete one violates the study's constraints.
        """
        number = self._running.pop(setting, None)
        # Happens for the baseline where the space does not hold it: no sampler could have suggested
        # it.
        if number is None:
            return
        if state == "pruned":
            self._pruned[setting] = number
        id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        if (stored := self._storage.get_trial(id)).state.is_finished():
            # It was reopened. Optuna changes no trial that has ended: from here on it is shown as
            # what it has come to (`_Storage`).
            shown = self._storage.shown[number] = copy.copy(self._storage.shown.get(number, stored))
            if state == "complete" and values and not any(map(math.isnan, values)):
                shown.state, shown.values = TrialState.COMPLETE, list(values)
                shown.system_attrs = {**shown.system_attrs, **_violations(state, violations)}
            elif state == "failed":
                shown.state = TrialState.FAIL
            return
        self._storage.shown.pop(number, None)
        # `Study.tell` calls `after_trial` of the study's sampler, and that one belongs to another
        # setting by now. A random sampler does nothing there.
        self._study.sampler = optuna.samplers.RandomSampler()
        if state in ("complete", "infeasible"):
            # An infeasible setting is a violated constraint, so that constrained samplers
            # move away from it; a failure would be passed over and suggested again.
            # Complete ones have it as well, because `GPSampler` requires the same constraints of
            # all of them. It reads no pruned ones, and TPE takes those without one for feasible.
            # As `Trial.set_constraint` does; there is no handle of a trial that was read back.
            # Before `tell`, after which Optuna refuses attributes.
            for key, amount in _violations(state, violations).items():
                self._storage.set_trial_system_attr(id, key, amount)
        # `Study.tell` rejects NaN; such a trial has FAIL below, which samplers ignore.
        if state == "complete" and values and not any(map(math.isnan, values)):
            self._study.tell(number, list(values))
            return
        # Optuna has intermediate values for studies of one objective only.
        if state == "pruned" and len(self._directions) == 1:
            for step, value in series.items():
                self._storage.set_trial_intermediate_value(id, step, value)
        # PRUNED and not FAIL, so that samplers look at it.
        is_known = state in ("pruned", "infeasible")
        self._study.tell(number, state=TrialState.PRUNED if is_known else TrialState.FAIL)

    def _make_room(self) -> None:
        # Samplers take time in proportion to what they look back on. Halved at twice the limit, so
        # that rebuilding the study is rare, and at sizes that depend on the order of the journal
        # alone.
        if self._most is None or self._size < 2 * self._most:
            return
        trials, shown = self._storage.stored_trials(self._id), self._storage.shown
        attributes = self._storage.get_study_system_attrs(self._id)
        running = {number: setting for setting, number in self._running.items()}
        pruned = {number: setting for setting, number in self._pruned.items()}
        # A setting that waits at a rung is a result, too, of which a long study has thousands. One
        # that is forgotten, and was promoted, is not reported at its end.
        ended = [shown.get(t.number, t) for t in trials]
        kept = self._choose_kept([t for t in ended if t.number in shown or t.number not in running])
        self._begin()
        # Trial numbers are those of the new study from here on: running ones get theirs below, in
        # the order in which they are added.
        self._running.clear()
        self._pruned.clear()
        for key, value in attributes.items():
            self._storage.set_study_system_attr(self._id, key, value)
        for trial in trials:
            if trial.number not in kept and (trial.number in shown or trial.number not in running):
                continue
            if trial.number in running:
                self._study.add_trial(trial)
                setting = running[trial.number]
                self._running[setting] = self._size
                if trial.number in shown:
                    self.show_rungs(setting, shown[trial.number].intermediate_values)
            else:
                # One that was reopened is stored as pruned, and shown as what it has come to.
                self._study.add_trial(shown.get(trial.number, trial))
                if trial.number in pruned:
                    self._pruned[pruned[trial.number]] = self._size
            self._size += 1

    def _choose_kept(self, ended: Sequence[Any]) -> set[int]:
        """Return the numbers of the settings that are kept: the newest, and the best of all."""
        assert self._most is not None
        # The newest show where the search is now, the best what it must not forget.
        newest = {trial.number for trial in ended[-(self._most - _BEST) :]}
        # By the first objective. Samplers for several objectives keep all (`keeps_all`), where they
        # are of the genetic kind.
        sign = 1 if self._directions[0] is StudyDirection.MINIMIZE else -1
        complete = [t for t in ended if t.state == TrialState.COMPLETE]
        best = sorted(complete, key=lambda t: (sign * t.values[0], t.number))
        # Then those at the highest rungs: few trials of a study with rungs are complete.
        shown = self._storage.shown
        at_rungs = [t for t in ended if t.number in shown and t.state == TrialState.PRUNED]

        def rank(trial: Any) -> tuple[float, ...]:
            rung, value = max(trial.intermediate_values.items(), default=(0, math.nan))
            return -rung, math.inf if math.isnan(value) else sign * value, trial.number

        best += sorted(at_rungs, key=rank)
        rest = [trial.number for trial in best if trial.number not in newest]
        return newest | set(rest[:_BEST])


def _violations(state: str, amounts: Sequence[float]) -> dict[str, float]:
    """Return the attributes by which Optuna knows the constraints of a trial."""
    found = {f"constraints:{index}": amount for index, amount in enumerate(amounts)}
    return {f"constraints:{_CANNOT_RUN}": float(state == "infeasible"), **found}


def _lasting(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a sampler wrote, without those that it needs for one call only."""
    return {k: v for k, v in attributes.items() if not k.startswith(_TRANSIENT)}


def as_direction(direction: str) -> StudyDirection:
    """Convert `lower` or `higher` to Optuna's direction."""
    return StudyDirection.MINIMIZE if direction == "lower" else StudyDirection.MAXIMIZE


# The next setting: a sampler of Optuna or a grid, asked for one setting after the other.
#
# A new sampler is made for every setting, with a seed that comes from the study's seed and the
# number of the setting. So what it suggests depends on what it was reported before, and on nothing
# else.


class Suggester(Protocol):
    """A source of settings, in the order of their numbers."""

    looks_back: bool
    """Whether a suggestion depends on earlier results."""

    def ask(self, setting: int) -> Suggestion | None:
        """Return the suggestion for a setting; None where there are no more."""

    def restore(self, setting: int, suggestion: Suggestion) -> None:
        """Add a suggestion that an earlier driver made."""

    def retry(self, setting: int, suggestion: Suggestion) -> None:
        """Add a setting that runs again after its failure was reported."""

    def reopen(self, setting: int) -> None:
        """Take back that a setting has ended at a rung: it may get further."""

    def show_rungs(self, setting: int, values: Mapping[int, float]) -> None:
        """Take in the value by rung of a setting that has not ended."""

    def record(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
        violations: Sequence[float] = (),
    ) -> None:
        """Record the outcome of a setting."""


class GridSuggester:
    """Suggests the points of a grid, one after another.

    Args:
      space: The search space.
      resolution: Points of every continuous range.
    """

    looks_back = False

    def __init__(self, space: Space, resolution: int):
        self._points = grid_points(space, resolution)

    def ask(self, setting: int) -> Suggestion | None:
        """Return the next point, whatever the number of the setting."""
        del setting
        point = next(self._points, None)
        return None if point is None else Suggestion(point)

    def restore(self, setting: int, suggestion: Suggestion) -> None:
        """Skip a point; setting 0 is the baseline, which is not a point of the grid."""
        del suggestion
        if setting:
            next(self._points, None)

    def retry(self, setting: int, suggestion: Suggestion) -> None:
        """Do nothing: its point was suggested before."""

    def reopen(self, setting: int) -> None:
        """Do nothing: a grid does not look back."""

    def show_rungs(self, setting: int, values: Mapping[int, float]) -> None:
        """Do nothing: a grid does not look back."""

    def record(self, *outcome: Any) -> None:
        """Do nothing: a grid does not look back."""


class _WholeSpace(optuna.samplers.BaseSampler):
    """Gives a quasi-random sampler all dimensions from its first point on.

    By itself it takes them from the first trial that ended, so that which point a setting gets
    would depend on how fast trials are.

    Args:
      sampler: The sampler.
      space: The distribution of every dimension there can be.
    """

    def __init__(self, sampler: Any, space: dict[str, Any]):
        self._sampler, self._space = sampler, space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return all dimensions, whatever `study` and `trial`."""
        return self._space

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return the next point."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(self, *place: Any) -> Any:
        """Return a value for one dimension, which was not among those of the point."""
        return self._sampler.sample_independent(*place)


class OptunaSuggester:
    """Suggestions of a sampler of Optuna.

    Args:
      space: The search space.
      sampler: The node of the sampler.
      seed: The study's seed.
      directions: Of the objectives.
      remembered: Most settings that the sampler looks back on; it takes time in proportion.
    """

    def __init__(
        self,
        space: Space,
        sampler: Any,
        seed: int,
        directions: Sequence[str],
        remembered: int = 1000,
    ):
        self._space, self._node, self._seed = space, sampler, seed
        self._kind = sampler.__fn_or_cls__
        self.looks_back = not self._is_a("RandomSampler", "QMCSampler", "BruteForceSampler")
        # These find their population by the trials of the study: forgetting some of them would
        # change it.
        # `_is_a` ignores names that this version of Optuna lacks.
        keeps_all = self._is_a("BaseGASampler", "NSGAIISampler", "NSGAIIISampler", "CmaEsSampler")
        self._past = InMemoryStudy(directions, None if keeps_all else remembered)
        self._dimensions = {named.name: named.dimension for named in space.every()}
        self._all = {name: _asked(dimension) for name, dimension in self._dimensions.items()}

    def _is_a(self, *names: str) -> bool:
        kinds = [getattr(optuna.samplers, name, None) for name in names]
        found = tuple(kind for kind in kinds if isinstance(kind, type))
        return isinstance(self._kind, type) and issubclass(self._kind, found)

    def _sampler(self, setting: int) -> Any:
        """Build the sampler of a setting."""
        values: dict[str, Any] = {}
        known = graphs.signatures.arguments(self._kind).names
        if "seed" in known:
            # A quasi-random sequence is one for the whole study.
            of_study = self._is_a("QMCSampler")
            values["seed"] = self._seed if of_study else seed_of(self._seed, setting)
        # Without groups, a multivariate TPE drops to independent sampling for dimensions that not
        # every trial has.
        if self._is_a("TPESampler") and self._space.is_conditional:
            values |= {"multivariate": True, "group": True}
        with quiet_optuna():
            made = graphs.build(self._node, values)
        return _WholeSpace(made, self._all) if self._is_a("QMCSampler") else made

    def ask(self, setting: int) -> Suggestion | None:
        """Return the suggestion for a setting."""
        exact: dict[str, float] = {}

        def choose(trial: Any) -> dict[str, Stored]:
            return self._space.choose(lambda name, dim: _suggest(trial, name, dim, exact))

        with quiet_optuna():
            suggestion = self._past.ask(setting, self._sampler(setting), choose)
        if not exact:
            return suggestion
        return dataclasses.replace(suggestion, notes={**suggestion.notes, _EXACT: exact})

    def restore(self, setting: int, suggestion: Suggestion) -> None:
        """Add a suggestion that an earlier driver made."""
        distributions = {name: self._all[name] for name in suggestion.assignment}
        exact = suggestion.notes.get(_EXACT, {})
        asked = {
            name: exact[name] if name in exact else _as_asked(self._dimensions[name], stored)
            for name, stored in suggestion.assignment.items()
        }
        with quiet_optuna():
            own = dataclasses.replace(suggestion, assignment=asked)
            self._past.restore(setting, own, distributions)

    def retry(self, setting: int, suggestion: Suggestion) -> None:
        """Add a setting that runs again; samplers ignore the failure that was reported."""
        self.restore(setting, suggestion)

    def reopen(self, setting: int) -> None:
        """Take back that a setting has ended at a rung: it may get further."""
        self._past.reopen(setting)

    def show_rungs(self, setting: int, values: Mapping[int, float]) -> None:
        """Take in the value by rung of a setting that has not ended."""
        self._past.show_rungs(setting, values)

    def record(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
        violations: Sequence[float] = (),
    ) -> None:
        """Record the outcome of a setting."""
        with quiet_optuna():
            self._past.record(setting, state, values, series, violations)


def make_suggester(study: Study) -> Suggester:
    """Build the suggester of a study."""
    node, resolution = study.sampler, grid_resolution(study.sampler)
    if resolution is not None:
        return GridSuggester(study.space, resolution)
    directions = [objective.direction for objective in study.objectives]
    return OptunaSuggester(study.space, node, study.seed, directions)


def grid_resolution(node: Any) -> int | None:
    """Return the resolution of the grid that a node of a sampler describes; None of any other."""
    # The sampler may be a node (from a config) or built (a study that was made in Python).
    if isinstance(node, Grid) or getattr(node, "__fn_or_cls__", None) is Grid:
        return graphs.build(node).resolution
    return None


def seed_of(seed: int, setting: int) -> int:
    """Return the seed of the sampler for one setting."""
    # Not `hash`, which differs in every process, and not a sum, by which studies with seeds next to
    # each other would repeat each other's suggestions.
    digest = hashlib.sha256(f"{seed}/{setting}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def distribution(dimension: Any) -> Any:
    """Return the stored choices of a dimension as Optuna knows them."""
    if isinstance(dimension, Log | Uniform | Gaussian):
        is_log = isinstance(dimension, Log | LogNormal)
        low, high = float(dimension.low), float(dimension.high)
        step = getattr(dimension, "step", None)
        return optuna.distributions.FloatDistribution(low, high, log=is_log, step=step)
    if isinstance(dimension, Int):
        low, high, step = dimension.low, dimension.high, dimension.step
        return optuna.distributions.IntDistribution(low, high, log=dimension.log, step=step)
    # The exponent is stored, so that a step of the sampler is a factor of two.
    if isinstance(dimension, Pow2):
        exponents = dimension.exponents
        return optuna.distributions.IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Ordinal):
        return optuna.distributions.IntDistribution(0, len(dimension.values) - 1)
    count = len(dimension.options if isinstance(dimension, Choice) else dimension.rows)
    return optuna.distributions.CategoricalDistribution(tuple(range(count)))


_EXACT = "exact"
"""The note with the quantiles that a sampler suggested: they do not follow from the values to the
last bit, and a resumed sampler must know the same ones."""


def _asked(dimension: Any) -> Any:
    """Return the distribution that a sampler is asked about, which may not be that of the values.

    Optuna has no normal distribution: it is asked for the quantile, which is uniform. Of numbers
    with a step it is asked for the number of steps: its own sums of steps are not round.
    """
    if isinstance(dimension, Gaussian):
        return optuna.distributions.FloatDistribution(TAIL, 1 - TAIL)
    if isinstance(dimension, Uniform) and dimension.step is not None:
        return optuna.distributions.IntDistribution(0, dimension.num_steps)
    return distribution(dimension)


def _as_asked(dimension: Any, stored: Stored) -> Stored:
    """Return a stored choice as a sampler knows it (`_asked`)."""
    if isinstance(dimension, Gaussian):
        return dimension.probability(stored)
    if isinstance(dimension, Uniform) and dimension.step is not None:
        return round((stored - dimension.low) / dimension.step)
    return stored


def _suggest(trial: Any, name: str, dimension: Any, exact: dict[str, float]) -> Stored:
    """Ask a trial of Optuna for a choice; what cannot be computed from it goes into `exact`."""
    found = _asked(dimension)
    if isinstance(found, optuna.distributions.CategoricalDistribution):
        return trial.suggest_categorical(name, found.choices)
    if isinstance(found, optuna.distributions.FloatDistribution):
        number = trial.suggest_float(name, found.low, found.high, log=found.log)
    else:
        number = trial.suggest_int(name, found.low, found.high, step=found.step, log=found.log)
    # Optuna does not look: a study with such a trial could not be read back.
    if not found.low <= number <= found.high:
        what = f"suggested {number!r} for {name}, which goes from {found.low} to {found.high}"
        raise BadInput(Problem(what, "sampler", remedy="mend its code"))
    if isinstance(dimension, Gaussian):
        exact[name] = number
        return dimension.quantile(number)
    return dimension.at(number) if isinstance(dimension, Uniform) and dimension.step else number


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Run a block without Optuna's log of new studies and its warnings of experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


# Pruners of Optuna, asked by the driver after each report; workers never see Optuna.


class Pruning:
    """Decides after each evaluation whether a trial is pruned, with a pruner of Optuna.

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
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage, direction=self._direction, study_name=self._name
            )
        self._size = 0

    def report(self, trial: int, step: int, value: float) -> bool:
        """Record an evaluation; return whether the trial continues.

        Args:
          trial: Its number.
          step: Optimizer steps done.
          value: Of the objective, so far.
        """
        id = self._find(trial)
        self._storage.set_trial_intermediate_value(id, step, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # The pruner is called directly: `Trial.should_prune` only looks the trial up and does
            # the same, and needs the pruner to be the study's.
            return not self._pruner.prune(self._study, self._storage.get_trial(id))

    def end(
        self, trial: int, outcome: str, value: float | None, series: Mapping[int, float]
    ) -> None:
        """Record the end of a trial.

        Args:
          trial: Its number.
          outcome: How it ended.
          value: Of the objective.
          series: Value by step, of a trial that is read back and was not reported here.
        """
        # A failed trial is no yardstick for others: it leaves the comparison.
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
        # In the storage and not by `Study.tell`, which would also call the sampler of this study;
        # nothing asks that one.
        # `value == value` is false for NaN, which Optuna does not take as a value.
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
        # As `InMemoryStudy._make_room`: pruners compare with all trials at each report, which would
        # grow without end.
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
