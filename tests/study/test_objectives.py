import math

import pytest

from luthier import metrics
from luthier import study as studies
from luthier.study import is_better

LOSS = metrics.Selector("held_out", "loss")
SERIES = [
    (1, {"held_out/loss": 3.0}),
    (2, {"other/loss": 0.0}),
    (3, {"held_out/loss": 1.0}),
    (4, {"held_out/loss": 2.0}),
]


@pytest.mark.parametrize(
    ("over", "direction", "expected"),
    [
        (studies.Last(), "lower", 2.0),
        (studies.Best(), "lower", 1.0),
        (studies.Best(), "higher", 3.0),
        (studies.MeanOfLast(2), "lower", 1.5),
        (studies.MeanOfLast(9), "lower", 2.0),
    ],
)
def test_a_series_becomes_one_number(over, direction, expected):
    objective = studies.Measured(metrics.Selector("held_out", "loss", direction), over)
    assert objective.value({"series": SERIES}) == expected


def test_what_is_no_number_is_not_the_best():
    series = [(1, {"held_out/loss": math.nan}), (2, {"held_out/loss": 2.0})]
    assert studies.Measured(LOSS, studies.Best()).value({"series": series}) == 2.0
    assert math.isnan(studies.Measured(LOSS, studies.Best()).value({"series": series[:1]}))


def test_a_result_without_the_metric_has_no_value():
    assert studies.Measured(LOSS).value({}) is None
    assert studies.StepTime().value({"facts": {}}) is None


def test_facts_are_read_off_the_result():
    facts = {"step_seconds": 0.5, "device_seconds": 7200.0, "peak_bytes": 8, "parameters": 64}
    found = [
        kind().value({"facts": facts})
        for kind in (studies.StepTime, studies.DeviceHours, studies.PeakBytes, studies.Parameters)
    ]
    assert found == [0.5, 2.0, 8.0, 64.0]
    assert studies.DeviceHours().name == "device_hours"
    assert studies.Parameters("higher").direction == "higher"


def test_an_objective_that_no_evaluation_reports_is_a_problem():
    known = {"held_out": [metrics.Metric("loss")]}
    assert studies.Measured(LOSS).check(known) == []
    assert studies.Measured(LOSS).check(None) == []
    (problem,) = studies.Measured(metrics.Selector("held_out", "lss")).check(known)
    assert "there is no metric named 'lss' here" in str(problem)


def test_better_is_what_the_direction_says_and_nan_never():
    loss = studies.Measured(LOSS)
    assert is_better(loss, 1.0, 2.0)
    assert not is_better(loss, 1.0, 1.0)
    assert is_better(loss, 1.0, math.nan)
    assert not is_better(loss, math.nan, 1.0)
    assert is_better(studies.Parameters("higher"), 2.0, 1.0)


TRAINING = [
    (1, {"loss": 4.0, "tokens": 64, "seconds": 0.5}),
    (2, {"loss": 3.0, "tokens": 128, "seconds": 0.75}),
    (3, {"loss": 1.5, "tokens": 192, "seconds": 1.0}),
    (4, {"loss": 2.0, "tokens": 256, "seconds": 1.25}),
]
RESULT = {"series": SERIES, "training": TRAINING, "facts": {"step_seconds": 0.5}}
HELD_OUT = studies.Measured(LOSS)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (studies.TrainingMetric("loss"), 2.0),
        (studies.TrainingMetric("loss", over=studies.MeanOfLast(2)), 1.75),
        (studies.TrainingMetric("loss", over=studies.Best()), 1.5),
        (studies.TrainingMetric("lss"), None),
        (studies.StepsTo(HELD_OUT, 2.5), 3.0),
        (studies.StepsTo(HELD_OUT, 1.0), 3.0),
        (studies.StepsTo(HELD_OUT, 0.5), math.inf),
        (studies.StepsTo(HELD_OUT, 2.5, "tokens"), 192.0),
        (studies.StepsTo(studies.TrainingMetric("loss"), 3.0, "seconds"), 0.75),
        (studies.StepsTo(studies.Measured(metrics.Selector("absent", "loss")), 1.0), None),
        (
            studies.Expression(
                "-2 * held_out/loss ** 2 + log(step_time) / 1e1",
                {"held_out/loss": HELD_OUT, "step_time": studies.StepTime()},
            ),
            -8 + math.log(0.5) / 10,
        ),
        (
            studies.Expression(
                "step_time/parameters", {"step_time": HELD_OUT, "parameters": studies.StepTime()}
            ),
            4.0,
        ),
        (studies.Expression("1 / (step_time - 0.5)", {"step_time": studies.StepTime()}), math.nan),
        (studies.Expression("(0 - step_time)**0.5", {"step_time": studies.StepTime()}), math.nan),
        (studies.Expression("peak_bytes", {"peak_bytes": studies.PeakBytes()}), None),
    ],
)
def test_objectives_of_a_result_with_training_steps(objective, expected):
    found = objective.value(RESULT)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize(
    ("objective", "line"),
    [
        (
            studies.TrainingMetric("los"),
            "metric: training records no metric named 'los'; did you mean loss?",
        ),
        (
            studies.StepsTo(studies.Measured(metrics.Selector("held_out", "lss")), 1.0),
            "metric.metric: there is no metric named 'lss' here; did you mean loss?",
        ),
        (studies.StepsTo(HELD_OUT, math.inf), "target: inf is not a finite number"),
        (studies.Expression("a/b +", {}), "text: 'a/b +' is not an expression"),
        (
            studies.Expression("step_time", {"step_tim": studies.StepTime()}),
            "text: step_time is not among the terms; did you mean step_tim?",
        ),
    ],
)
def test_mistakes_of_objectives_are_problems_with_a_path(objective, line):
    known = {"held_out": [metrics.Metric("loss")]}
    assert str(objective.check(known)[0]) == line
