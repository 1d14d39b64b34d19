"""The study: a graph with the search space, the sampler, the budget and the objectives."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.graph.paths import is_node
from luthier.study.objectives import Objective
from luthier.study.packing import Packing, SharedPrograms
from luthier.study.protocol import SliceInfo, TrialEngine
from luthier.study.rungs import Scheduler
from luthier.study.space import Grid, Space

# When a study is enough.

DEFAULT_TRIALS = 32
"""The number of trials of `trials="auto"` for a sampler that has no end of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a study; the first that is reached ends it.

    Args:
      trials: Maximum number of trials, including the baseline; None for no limit but the sampler's
        own. `auto` is every point of a grid, and 32 for other samplers. Infeasible trials and
        copies of earlier ones have numbers of their own, and count.
      wall_seconds: Limit of the time that the study is driven, over all resumes; time between two
        drivers does not count. Running trials are saved, and resume with a larger limit.
      device_hours: Devices times hours that trials had them, from lease to end: compilation,
        evaluations and what was lost count. Trials that share a device group share its time.
      no_improvement: The study ends after so many trials in a row without a better one; complete
        and pruned trials count. Trials that run then are finished.
      target: The study ends when its objective is this value or better. Trials that run then are
        finished.
      trial_seconds: Time limit of one trial since its latest lease; a trial that takes longer
        fails.
      retries: Maximum number of restarts of a trial after its worker died. Faults of the machine,
        such as a full disk, are not counted.
      failures: The study stops when so many trials in a row fail by an error in their code or
        data, or when the baseline fails so or is infeasible; None never stops it.
    """

    trials: int | Literal["auto"] | None = "auto"
    wall_seconds: float | None = None
    device_hours: float | None = None
    no_improvement: int | None = None
    target: float | None = None
    trial_seconds: float | None = None
    retries: int = 2
    failures: int | None = 3

    RANGES: ClassVar[dict[str, str]] = {
        "trials": "1 <= x",
        "wall_seconds": "0 < x",
        "device_hours": "0 < x",
        "no_improvement": "1 <= x",
        "trial_seconds": "0 < x",
        "retries": "0 <= x",
        "failures": "1 <= x",
    }

    @property
    def num_trials(self) -> int | None:
        """The number of trials; None for no limit. A study over a grid has set `auto` to None."""
        return DEFAULT_TRIALS if self.trials == "auto" else self.trials


# The study: a graph with the search space, the sampler, the budget and the objectives.
#
#     fdl.Config(Study, name="lm_learning_rate", base=experiment(), space=fdl.Config(Space, {...}),
#                objectives=(Measured(Selector("held_out", "loss")),),
#                sampler=fdl.Config(optuna.samplers.TPESampler))
#
# The experiment in `base` is described, never built: each trial edits a copy of it. So a study is
# recorded, compared and overridden like any other graph (`base.training.steps=100
# budget.trials=8`).


class Gate(Protocol):
    """Rejects trials that cannot run on a device group."""

    def __call__(self, graph: Graph, slice: SliceInfo) -> str:
        """Return why the trial with `graph` cannot run on a slice; nothing where it can.

        Args:
          graph: The trial's graph.
          slice: The device group.

        Returns:
          A reason, or an empty string.
        """


@dataclasses.dataclass(frozen=True)
class CopyResult:
    """Copies the result of the first trial to one whose graph was tried before, without a run."""


@dataclasses.dataclass(frozen=True)
class AnotherSeed:
    """Runs a trial whose graph was tried before with a new seed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A hyperparameter study.

    Args:
      name: Name of the study's folder, and of the group of its runs.
      base: The experiment that every trial edits; it is also trial 0.
      space: The search space.
      objectives: The objectives; with several, no single trial is the best.
      sampler: A sampler of Optuna, or `Grid`.
      pruner: A pruner of Optuna that stops bad trials early; None lets all trials finish.
      scheduler: `Asha` or `SuccessiveHalving`, which pause trials at rungs and promote the best;
        None trains every trial in one go. A study has a pruner or a scheduler.
      budget: Limits of the study; the first that is reached ends it.
      seeds: Trials of each setting, with the experiment's `seed` counted upwards; the setting is
        judged by their mean.
      dedupe: Treatment of a trial whose graph was tried before: `CopyResult`, `AnotherSeed`; None
        runs it again.
      engine: Engine that runs the trials; may be None if the study is started with an engine.
      packing: Trials that share a program, and perhaps a slice. By default, trials that differ only
        in runtime arguments share a program and run one after another; None compiles the program of
        every trial.
      gate: Feasibility check of each trial before it gets a slice, in addition to the checks of any
        graph.
      seed: Random seed of the sampler, combined with the number of the trial.
      storage: Storage of Optuna's copy of the study: a file in the study's folder, or an Optuna
        storage URL (`sqlite:///all.db`); None keeps no copy.
      directory: Root directory of the studies. The default, `studies`, is in the folder of the
        project; other relative paths are in the working directory.
    """

    name: str
    base: Any
    space: Space
    objectives: Sequence[Objective]
    sampler: Any
    pruner: Any = None
    scheduler: Scheduler | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)
    seeds: int = 1
    dedupe: CopyResult | AnotherSeed | None = CopyResult()
    engine: TrialEngine | None = None
    packing: Packing | None = dataclasses.field(
        default_factory=lambda: SharedPrograms(lanes="single")
    )
    gate: Gate | None = None
    seed: int = 0
    storage: str | None = "optuna.journal"
    directory: str = "studies"

    DESCRIBED: ClassVar[tuple[str, ...]] = ("base", "space", "sampler", "pruner")
    RANGES: ClassVar[dict[str, str]] = {"seeds": "1 <= x", "seed": "0 <= x < 4294967296"}

    def __post_init__(self) -> None:
        if not is_node(self.base):
            remedy = "build a study with luthier.study.build, which leaves the experiment alone"
            raise BadInput(Problem("the experiment of a study is a graph", "base", remedy=remedy))


# The fields that may change between two calls without making it another study.
FREE = ("budget", "engine", "packing", "gate", "storage", "directory")


def build(graph: Graph, packages: Sequence[str] = ()) -> Study:
    """Build the study that a graph describes; the parts in `DESCRIBED` stay descriptions.

    Args:
      graph: An `fdl.Config` of `Study`.
      packages: The user's packages; gates and engines with `packages` know them, too.

    Returns:
      The study.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> space = study.parse_space(["optimizer.b2=uniform(0.9,0.999)"])
      >>> study.build(study.study_of("betas", config, space, study.sampler("random"), [])).space
      Space(dimensions={'optimizer.b2': Uniform(low=0.9, high=0.999, step=None)}, constraints=())
    """
    # These stay nodes of the graph: the base is edited for each trial, and sampler and pruner are
    # built anew, with seeds.
    described = {name: graphs.get(graph, name) for name in Study.DESCRIBED}
    described["space"] = build_space(described["space"])
    study = graphs.build(graph, described | _known_packages(graph, packages))
    is_grid = Grid in (type(study.sampler), getattr(study.sampler, "__fn_or_cls__", None))
    if not is_grid or study.budget.trials != "auto":
        return study
    return dataclasses.replace(study, budget=dataclasses.replace(study.budget, trials=None))


def _known_packages(graph: Graph, packages: Sequence[str]) -> dict[str, Any]:
    """Return `packages` for every node of the gate and the engine that has that argument."""
    found: dict[str, Any] = {}
    for part in ("gate", "engine") if packages else ():
        node = graph.__arguments__.get(part)
        nodes = [("", node)] if is_node(node) else []
        nodes += [(p.path, p.value) for p in graphs.walk(node, defaults=False) if nodes]
        for path, inner in nodes:
            if (
                is_node(inner)
                and "packages" in graphs.signatures.arguments(inner.__fn_or_cls__).names
            ):
                own = inner.__arguments__.get("packages", ())
                at = ".".join(filter(None, (part, path, "packages")))
                found[at] = tuple(dict.fromkeys((*own, *packages)))
    return found


def build_space(space: Any) -> Space:
    """Return a space whose own nodes are built, and whose options are not.

    Args:
      space: A `Space`, or the node of one.

    Returns:
      The space.

    Example:
      >>> from luthier import study
      >>> space = study.parse_space(["seed=choice(0,1)"])
      >>> study.build_space(space) is space
      True
    """
    if not is_node(space):
        return space
    options = {
        place.path: place.value
        for place in graphs.walk(space, defaults=False)
        # The space itself is built, but its options are values for the base, which may be nodes
        # that only a trial builds.
        if place.part in ("options", "values", "rows")
        and is_node(place.owner)
        and ".options[" not in place.path
    }
    return graphs.build(space, options)


def is_study(graph: Graph) -> bool:
    """Return whether a graph describes a study, and not an experiment.

    Args:
      graph: A node.

    Returns:
      True for an `fdl.Config` of `Study`.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> study.is_study(luthier.experiment("quickstart"))
      False
    """
    return getattr(graph, "__fn_or_cls__", None) is Study


def sets_study(override: str) -> bool:
    """Return whether an override sets what a study has and an experiment has not.

    Args:
      override: An override, such as `pruner=optuna.pruners.HyperbandPruner()`.
    """
    match = re.match(r"[A-Za-z_]\w*", override)
    if match is None or match[0] not in {field.name for field in dataclasses.fields(Study)}:
        return False
    from luthier.program import Experiment  # imports arrays, which most command lines need not

    return match[0] not in {field.name for field in dataclasses.fields(Experiment)}


def check(graph: Graph, packages: Sequence[str] = ()) -> None:
    """Check the graph of a study, its experiment too.

    Args:
      graph: An `fdl.Config` of `Study`.
      packages: The user's packages that a recorded graph may name.

    Raises:
      ValidationError: Something is wrong; every problem is in it.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> space = study.parse_space(["optimizer.b2=uniform(0.9,0.999)"])
      >>> study.check(study.study_of("betas", config, space, study.sampler("random"), []))
    """
    # The study's own graph and the experiment are validated apart: the experiment belongs to
    # `base`, but its problems are those of a whole graph, with paths of their own that get the
    # prefix `base`.
    problems: list[Problem] = []
    alone = graphs.copy_graph(graph)
    # The space is checked where it can be applied to the base (`check_space`).
    for name in ("base", "space"):
        if name in alone.__arguments__:
            del alone.__arguments__[name]
    given = [name for name in ("base", "space") if name in graph.__arguments__]
    try:
        graphs.validate(alone, packages)
    except BadInput as error:
        # Without `base` and `space`, validation reports that they are missing.
        problems += [problem for problem in error.problems if problem.path not in given]
    try:
        if "base" in given:
            graphs.validate(graph.__arguments__["base"], packages)
    except BadInput as error:
        problems += [_below("base", problem) for problem in error.problems]
    sampler = graph.__arguments__.get("sampler")
    # It would be ignored (`OptunaSuggester._sampler`), and a setting that nothing reads is an
    # error.
    if is_node(sampler) and sampler.__arguments__.get("seed") is not None:
        remedy = "leave it out, and set seed of the study"
        what = "has no effect: the sampler is seeded from the study's seed and the trial's number"
        problems.append(Problem(what, "sampler.seed", remedy=remedy))
    if problems:
        raise BadInput(problems)


def _below(path: str, problem: Problem) -> Problem:
    return dataclasses.replace(problem, path=f"{path}.{problem.path}" if problem.path else path)
