"""One call that runs or resumes a study and shows its progress: `luthier.sweep`."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from luthier import graph as graphs
from luthier import project
from luthier.errors import BadInput, Problem
from luthier.facade import root_function
from luthier.graph import Graph
from luthier.records import trust
from luthier.storage.bucket import is_url
from luthier.study import objective_grammar, samplers, start
from luthier.study import study as studies
from luthier.study.checks import evaluations_of
from luthier.study.driver.directory import STUDIES, StudyDirectory, find_study
from luthier.study.space_grammar import parse_space
from luthier.study.views.text import LiveView

_Function = TypeVar("_Function", bound="Callable[..., start.Outcome]")


def _with_one_space(function: _Function) -> _Function:
    """Return a function that rejects a search space which is not in one list, with that list."""

    # A wrapper, so that the signature in `help` is the one to write.
    @functools.wraps(function)
    def call(
        study: Graph | str, space: str | Sequence[str] = (), *others: Any, **options: Any
    ) -> start.Outcome:
        if others:
            name = repr(study) if isinstance(study, str) else "study"
            dimensions = [space, *others]
            if not all(isinstance(one, str) for one in dimensions):
                remedy = f"write luthier.sweep({name}, space, overrides=[...])"
                raise BadInput(Problem("overrides are given by their name", remedy=remedy))
            remedy = f"write luthier.sweep({name}, {dimensions!r})"
            raise BadInput(Problem("the search space is not in one list", remedy=remedy))
        return function(study, space, **options)

    return cast(_Function, call)


@root_function("sweep")
@_with_one_space
def sweep(
    study: Graph | str,
    space: str | Sequence[str] = (),
    *,
    objective: str | Sequence[str] = (),
    overrides: Sequence[str] = (),
    name: str | None = None,
    trials: int | None = None,
    resume: bool = False,
    packages: Sequence[str] | None = None,
    shelves: Sequence[str] | None = None,
) -> start.Outcome:
    """Run a study to its end, with a line for each trial that ends, or a live table in a terminal.

        outcome = luthier.sweep("sweeps.lm_learning_rate")
        outcome = luthier.sweep("quickstart", ["optimizer.b2=uniform(0.9,0.999)"], trials=8)
        outcome = luthier.sweep(
            "quickstart",
            ["optimizer.b2=uniform(0.9,0.999)"],
            objective="held_out/loss",
            overrides=["training.steps=100", "pruner=median", "pruner.n_startup_trials=2"],
            name="second_moments",
        )
        outcome.best  # the overrides of the best trial

    An interrupt (Ctrl-C) stops the study cleanly, and the function returns; `resume=True`
    continues the study.

    Args:
      study: An `fdl.Config` of `Study`, or a reference to one; with `space`, of an `Experiment`.
        With `resume`, the name, the folder or the URL of a study as well.
      space: The search space of an experiment, as `--space` of `luthier sweep` takes it:
        `PATH=log(1e-4,1e-2)`.
      objective: The metric to optimize, or several, as `--objective` takes it: `held_out/loss`,
        `train/loss:mean100`, `maximize(held_out/accuracy - 0.1 * step_time)`. Without one, the
        study's own; of an experiment that of `checkpoints.keep_best`, or the first metric of the
        only evaluation.
      overrides: Overrides as on the command line. If `study` is an experiment, overrides of
        settings that only a study has (`pruner=`, `sampler=`, `objectives=`, `budget.*`) apply
        to the study. `objectives=held_out/loss` is the same as `objective`.
      name: The study's name; None means that of the study, or of the experiment.
      trials: Number of trials, with the baseline; None leaves it to the study.
      resume: Resume the study of this name. Its budget and engine may have changed.
      packages: The user's modules that graphs and values may name; None means those of the project
        (`[tool.luthier] packages` of the nearest pyproject.toml).
      shelves: Modules whose fiddlers may be named without their module; None means
        `luthier.recipes` and those of the project.

    Returns:
      The state of the study.

    Raises:
      BadInput: The study cannot run, a study of this name exists and `resume` is False, or there
        is no study to resume. Nothing was written.
    """
    own, known = project.packages_of(packages), project.shelves_of(shelves)
    recorded = None
    if resume and isinstance(study, str) and _is_recorded(study):
        recorded = find_study(study)
        trust.require(recorded.path, "resuming it starts its engine and its fiddlers")
        study = recorded.read_study()
    elif isinstance(study, str):
        with project.importable(project.root()):
            study = graphs.resolve(study)
    overrides = [overrides] if isinstance(overrides, str) else overrides
    overrides = [samplers.with_full_names(override) for override in overrides]
    objectives = [objective] if isinstance(objective, str) else list(objective)
    if texts := [t for o in overrides if (t := objective_grammar.objective_of(o))]:
        objectives = texts[-1:]
        overrides = [o for o in overrides if not objective_grammar.objective_of(o)]
    # Which direction is better depends on the evaluations, so the objectives come after overrides
    # of these, and before their own.
    late = [o for o in overrides if objectives and objective_grammar.sets_objectives(o)]
    overrides = [o for o in overrides if o not in late]
    of_study = [o for o in overrides if studies.is_study(study) or studies.sets_study(o)]
    of_base = [o for o in overrides if o not in of_study]
    study = graphs.apply(study, of_base, shelves=known, packages=packages)
    if studies.is_study(study) == bool(space):
        remedy = "change its space.dimensions" if space else "give it a space, or describe a Study"
        kind = "a study has a space of its own" if space else "an experiment has no search space"
        raise BadInput(Problem(kind, "space", remedy=remedy))
    space = [space] if isinstance(space, str) else space
    if space:
        title = graphs.get(study, "name")
        study = samplers.study_of(title, study, parse_space(space), samplers.sampler("tpe"), own)
    study = graphs.apply(study, of_study, shelves=known, packages=packages)
    if objectives:
        evaluations = evaluations_of(graphs.get(study, "base"))
        nodes = [objective_grammar.objective(text, evaluations) for text in objectives]
        study = graphs.apply(study, [("objectives", nodes)], "objective")
        study = graphs.apply(study, late, shelves=known, packages=packages)
    if name is not None:
        study = graphs.apply(study, [("name", name)], "name")
    if trials is not None:
        study = graphs.apply(study, [f"budget.trials={trials}"], "trials")
    if space and not objectives and (note := samplers.objective_note(study)):
        print(note)
    built = studies.build(study, own)
    folder = recorded.path if recorded else project.records_folder(built.directory) / built.name
    if text := project.described(folder):
        print(f"project: {text}")
    with LiveView.of(built) as view:
        if not resume:
            return start.run(study, packages=own, shelves=known, view=view)
        return start.resume(str(folder), study, packages=own, shelves=known, view=view)


def _is_recorded(name: str) -> bool:
    """Return whether a study of this name, or in this folder, is recorded."""
    if is_url(name):
        return StudyDirectory(project.working_copy(name)).fetch()
    paths = (pathlib.Path(name), project.records_folder(STUDIES) / name)
    return any(StudyDirectory(path).exists for path in paths)
