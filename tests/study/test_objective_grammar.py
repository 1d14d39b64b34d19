import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import metrics
from luthier import study as studies
from luthier.errors import BadInput

KNOWN = {"held_out": [metrics.Metric("accuracy", "higher"), metrics.Metric("loss")]}
LOSS = studies.Measured(metrics.Selector("held_out", "loss"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("held_out/loss", LOSS),
        ("train/loss:mean100", studies.TrainingMetric("loss", over=studies.MeanOfLast(100))),
        ("train/accuracy", studies.TrainingMetric("accuracy", "higher")),
        ("step_time", studies.StepTime()),
        ("steps_to( held_out/loss <= 2.0 )", studies.StepsTo(LOSS, 2.0)),
        (
            "tokens_to(train/loss<=2)",
            studies.StepsTo(studies.TrainingMetric("loss"), 2.0, "tokens"),
        ),
        (
            "held_out/loss + 0.1 * step_time",
            studies.Expression(
                "held_out/loss + 0.1 * step_time",
                {"held_out/loss": LOSS, "step_time": studies.StepTime()},
            ),
        ),
        (
            "maximize(held_out/accuracy - 1e-9*parameters)",
            studies.Expression(
                "held_out/accuracy - 1e-9*parameters",
                {
                    "held_out/accuracy": studies.Measured(
                        metrics.Selector("held_out", "accuracy", "higher")
                    ),
                    "parameters": studies.Parameters(),
                },
                "higher",
            ),
        ),
    ],
)
def test_objectives_are_read(word, expected):
    found = graphs.build(studies.objective(word, KNOWN))
    assert found == expected
    assert found.check(KNOWN) == []


REMEDY = (
    "; write EVALUATION/METRIC or train/METRIC, :best or :mean3 behind it, step_time, "
    "device_hours, peak_bytes, parameters, steps_to(EVALUATION/METRIC<=VALUE), or an expression "
    "of them"
)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (
            "loss",
            "loss is not EVALUATION/METRIC, train/METRIC or one of step_time, device_hours, "
            "peak_bytes, parameters",
        ),
        ("held_out/loss:worst", ":worst is not :last, :best or :mean and a number"),
        ("held_out/loss:mean", ":mean is not :last, :best or :mean and a number"),
        ("a/b:mean0", ":mean0 is not :last, :best or :mean and a number"),
        ("held_out/loss:mean²", ":mean² is not :last, :best or :mean and a number"),
        ("3 + 4", "it has no metric"),
        ("held_out/loss +", "'held_out/loss +' is not an expression"),
        ("-" * 5000 + "step_time", "'" + "-" * 5000 + "step_time' is not an expression"),
        (
            "open(step_time)",
            "there is no function open; there are min, max, abs, sqrt, exp, log",
        ),
        ("max(step_time)", "max takes two arguments or more, not 1"),
        (
            "step_time.real",
            "an expression has numbers, metrics, + - * / **, parentheses, min, max, abs, sqrt, "
            "exp, log and nothing else",
        ),
        ("steps_to(held_out/loss)", "it needs one <= or >="),
        ("steps_to(held_out/loss<=low)", "'low' is not a number, as 2.5, 50M or 8GiB"),
        (
            "steps_to(step_time<=1)",
            "steps_to takes EVALUATION/METRIC or train/METRIC, not 'step_time'",
        ),
    ],
)
def test_other_texts_are_rejected_with_the_reason(word, reason):
    with pytest.raises(BadInput) as caught:
        studies.objective(word, KNOWN)
    assert str(caught.value) == f"--objective: {word!r} is not an objective: {reason}{REMEDY}"


@pytest.mark.parametrize(
    ("word", "line", "remedy"),
    [
        (
            "held_out/loss - held_out/accuracy",
            "--objective: held_out/accuracy is better higher, so that the better direction is not "
            "known [set by held_out/loss - held_out/accuracy]; write {} or "
            "minimize(held_out/loss - held_out/accuracy)",
            "maximize(held_out/loss - held_out/accuracy)",
        ),
        (
            "steps_to(held_out/accuracy<=0.9)",
            "--objective: held_out/accuracy is better higher [set by "
            "steps_to(held_out/accuracy<=0.9)]; write {}",
            "steps_to(held_out/accuracy>=0.9)",
        ),
    ],
)
def test_an_unclear_direction_is_rejected_with_what_to_write(word, line, remedy):
    with pytest.raises(BadInput) as caught:
        studies.objective(word, KNOWN)
    assert str(caught.value) == line.format(remedy)
    assert graphs.build(studies.objective(remedy, KNOWN)).check(KNOWN) == []


@pytest.mark.parametrize(
    ("word", "name", "bound"),
    [
        ("peak_bytes<=8GiB", "peak_bytes<=8GiB", 8 * 2**30),
        ("parameters <= 50M", "parameters<=50000000", 5e7),
        ("held_out/accuracy>=0.9", "held_out/accuracy>=0.9", 0.9),
        ("2*step_time<=1e-1", "2*step_time<=0.1", 0.1),
    ],
)
def test_constraints_are_read(word, name, bound):
    found = fdl.build(studies.constraint(word, KNOWN))
    assert (found.name, found.bound) == (name, bound)
    assert found.check(KNOWN) == []
    assert [found.violation(bound), found.violation(float("nan"))] == [0.0, float("inf")]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("peak_bytes<8GiB", "it needs one <= or >="),
        ("peak_bytes<=8GiX", "'8GiX' is not a number, as 2.5, 50M or 8GiB"),
        (
            "peak_byts<=8",
            "peak_byts is not EVALUATION/METRIC, train/METRIC or one of step_time, device_hours, "
            "peak_bytes, parameters",
        ),
    ],
)
def test_other_constraints_are_rejected(word, reason):
    with pytest.raises(BadInput) as caught:
        studies.constraint(word, KNOWN)
    assert str(caught.value) == (
        f"--constraint: {word!r} is not a constraint: {reason}; write 'peak_bytes<=8GiB' or "
        "'EVALUATION/METRIC>=0.9'"
    )
