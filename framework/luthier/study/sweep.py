"""One call that runs or resumes a study and shows its progress: `luthier.sweep`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from luthier import graph as graphs
from luthier import project
from luthier.errors import BadInput, Problem
from luthier.facade import root_function
from luthier.graph import Graph
from luthier.records import trust
from luthier.study import samplers, start
from luthier.study import study as studies
from luthier.study.driver.directory import STUDIES, StudyDirectory, find_study
from luthier.study.space_grammar import parse_space
from luthier.study.views.text import LiveView


@root_function("sweep")
def sweep(
    study: Graph | str,
    space: str | Sequence[str] = (),
    *,
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
            overrides=["training.steps=100", "pruner=optuna.pruners.MedianPruner()"],
            name="second_moments",
        )
        outcome.best  # the overrides of the best trial

    An interrupt (Ctrl-C) stops the study cleanly, and the function returns; `resume=True`
    continues the study.

    Args:
      study: An `fdl.Config` of `Study`, or a reference to one; with `space`, of an `Experiment`.
        With `resume`, the name or the folder of a study as well.
      space: The search space of an experiment, as `--space` of `luthier sweep` takes it:
        `PATH=log(1e-4,1e-2)`.
      overrides: Overrides as on the command line. If `study` is an experiment, overrides of
        settings that only a study has (`pruner=`, `sampler=`, `objectives=`, `budget.*`) apply
        to the study.
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
    of_study = [o for o in overrides if studies.is_study(study) or studies.sets_study(o)]
    study = graphs.apply(study, [o for o in overrides if o not in of_study], shelves=known)
    if studies.is_study(study) == bool(space):
        remedy = "change its space.dimensions" if space else "give it a space, or describe a Study"
        kind = "a study has a space of its own" if space else "an experiment has no search space"
        raise BadInput(Problem(kind, "space", remedy=remedy))
    space = [space] if isinstance(space, str) else space
    if space:
        title = graphs.get(study, "name")
        study = samplers.study_of(title, study, parse_space(space), samplers.sampler("tpe"), own)
    study = graphs.apply(study, of_study, shelves=known)
    if name is not None:
        study = graphs.apply(study, [("name", name)], "name")
    if trials is not None:
        study = graphs.apply(study, [f"budget.trials={trials}"], "trials")
    if space and (note := samplers.objective_note(study)):
        print(note)
    built = studies.build(study, own)
    with LiveView.of(built) as view:
        if not resume:
            return start.run(study, packages=own, shelves=known, view=view)
        folder = recorded.path if recorded else project.records_folder(built.directory) / built.name
        return start.resume(str(folder), study, packages=own, shelves=known, view=view)


def _is_recorded(name: str) -> bool:
    """Return whether a study of this name, or in this folder, is recorded."""
    paths = (pathlib.Path(name), project.records_folder(STUDIES) / name)
    return any(StudyDirectory(path).exists for path in paths)
