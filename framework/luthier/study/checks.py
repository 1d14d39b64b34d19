"""Checks of a study: everything that is wrong with it, at once, before anything starts."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from luthier import graph as graphs
from luthier.durations import Steps
from luthier.errors import BadInput, Problem
from luthier.graph import Graph
from luthier.graph.paths import is_node
from luthier.records import name_problem
from luthier.study import study as studies
from luthier.study.driver.sampling import quiet_optuna
from luthier.study.objectives import Measured, reporting_set
from luthier.study.rungs import Asha, SuccessiveHalving, reached_rung, rung_fractions
from luthier.study.space import Constraint, Grid
from luthier.study.space_checks import Editing, check_space

_OPTUNA = ("optuna.samplers", "optuna.pruners")


def check_study(graph: Graph, editing: Editing) -> studies.Study:
    """Return the study that a graph describes, checked.

    Args:
      graph: An `fdl.Config` of `Study`.
      editing: How words of its space are read.

    Returns:
      The study, built.

    Raises:
      BadInput: Something is wrong; every problem is in it.
    """
    problems: list[Problem] = []
    try:
        studies.check(graph, editing.packages)
    except BadInput as error:
        problems += error.problems
    try:
        # Attempted although the graph has problems: checks of the built study find further ones,
        # and all should be listed at once.
        study = studies.build(graph, editing.packages)
    except BadInput as error:
        raise BadInput([*problems, *error.problems]) from None
    # After the study could be built: probing the space applies its choices to the base.
    space = check_space(study.base, study.space, editing)
    problems += [p for p in space if not _is_of_base(p, problems)]
    if (problem := name_problem(study.name, "a study")) is not None:
        problems.append(problem)
    problems += _objective_problems(study)
    problems += _scheduler_problems(study)
    problems += _sampler_problems(study)
    problems += _budget_problems(study)
    if problems:
        raise BadInput(problems)
    return study


def _is_of_base(problem: Problem, problems: Sequence[Problem]) -> bool:
    """Return whether the base itself has this problem, which every trial then has, too."""
    return any(p.what == problem.what and p.path == f"base.{problem.path}" for p in problems)


def evaluations_of(base: Graph) -> Mapping[str, Sequence[Any]] | None:
    """Return the metrics of every evaluation set of an experiment; None where it is unknown.

    Args:
      base: The experiment's graph; only its task is built.

    Returns:
      Metrics by the name of the evaluation, in the order of the experiment.

    Example:
      >>> import luthier
      >>> from luthier import study
      >>> list(study.evaluations_of(luthier.experiment("quickstart")))
      ['held_out']
    """
    try:
        names = graphs.get(base, "evaluations")
        task = graphs.get(base, "task")
        metrics = graphs.build(task).metrics if is_node(task) else task.metrics
    except (BadInput, AttributeError):
        return None
    return dict.fromkeys(names, tuple(metrics))


def _num_classes(base: Graph) -> int | None:
    """Return how many classes the model of an experiment predicts; None where that is unknown."""
    try:
        found = graphs.evaluate(graphs.get(base, "model.num_classes"))
    except BadInput:
        return None
    return found if isinstance(found, int) else None


def _objective_problems(study: studies.Study) -> list[Problem]:
    problems: list[Problem] = []
    if not study.objectives:
        remedy = "name a metric: --objective EVALUATION/METRIC"
        problems.append(Problem("there is no objective", "objectives", remedy=remedy))
    evaluations = evaluations_of(study.base)
    num_classes = _num_classes(study.base)
    for index, objective in enumerate(study.objectives):
        found = objective.check(evaluations)
        if not found and evaluations and isinstance(objective, Measured):
            found = objective.selector.check(evaluations, num_classes)
        for problem in found:
            path = f"objectives[{index}].{problem.path}".rstrip(".")
            problems.append(dataclasses.replace(problem, path=path))
    for index, constraint in enumerate(study.space.constraints):
        for problem in constraint.check(evaluations) if isinstance(constraint, Constraint) else ():
            path = f"space.constraints[{index}].{problem.path}".rstrip(".")
            problems.append(dataclasses.replace(problem, path=path))
    # Optuna's pruners compare one number of each trial at the same step, so a pruner needs exactly
    # one objective that evaluations report during training.
    if study.pruner is not None:
        if len(study.objectives) > 1:
            remedy = "set pruner=None"
            what = "a pruner compares trials by one objective, and there are several"
            problems.append(Problem(what, "pruner", remedy=remedy))
        elif study.objectives and (evaluation := reporting_set(study.objectives[0])):
            problems += _rung_problems(study, evaluation)
        elif study.objectives:
            name = study.objectives[0].name
            what = f"a pruner needs an objective that evaluations report, and {name} is not one"
            problems.append(Problem(what, "pruner", remedy="set pruner=None"))
    return problems


def _budget_problems(study: studies.Study) -> list[Problem]:
    """Return the limits that can never act, or that need another study."""
    problems: list[Problem] = []
    budget, trials = study.budget, study.budget.num_trials
    limits = {"no_improvement": budget.no_improvement, "target": budget.target}
    for name, limit in limits.items():
        if limit is not None and len(study.objectives) > 1:
            what = "compares trials by one objective, and there are several"
            remedy = f"leave out budget.{name}, or all objectives but one"
            problems.append(Problem(what, f"budget.{name}", remedy=remedy))
    if budget.target is not None and not math.isfinite(budget.target):
        what = f"{budget.target!r} is not a finite number"
        problems.append(Problem(what, "budget.target", remedy="set a value of the objective"))
    limit = budget.no_improvement
    # The first setting, which nothing is compared with, comes before them.
    if limit is not None and trials is not None and limit > trials - study.seeds:
        what = f"{limit} trials without a better one never come: the study ends after {trials}"
        most = trials - study.seeds
        remedy = f"set it to {most} or less" if most > 0 else "leave it out"
        problems.append(Problem(what, "budget.no_improvement", remedy=remedy))
    wall, trial = budget.wall_seconds, budget.trial_seconds
    if wall is not None and trial is not None and trial >= wall:
        what = f"{trial:g} seconds of a trial never pass: the study ends after {wall:g}"
        remedy = f"set it below {wall:g}"
        problems.append(Problem(what, "budget.trial_seconds", remedy=remedy))
    # Pruners only: a sampler whose trials are all random still is one, and shortening a study for a
    # test must not be refused for it.
    for argument, count in _startup_trials(study.pruner):
        if trials is not None and count >= trials:
            what = f"{count} of {trials} trials come before it acts, so that no trial is pruned"
            remedy = f"set it below {trials}, or budget.trials above {count}"
            problems.append(Problem(what, f"pruner.{argument}", remedy=remedy))
    return problems


def _startup_trials(pruner: Any) -> list[tuple[str, int]]:
    """Return the trials that must have ended before a pruner ends one, by argument."""
    if not is_node(pruner):
        return []
    given, found = pruner.__arguments__, []
    parameter = inspect.signature(pruner.__fn_or_cls__).parameters.get("n_startup_trials")
    if parameter is not None:
        value = graphs.evaluate(given.get("n_startup_trials", parameter.default))
        if isinstance(value, int):
            found.append(("n_startup_trials", value))
    if (inner := given.get("wrapped_pruner")) is None:
        return found
    return found + [(f"wrapped_pruner.{name}", value) for name, value in _startup_trials(inner)]


def _rung_problems(study: studies.Study, name: str) -> list[Problem]:
    """Return why a pruner would never be asked, or never end a trial.

    Only evaluations before the last step count: the end of a trial is no place to end it early.
    """
    try:
        every = graphs.get(study.base, f"evaluations.{name}.every")
    except BadInput:
        return []  # not an evaluation of ours: it reports when it likes
    if every is None:
        what = f"a pruner has nothing to judge: {name} is evaluated only at the end"
        remedy = f"set base.evaluations.{name}.every=Steps(N)"
        return [Problem(what, "pruner", remedy=remedy)]
    # Read from the words of the space, without applying them: a pattern such as `any:steps` is not
    # recognized here, and the base's own rungs are judged then.
    # A prefix that matches too much (`training` for any field below it) only skips this check.
    varied = {named.key for named in study.space.every()}
    if any(key.startswith(("training", f"evaluations.{name}")) for key in varied):
        return []  # each trial has rungs of its own
    try:
        every = graphs.build(every) if is_node(every) else every
        steps = graphs.evaluate(graphs.get(study.base, "training.steps"))
    except BadInput:
        return []
    # Tokens, epochs and seconds become steps only with the data or a clock, which are not here.
    if not isinstance(every, Steps) or not isinstance(steps, int):
        return []
    if steps < 2:
        what = f"a pruner has nothing to judge before the end: base.training.steps is {steps}"
        return [Problem(what, "pruner", remedy="set base.training.steps above 1, or pruner=None")]
    # The last multiple of `every` below the last step: the driver is not asked at the end itself
    # (`TrialWatcher.evaluated`).
    last = (steps - 1) // every.count * every.count
    if last <= 0:
        what = f"{name} is evaluated only at the end: every {every.count} of {steps} steps"
        most = "Steps(1)" if steps == 2 else f"Steps(N) with N below {steps}"
        return [Problem(what, "pruner", remedy=f"set base.evaluations.{name}.every={most}")]
    return [
        Problem(
            f"{limit} is beyond the last evaluation before the end, at step {last} of {steps}",
            f"pruner.{argument}",
            remedy=f"set it to {last} or less, or evaluate more often",
        )
        for argument, limit in _warmups(study.pruner)
        if limit > last
    ]


def _scheduler_problems(study: studies.Study) -> list[Problem]:
    """Return why a study cannot be scheduled by rungs."""
    scheduler = study.scheduler
    if scheduler is None:
        return []
    if not isinstance(scheduler, Asha | SuccessiveHalving):
        name = type(scheduler).__name__
        remedy = "use luthier.study.Asha or SuccessiveHalving; a pruner of Optuna is set as pruner"
        return [Problem(f"{name} is not a scheduler", "scheduler", remedy=remedy)]
    found: list[tuple[str, str]] = []  # what is wrong, and the remedy
    if study.pruner is not None:
        what = "a study has a scheduler or a pruner, and this one has both"
        found.append((what, "set pruner=None or scheduler=None"))
    if study.seeds > 1:
        what = f"a scheduler promotes single trials, and a setting of seeds={study.seeds} has more"
        found.append((what, "set seeds=1, and repeat the best settings in a study of their own"))
    if len(study.objectives) > 1:
        what = "a scheduler compares trials by one objective, and there are several"
        found.append((what, "set scheduler=None"))
    elif study.objectives and (evaluation := reporting_set(study.objectives[0])):
        found += (
            _short_runs(study, scheduler)
            if scheduler.horizon == "rung"
            else _unreached_rungs(study, scheduler, evaluation)
        )
    elif study.objectives:
        name = study.objectives[0].name
        what = f"a scheduler needs an objective that evaluations report, and {name} is not one"
        found.append((what, "make it of metrics of one evaluation set, or set scheduler=None"))
    with contextlib.suppress(BadInput):  # an experiment that is not ours saves as it likes
        # Trials that restart for each rung resume from nothing.
        if scheduler.horizon == "full" and graphs.get(study.base, "checkpoints") is None:
            what = "a paused trial resumes from a checkpoint, and the experiment keeps none"
            found.append((what, "set base.checkpoints:=luthier.checkpoint.Checkpoints()"))
    is_grid = Grid in (type(study.sampler), getattr(study.sampler, "__fn_or_cls__", None))
    if scheduler.waits and study.budget.num_trials is None and not is_grid:
        what = "SuccessiveHalving promotes when all trials have reached a rung: how many is not set"
        found.append((what, "set budget.trials, or use Asha"))
    return [Problem(what, "scheduler", remedy=remedy) for what, remedy in found]


def _short_runs(study: studies.Study, scheduler: Asha | SuccessiveHalving) -> list[tuple[str, str]]:
    """Return why schedules cannot be planned for the rungs, with the remedy."""
    remedy = 'set scheduler.horizon="full"'
    try:
        steps = graphs.evaluate(graphs.get(study.base, "training.steps"))
    except BadInput:
        return [
            ('horizon="rung" scales training.steps, which the experiment does not have', remedy)
        ]
    if not isinstance(steps, int):
        if scheduler.first is None:
            return []
        what = 'first is in steps, and with horizon="rung" it must be known how many a trial has'
        return [(what, "leave out scheduler.first, or set base.training.steps to a number")]
    lowest = rung_fractions(scheduler, steps)[0] * steps
    if lowest < 1:
        what = f"the lowest rung is at {lowest:.2g} of {steps} steps, below one step"
        return [(what, "set fewer rungs (scheduler.num_rungs), or more steps")]
    if lowest >= steps:
        what = f"no trial would stay at a rung: the lowest is at {steps} of {steps} steps"
        return [(what, f"set scheduler.first below training.steps={steps}")]
    return []


def _unreached_rungs(
    study: studies.Study, scheduler: Asha | SuccessiveHalving, name: str
) -> list[tuple[str, str]]:
    """Return that no evaluation before the end reaches a rung, with the remedy."""
    try:
        every = graphs.get(study.base, f"evaluations.{name}.every")
        every = graphs.build(every) if is_node(every) else every
        steps = graphs.evaluate(graphs.get(study.base, "training.steps"))
    except BadInput:
        return []  # not an experiment of ours: it reports when it likes
    # As in `_rung_problems`: trials whose length or evaluations the space changes have reports of
    # their own.
    if any(
        named.key.startswith(("training", f"evaluations.{name}")) for named in study.space.every()
    ):
        return []
    if not isinstance(steps, int) or not isinstance(every, Steps | None):
        return []
    reports = () if every is None else range(every.count, steps, every.count)
    if any(reached_rung(scheduler, step, step / steps) for step in reports):
        return []
    lowest = max(1, int(rung_fractions(scheduler, steps)[0] * steps))
    often = "only at its end" if every is None else f"every {every.count} of {steps} steps"
    what = f"no trial would pause: {name} is evaluated {often}, and no rung is reached before"
    if lowest >= steps:
        return [(what, f"set scheduler.first below training.steps={steps}")]
    return [(what, f"set base.evaluations.{name}.every=Steps({lowest})")]


def _warmups(pruner: Any) -> list[tuple[str, int]]:
    """Return the steps before which a pruner never ends a trial, by argument."""
    given = pruner.__arguments__ if is_node(pruner) else {}
    found = []
    for argument in ("n_warmup_steps", "min_resource"):
        value = graphs.evaluate(given[argument]) if argument in given else None
        # Not every value is a fixed step: `min_resource` may be `auto`.
        if isinstance(value, int):
            found.append((argument, value))
    if (inner := given.get("wrapped_pruner")) is None:
        return found
    return found + [(f"wrapped_pruner.{name}", value) for name, value in _warmups(inner)]


def _sampler_problems(study: studies.Study) -> list[Problem]:
    problems: list[Problem] = []
    target = study.sampler.__fn_or_cls__ if is_node(study.sampler) else type(study.sampler)
    if target is not Grid and not _is_of_optuna(target, "BaseSampler"):
        what = f"{getattr(target, '__name__', target)} is not a sampler"
        remedy = (
            "use one of optuna.samplers, a subclass of optuna.samplers.BaseSampler, or "
            "luthier.study.Grid, described by fdl.Config"
        )
        problems.append(Problem(what, "sampler", remedy=remedy))
    elif target.__name__ == "GridSampler":
        # It ends a study by `Study.stop` in `after_trial`. That raises outside of `Study.optimize`,
        # and `InMemoryStudy.record` calls no `after_trial` of it: the grid would not end by itself.
        what = "Optuna's grid stops its study from within"
        problems.append(Problem(what, "sampler", remedy="use luthier.study.Grid"))
    # The one package that luthier has an extra for (`cma-es`). The absence of others that samplers
    # import, such as torch for `GPSampler`, shows only when the sampler is built.
    elif target.__name__ == "CmaEsSampler" and not _has("cmaes"):
        problems.append(Problem("needs cmaes", "sampler", remedy="pip install cmaes"))
    elif is_node(study.sampler) and target is not Grid:
        # It is built again for each setting: what its constructor refuses is reported now, and not
        # after the baseline. An error in the user's own code is raised as it is.
        with quiet_optuna():
            graphs.build(study.sampler)
    # Both change the leaf `seed` of the experiment, at the top of its graph.
    if study.seeds > 1 or isinstance(study.dedupe, studies.AnotherSeed):
        try:
            graphs.get(study.base, "seed")
        except BadInput:
            remedy = "set seeds=1 and dedupe to CopyResult"
            what = "the experiment has no seed, so its settings cannot be repeated"
            problems.append(Problem(what, "seeds", remedy=remedy))
    budget = study.budget
    limits = (
        budget.num_trials,
        budget.wall_seconds,
        budget.device_hours,
        budget.no_improvement,
    )
    # A grid ends by itself. Failures and `trial_seconds` are no limits: a study of trials that
    # succeed would never end.
    if target is not Grid and all(limit is None for limit in limits):
        remedy = "set budget.trials, budget.wall_seconds or budget.device_hours"
        problems.append(Problem("has no limit", "budget", remedy=remedy))
    return problems


def _is_of_optuna(target: Any, name: str) -> bool:
    return any(
        # By name, without importing Optuna here.
        kind.__name__ == name and kind.__module__.startswith("optuna.")
        for kind in getattr(target, "__mro__", ())
    )


def _has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
