"""What to try next: a sampler of Optuna or a grid, asked for one setting after the other.

The sampler is made anew for every setting, with a seed that comes from the study's seed and the
number of the setting. So what it suggests depends on what it was told before, and on nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import optuna

from luthier import graph as graphs
from luthier.sweep.driver.past import Asked, Past
from luthier.sweep.space.dimensions import Choice, Int, Log, Ordinal, Pow2, Stored, Uniform
from luthier.sweep.space.grid import Grid, grid_points
from luthier.sweep.space.space import Space

optuna.logging.set_verbosity(logging.WARNING)


class Suggester(Protocol):
    """Suggests settings, in the order of their numbers."""

    looks_back: bool
    """Whether a suggestion depends on what was told."""

    def ask(self, setting: int) -> Asked | None:
        """Return the suggestion for a setting; None where there are no more."""

    def restore(self, setting: int, asked: Asked) -> None:
        """Take in a suggestion that was made before."""

    def retry(self, setting: int, asked: Asked) -> None:
        """Take in that a setting runs again, whose failure was told."""

    def tell(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
    ) -> None:
        """Take in what came of a setting."""


class GridSuggester:
    """Hands out the points of a grid.

    Args:
      space: What may be chosen.
      resolution: Points of every continuous range.
    """

    looks_back = False

    def __init__(self, space: Space, resolution: int):
        self._points = grid_points(space, resolution)

    def ask(self, setting: int) -> Asked | None:
        """Return the next point; `setting` only counts."""
        del setting
        point = next(self._points, None)
        return None if point is None else Asked(point)

    def restore(self, setting: int, asked: Asked) -> None:
        """Skip a point; the baseline is setting 0, and none."""
        del asked
        if setting:
            next(self._points, None)

    def retry(self, setting: int, asked: Asked) -> None:
        """Do nothing: its point was handed out."""

    def tell(self, *told: Any) -> None:
        """Do nothing: a grid does not look back."""


class _WholeSpace(optuna.samplers.BaseSampler):
    """Lets a quasi-random sampler see all dimensions from its first point on.

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
    """Asks a sampler of Optuna.

    Args:
      space: What may be chosen.
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
        keeps_all = self._is_a("BaseGASampler", "NSGAIISampler", "NSGAIIISampler", "CmaEsSampler")
        self._past = Past(directions, None if keeps_all else remembered)
        self._all = {named.name: distribution(named.dimension) for named in space.every()}

    def _is_a(self, *names: str) -> bool:
        kinds = [getattr(optuna.samplers, name, None) for name in names]
        found = tuple(kind for kind in kinds if isinstance(kind, type))
        return isinstance(self._kind, type) and issubclass(self._kind, found)

    def _sampler(self, setting: int) -> Any:
        """Return the sampler that is asked for a setting."""
        values: dict[str, Any] = {}
        known = graphs.signatures.arguments(self._kind).names
        if "seed" in known:
            # A quasi-random sequence is one for the whole study.
            of_study = self._is_a("QMCSampler")
            values["seed"] = self._seed if of_study else seed_of(self._seed, setting)
        if self._is_a("TPESampler") and self._space.is_conditional:
            values |= {"multivariate": True, "group": True}
        with _quiet():
            made = graphs.build(self._node, values)
        return _WholeSpace(made, self._all) if self._is_a("QMCSampler") else made

    def ask(self, setting: int) -> Asked | None:
        """Return what the sampler suggests for a setting."""
        with _quiet():
            return self._past.ask(setting, self._sampler(setting), self._choose)

    def _choose(self, trial: Any) -> dict[str, Stored]:
        return self._space.choose(lambda name, dimension: _suggest(trial, name, dimension))

    def restore(self, setting: int, asked: Asked) -> None:
        """Take in a suggestion that was made before."""
        distributions = {name: self._all[name] for name in asked.assignment}
        with _quiet():
            self._past.restore(setting, asked, distributions)

    def retry(self, setting: int, asked: Asked) -> None:
        """Take in that a setting runs again; samplers pass over the failure that was told."""
        self.restore(setting, asked)

    def tell(
        self,
        setting: int,
        state: str,
        values: Sequence[float] | None,
        series: Mapping[int, float],
    ) -> None:
        """Take in what came of a setting."""
        with _quiet():
            self._past.tell(setting, state, values, series)


def make_suggester(study: Any) -> Suggester:
    """Return what suggests the settings of a study."""
    node, resolution = study.sampler, grid_resolution(study.sampler)
    if resolution is not None:
        return GridSuggester(study.space, resolution)
    directions = [objective.direction for objective in study.objectives]
    return OptunaSuggester(study.space, node, study.seed, directions)


def grid_resolution(node: Any) -> int | None:
    """Return the resolution of the grid that a node of a sampler describes; None of any other."""
    if isinstance(node, Grid) or getattr(node, "__fn_or_cls__", None) is Grid:
        return graphs.build(node).resolution
    return None


def seed_of(seed: int, setting: int) -> int:
    """Return the seed of the sampler for one setting."""
    digest = hashlib.sha256(f"{seed}/{setting}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def distribution(dimension: Any) -> Any:
    """Return a dimension as Optuna knows it."""
    if isinstance(dimension, Log | Uniform):
        is_log = isinstance(dimension, Log)
        low, high = float(dimension.low), float(dimension.high)
        return optuna.distributions.FloatDistribution(low, high, log=is_log)
    if isinstance(dimension, Int):
        step = dimension.step
        return optuna.distributions.IntDistribution(dimension.low, dimension.high, step=step)
    if isinstance(dimension, Pow2):
        exponents = dimension.exponents
        return optuna.distributions.IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Ordinal):
        return optuna.distributions.IntDistribution(0, len(dimension.values) - 1)
    count = len(dimension.options if isinstance(dimension, Choice) else dimension.rows)
    return optuna.distributions.CategoricalDistribution(tuple(range(count)))


def _suggest(trial: Any, name: str, dimension: Any) -> Stored:
    found = distribution(dimension)
    if isinstance(found, optuna.distributions.FloatDistribution):
        return trial.suggest_float(name, found.low, found.high, log=found.log)
    if isinstance(found, optuna.distributions.IntDistribution):
        return trial.suggest_int(name, found.low, found.high, step=found.step)
    return trial.suggest_categorical(name, found.choices)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Run a block without Optuna's remarks on what is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
