import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import sweep
from luthier.errors import BadInput
from luthier.sweep import checks, samplers
from luthier.sweep.space.editing import Editing

EDITING = Editing(packages=toys.PACKAGES)


def _lines(*args, **settings):
    with pytest.raises(BadInput) as caught:
        checks.check_study(toys.make_study(*args, **settings), EDITING)
    return [str(problem) for problem in caught.value.problems]


def test_a_good_study_is_returned_built():
    assert checks.check_study(toys.make_study(), EDITING).name == "toy"


def test_the_metrics_of_an_experiment_come_from_its_task():
    found = checks.evaluations_of(fdl.Config(toys.Toy))
    assert [metric.name for metric in found["held_out"]] == ["loss", "accuracy"]
    assert checks.evaluations_of(fdl.Config(toys.Momentum)) is None


def test_an_objective_that_no_evaluation_produces_is_told_before_anything_starts():
    objectives = [samplers.objective("held_out/lss", None)]
    assert _lines(objectives=objectives) == [
        "objectives[0].metric: there is no metric named 'lss' here; did you mean loss?; there are: "
        "accuracy, loss"
    ]
    assert _lines(objectives=[]) == [
        "objectives: there is no objective; name a metric: --objective EVALUATION/METRIC"
    ]


def test_a_pruner_needs_one_objective_that_evaluations_tell():
    pruner = fdl.Config(optuna.pruners.MedianPruner)
    both = [samplers.objective("held_out/loss", None), fdl.Config(sweep.StepTime)]
    assert _lines(pruner=pruner, objectives=both) == [
        "pruner: a pruner compares trials by one objective, and there are several; set pruner=None"
    ]
    assert _lines(pruner=pruner, objectives=both[1:]) == [
        "pruner: a pruner needs an objective that evaluations tell, and step_seconds is none; set "
        "pruner=None"
    ]


def test_samplers_that_cannot_be_driven_are_told():
    grid = fdl.Config(optuna.samplers.GridSampler, {"rate": [1]})
    study = toys.make_study()
    study.sampler = grid
    with pytest.raises(BadInput) as caught:
        checks.check_study(study, EDITING)
    assert (
        str(caught.value)
        == "sampler: Optuna's grid stops its study from within; use luthier.sweep.Grid"
    )


def test_a_study_without_end_is_told():
    assert _lines(budget=fdl.Config(sweep.Budget, trials=None)) == [
        "budget: has no limit; set budget.trials, budget.wall_seconds or budget.device_hours"
    ]


def test_repeating_a_setting_needs_a_seed():
    space = sweep.Space({"rate": sweep.Log(1e-4, 1)})
    base = fdl.Config(toys.Momentum)
    (line,) = _lines(seeds=2, base=base, space=space)
    assert line.startswith("seeds: the experiment has no seed, so its settings cannot be repeated")
