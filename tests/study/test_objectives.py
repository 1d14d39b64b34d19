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
    assert objective.at_report(SERIES[:1]) == 3.0


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
    assert studies.StepTime().at_report(SERIES) is None


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
