import importlib.machinery
import sys
import types

import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.errors import BadInput
from luthier.study import Editing

EDITING = Editing(packages=toys.PACKAGES)


def _lines(*args, **settings):
    with pytest.raises(BadInput) as caught:
        studies.check_study(toys.make_study(*args, **settings), EDITING)
    return [str(problem) for problem in caught.value.problems]


def test_a_good_study_is_returned_built():
    assert studies.check_study(toys.make_study(), EDITING).name == "toy"


def test_the_metrics_of_an_experiment_come_from_its_task():
    found = studies.evaluations_of(fdl.Config(toys.Toy))
    assert [metric.name for metric in found["held_out"]] == ["loss", "accuracy"]
    assert studies.evaluations_of(fdl.Config(toys.Momentum)) is None


def test_an_objective_that_no_evaluation_produces_is_reported_before_anything_starts():
    objectives = [studies.objective("held_out/lss", None)]
    assert _lines(objectives=objectives) == [
        "objectives[0].metric: there is no metric named 'lss' here; did you mean loss?"
    ]
    assert _lines(objectives=[]) == [
        "objectives: there is no objective; name a metric: --objective EVALUATION/METRIC"
    ]


def test_a_pruner_needs_one_objective_that_evaluations_report():
    pruner = fdl.Config(optuna.pruners.MedianPruner)
    both = [studies.objective("held_out/loss", None), fdl.Config(studies.StepTime)]
    assert _lines(pruner=pruner, objectives=both) == [
        "pruner: a pruner compares trials by one objective, and there are several; set pruner=None"
    ]
    assert _lines(pruner=pruner, objectives=both[1:]) == [
        "pruner: a pruner needs an objective that evaluations report, and step_seconds is not "
        "one; set "
        "pruner=None"
    ]


def test_samplers_that_cannot_be_driven_are_rejected():
    grid = fdl.Config(optuna.samplers.GridSampler, {"rate": [1]})
    study = toys.make_study()
    study.sampler = grid
    with pytest.raises(BadInput) as caught:
        studies.check_study(study, EDITING)
    assert (
        str(caught.value)
        == "sampler: Optuna's grid stops its study from within; use luthier.study.Grid"
    )


def test_a_study_without_end_is_rejected():
    assert _lines(budget=fdl.Config(studies.Budget, trials=None)) == [
        "budget: has no limit; set budget.trials, budget.wall_seconds or budget.device_hours"
    ]


def test_repeating_a_setting_needs_a_seed():
    space = studies.Space({"rate": studies.Log(1e-4, 1)})
    base = fdl.Config(toys.Momentum)
    (line,) = _lines(seeds=2, base=base, space=space)
    assert line.startswith("seeds: the experiment has no seed, so its settings cannot be repeated")


MEDIAN = optuna.pruners.MedianPruner


@pytest.mark.parametrize(
    ("pruner", "words", "line"),
    [
        (
            fdl.Config(MEDIAN),
            ("evaluations.held_out.every=None", "reset:evaluations.held_out.num_batches"),
            "pruner: a pruner has nothing to judge: held_out is evaluated only at the end; set "
            "base.evaluations.held_out.every=Steps(N)",
        ),
        (
            fdl.Config(MEDIAN),
            ("evaluations.held_out.every.count=10",),
            "pruner: held_out is evaluated only at the end: every 10 of 10 steps; set "
            "base.evaluations.held_out.every=Steps(N) with N below 10",
        ),
        (
            fdl.Config(MEDIAN),
            ("training.steps=2",),
            "pruner: held_out is evaluated only at the end: every 5 of 2 steps; set "
            "base.evaluations.held_out.every=Steps(1)",
        ),
        (
            fdl.Config(MEDIAN, n_warmup_steps=6),
            (),
            "pruner.n_warmup_steps: 6 is beyond the last evaluation before the end, at step 5 of "
            "10; set it to 5 or less, or evaluate more often",
        ),
        (
            fdl.Config(
                optuna.pruners.PatientPruner,
                fdl.Config(optuna.pruners.SuccessiveHalvingPruner, min_resource=8),
                patience=1,
            ),
            (),
            "pruner.wrapped_pruner.min_resource: 8 is beyond the last evaluation before the end, "
            "at step 5 of 10; set it to 5 or less, or evaluate more often",
        ),
        (fdl.Config(MEDIAN, n_warmup_steps=5), (), None),
    ],
)
def test_a_pruner_that_would_never_be_asked_is_rejected(pruner, words, line):
    shared = ("training.steps=10", "evaluations.held_out.every.count=5")
    study = toys.make_study(
        base=graphs.apply(graphs.resolve("configs.lm.quickstart"), [*shared, *words]),
        space=studies.Space({"optimizer.learning_rate.peak": studies.Log(1e-4, 1e-2)}),
        objectives=[studies.objective("held_out/nats_per_byte", None)],
        pruner=pruner,
    )
    if line is None:
        assert studies.check_study(study, EDITING)
        return
    with pytest.raises(BadInput) as caught:
        studies.check_study(study, EDITING)
    assert str(caught.value) == line


def test_what_is_not_a_sampler_is_rejected():
    study = toys.make_study()
    study.sampler = fdl.Config(MEDIAN)
    with pytest.raises(BadInput) as caught:
        studies.check_study(study, EDITING)
    assert str(caught.value) == (
        "sampler: MedianPruner is not a sampler; use one of optuna.samplers, a subclass of "
        "optuna.samplers.BaseSampler, or luthier.study.Grid, described by fdl.Config"
    )


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_sampler_whose_package_is_absent_is_rejected_with_the_command(monkeypatch, is_installed):
    found = types.ModuleType("cmaes")
    found.__spec__ = importlib.machinery.ModuleSpec("cmaes", None)
    monkeypatch.setitem(sys.modules, "cmaes", found if is_installed else None)
    study = toys.make_study("cma-es")
    if is_installed:
        assert studies.check_study(study, EDITING)
        return
    with pytest.raises(BadInput) as caught:
        studies.check_study(study, EDITING)
    assert str(caught.value) == "sampler: needs cmaes; pip install cmaes"


def test_a_pruner_of_rungs_that_vary_or_are_known_only_with_the_data_is_accepted():
    base = graphs.apply(
        graphs.resolve("configs.lm.quickstart"),
        ["training.steps=10", "evaluations.held_out.every.count=5"],
    )
    given = {
        "objectives": [studies.objective("held_out/nats_per_byte", None)],
        "pruner": fdl.Config(MEDIAN, n_warmup_steps=6),
    }
    rate = {"optimizer.learning_rate.peak": studies.Log(1e-4, 1e-2)}
    steps = studies.Space({"training.steps": studies.Ordinal([10, 100])})
    assert studies.check_study(toys.make_study(base=base, space=steps, **given), EDITING)
    data = graphs.apply(base, ["evaluations.held_out.every:=luthier.durations.Epochs(0.5)"])
    study = toys.make_study(base=data, space=studies.Space(rate), **given)
    assert studies.check_study(study, EDITING)
