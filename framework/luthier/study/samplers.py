"""Samplers and objectives by the names that the command line has for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
import optuna

from luthier.errors import BadInput, Problem
from luthier.graph import Graph, nearest
from luthier.metrics import Selector
from luthier.study import objectives
from luthier.study.checks import evaluations_of
from luthier.study.engines.local import Local
from luthier.study.gate import ShapeGate
from luthier.study.packing import SharedPrograms
from luthier.study.rungs import Asha, SuccessiveHalving
from luthier.study.space import Grid, Space
from luthier.study.study import Study

SAMPLERS: Mapping[str, Any] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "quasi-random": optuna.samplers.QMCSampler,
    "grid": Grid,
    "cma-es": optuna.samplers.CmaEsSampler,
    "nsga-ii": optuna.samplers.NSGAIISampler,
}
PRUNERS: Mapping[str, Any] = {
    "median": optuna.pruners.MedianPruner,
    "successive-halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "wilcoxon": optuna.pruners.WilcoxonPruner,
}
SCHEDULERS: Mapping[str, Any] = {"asha": Asha, "successive-halving": SuccessiveHalving}
_OVER: Mapping[str, Any] = {"last": objectives.Last, "best": objectives.Best}
FACTS: Mapping[str, Any] = {
    "step_time": objectives.StepTime,
    "device_hours": objectives.DeviceHours,
    "peak_bytes": objectives.PeakBytes,
    "parameters": objectives.Parameters,
}


def sampler(name: str) -> fdl.Config:
    """Return the node of a sampler.

    Args:
      name: A key of `SAMPLERS`.

    Returns:
      An `fdl.Config` of the sampler with its defaults.

    Raises:
      BadInput: There is none of this name.

    Example:
      >>> from luthier import study
      >>> study.sampler("tpe")
      <Config[TPESampler()]>
    """
    return _named("sampler", name, SAMPLERS)


def pruner(name: str) -> fdl.Config:
    """Return the node of a pruner.

    Args:
      name: A key of `PRUNERS`.

    Raises:
      BadInput: There is none of this name.
    """
    return _named("pruner", name, PRUNERS)


def scheduler(name: str) -> fdl.Config:
    """Return the node of a scheduler of trials.

    Args:
      name: A key of `SCHEDULERS`.

    Returns:
      An `fdl.Config` of the scheduler with its defaults.

    Raises:
      BadInput: There is none of this name.

    Example:
      >>> from luthier import study
      >>> study.scheduler("asha")
      <Config[Asha()]>
    """
    return _named("scheduler", name, SCHEDULERS)


def _named(kind: str, name: str, known: Mapping[str, Any]) -> fdl.Config:
    if name not in known:
        what = f"there is no {kind} {name!r}"
        remedy = f"there are {', '.join(known)}"
        raise BadInput(Problem(what, f"--{kind}", "", remedy, nearest(name, known)))
    return fdl.Config(known[name])


def objective(word: str, evaluations: Mapping[str, Sequence[Any]] | None) -> fdl.Config:
    """Return the node of an objective.

    Args:
      word: `held_out/loss`, `held_out/loss:best`, `held_out/loss:mean3`; or `step_time`,
        `device_hours`, `peak_bytes`, `parameters`.
      evaluations: The metrics of every evaluation set, which know what is better.

    Returns:
      An `fdl.Config` of the objective.

    Raises:
      BadInput: It cannot be read.

    Example:
      >>> from luthier import graph, study
      >>> print(graph.render(study.objective("held_out/loss:best", None)))
      luthier.study.Measured
        selector: luthier.metrics.Selector
          evaluation = 'held_out'
          metric = 'loss'
          direction = 'lower'
        over: luthier.study.Best
    """
    # Facts have names without a slash, so they cannot be confused with `EVALUATION/METRIC`.
    if word in FACTS:
        return fdl.Config(FACTS[word])
    name, _, reduction = word.partition(":")
    evaluation, slash, metric = name.partition("/")
    mean = re.fullmatch(r"mean0*([1-9][0-9]*)", reduction)
    if not slash or not (mean or reduction in ("", *_OVER)):
        remedy = f"write EVALUATION/METRIC, :best or :mean3 behind it, or {', '.join(FACTS)}"
        raise BadInput(Problem(f"{word!r} is not an objective", "--objective", remedy=remedy))
    # Whether lower or higher is better belongs to the metric. One that the experiment does not have
    # counts as lower here; the study's checks report it by name.
    known = {found.name: found.better for found in (evaluations or {}).get(evaluation, ())}
    selector = fdl.Config(Selector, evaluation, metric, known.get(metric, "lower"))
    if mean:
        over = fdl.Config(objectives.MeanOfLast, int(mean[1]))
    else:
        over = fdl.Config(_OVER[reduction or "last"])
    return fdl.Config(objectives.Measured, selector, over)


def default_objective(evaluations: Mapping[str, Sequence[Any]] | None) -> list[fdl.Config]:
    """Return the first metric of the only evaluation set; nothing where there is not one.

    Args:
      evaluations: The metrics of every evaluation set.

    Returns:
      A list with one node, or an empty one.

    Example:
      >>> from luthier import study
      >>> study.default_objective(None)
      []
    """
    if evaluations is None or len(evaluations) != 1:
        return []
    ((name, metrics),) = evaluations.items()
    return [objective(f"{name}/{metrics[0].name}", evaluations)] if metrics else []


def study_of(
    name: str, base: Graph, space: Space, sampler: fdl.Config, packages: Sequence[str]
) -> fdl.Config:
    """Return a study of an experiment, on the devices of this machine.

    Args:
      name: Its name.
      base: The experiment's graph.
      space: The search space.
      sampler: The node of the sampler.
      packages: The user's modules that graphs may name.

    Returns:
      An `fdl.Config` of `Study`, with the first metric of the only evaluation as its objective.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> config = luthier.experiment("quickstart")
      >>> space = study.parse_space(["optimizer.b2=uniform(0.9,0.999)"])
      >>> found = study.study_of("betas", config, space, study.sampler("random"), [])
      >>> study.is_study(found), study.build(found).name
      (True, 'betas')
    """
    return fdl.Config(
        Study,
        name=name,
        base=base,
        space=fdl.Config(Space, dict(space.dimensions), tuple(space.constraints)),
        objectives=default_objective(evaluations_of(base)),
        sampler=sampler,
        engine=fdl.Config(Local),
        packing=fdl.Config(SharedPrograms, lanes="single"),
        gate=fdl.Config(ShapeGate, packages=list(packages)),
    )
