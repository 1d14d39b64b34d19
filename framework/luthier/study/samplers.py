"""Samplers and pruners by the names that the command line has for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
import optuna

from luthier import graph as graphs
from luthier.errors import BadInput, Problem
from luthier.graph import Graph, nearest
from luthier.graph.paths import is_node
from luthier.metrics import Selector
from luthier.study.checks import evaluations_of
from luthier.study.engines.local import Local
from luthier.study.gate import ShapeGate
from luthier.study.objective_grammar import default_objective
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
    "percentile": optuna.pruners.PercentilePruner,
    "successive-halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "wilcoxon": optuna.pruners.WilcoxonPruner,
    "threshold": optuna.pruners.ThresholdPruner,
}
SCHEDULERS: Mapping[str, Any] = {"asha": Asha, "successive-halving": SuccessiveHalving}


def sampler(word: str) -> fdl.Config:
    """Return the node of a sampler.

    Args:
      word: A key of `SAMPLERS`, with arguments or without: `tpe(n_startup_trials=5)`; or a node in
        the override grammar, `optuna.samplers.TPESampler()`.

    Returns:
      An `fdl.Config` of the sampler.

    Raises:
      BadInput: There is none of this name, or it does not have such an argument.

    Example:
      >>> from luthier import study
      >>> study.sampler("tpe")
      <Config[TPESampler()]>
      >>> study.sampler("tpe(n_startup_trials=5)").n_startup_trials
      5
    """
    return _node("sampler", word)


def pruner(word: str) -> fdl.Config:
    """Return the node of a pruner.

    Args:
      word: A key of `PRUNERS`, with arguments or without: `median(n_startup_trials=2)`; or a node
        in the override grammar.

    Raises:
      BadInput: There is none of this name, or it does not have such an argument.
    """
    return _node("pruner", word)


def scheduler(word: str) -> fdl.Config:
    """Return the node of a scheduler of trials.

    Args:
      word: A key of `SCHEDULERS`, with arguments or without: `asha(reduction=4)`; or a node in the
        override grammar.

    Returns:
      An `fdl.Config` of the scheduler.

    Raises:
      BadInput: There is none of this name, or it does not have such an argument.

    Example:
      >>> from luthier import study
      >>> study.scheduler("asha")
      <Config[Asha()]>
    """
    return _node("scheduler", word)


_SHORT: Mapping[str, Mapping[str, Any]] = {
    "sampler": SAMPLERS,
    "pruner": PRUNERS,
    "scheduler": SCHEDULERS,
}
"""The short names of each field of a study that has some."""
# `sampler=tpe(...)` or `pruner:=median`: a name without dots, and its arguments if there are any.
_NAMED = re.compile(r"(\w+)\s*(:?=)\s*([A-Za-z][\w-]*)\s*(\(.*\))?\s*", re.DOTALL)


def with_full_names(override: str) -> str:
    """Return an override with the full name of a sampler, pruner or scheduler, not a short one.

    Args:
      override: `sampler=tpe(n_startup_trials=5)`; any other override is returned as it is.

    Raises:
      BadInput: There is no sampler, pruner or scheduler of this name.

    Example:
      >>> from luthier.study import samplers
      >>> samplers.with_full_names("sampler=tpe(n_startup_trials=5)")
      'sampler=optuna.samplers.TPESampler(n_startup_trials=5)'
    """
    match = _NAMED.fullmatch(override)
    if match is None or match[1] not in _SHORT or match[3] == "None":
        return override
    return f"{match[1]}{match[2]}{_full_name(match[1], match[3], override)}{match[4] or '()'}"


def _node(field: str, word: str) -> fdl.Config:
    name, bracket, rest = word.strip().partition("(")
    path = name if "." in name else _full_name(field, name, f"--{field}")
    # By the override grammar, which knows the arguments of the class and their types.
    changed = graphs.apply(
        fdl.Config(Study), [f"{field}:={path}{bracket or '('}{rest or ')'}"], f"--{field}"
    )
    return graphs.get(changed, field)


def _full_name(field: str, name: str, origin: str) -> str:
    known = _SHORT[field]
    if name not in known:
        what = f"there is no {field} {name!r}"
        remedy = f"there are {', '.join(known)}"
        raise BadInput(Problem(what, origin, "", remedy, nearest(name, known)))
    # The package that exports the class: `optuna.samplers`, and not `optuna.samplers._tpe.sampler`.
    target = known[name]
    return ".".join([*target.__module__.split(".")[:2], target.__name__])


def kept_best(base: Graph) -> Selector | None:
    """Return the selector of `checkpoints.keep_best` of an experiment; None without one.

    Args:
      base: The experiment's graph; only this part of it is built.
    """
    try:
        node = graphs.get(base, "checkpoints.keep_best")
        found = graphs.build(node) if is_node(node) else node
    except BadInput:
        return None
    return found if isinstance(found, Selector) else None


def objective_note(study: Graph) -> str:
    """Return a line on an objective that follows from `keep_best`; an empty string for others.

    Args:
      study: The graph of a study of an experiment.
    """
    objectives, kept = graphs.build(graphs.get(study, "objectives")), kept_best(study.base)
    if kept is None or [getattr(one, "selector", None) for one in objectives] != [kept]:
        return ""
    return f"objective: {kept.name} ({kept.direction} is better), from checkpoints.keep_best"


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
      An `fdl.Config` of `Study`. Its objective is the metric of the experiment's
      `checkpoints.keep_best`; without one, the first metric of the only evaluation.

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
        objectives=default_objective(evaluations_of(base), kept_best(base)),
        sampler=sampler,
        engine=fdl.Config(Local),
        packing=fdl.Config(SharedPrograms, lanes="single"),
        gate=fdl.Config(ShapeGate, packages=list(packages)),
    )
