import numpy as np
import pytest

from luthier import graph as graphs
from luthier.recipes.foreign.pax.schedules import learning_rate

RAMP = {"warmup_steps": 4, "decay_start": 6, "decay_end": 16, "min_ratio": 0.1, "max": 1.0}


@pytest.fixture
def rates(node):
    """The rates of some steps, and what was left over."""

    def make(kind, **settings):
        schedule = {"class": f"praxis.schedules.{kind}", "set": settings}
        optimizer = node("Adam", learning_rate=0.5, lr_schedule=schedule)
        found = graphs.build(learning_rate(optimizer))
        steps = (0, 2, 4, 6, 11, 16, 20)
        values = [float(found(step)) if callable(found) else found for step in steps]
        return np.array(values), [one.field for one in optimizer.dump.leftovers]

    return make


CASES = {
    "Constant": ({"value": 0.5}, [0.25] * 7),
    "LinearRampupExponentialDecay": (RAMP, [0, 0.25, 0.5, 0.5, 0.5 * 0.1**0.5, 0.05, 0.05]),
    "LinearRampupCosineDecay": (RAMP, [0, 0.25, 0.5, 0.5, 0.275, 0.05, 0.05]),
    "LinearRampupPolynomialDecay": (
        {**RAMP, "power": 1},
        [0, 0.25, 0.5, 0.5, 0.275, 0.05, 0.05],
    ),
    "LinearRampupSqrtDecay": (
        {"peak": 1.0, "warmup_steps": 4},
        [0, 0.25, 0.5, *(0.5 * np.sqrt(4 / np.array([6, 11, 16, 20])))],
    ),
    "Cosine": (
        {"initial_value": 1.0, "final_value": 0.0, "total_steps": 4},
        [0.5, 0.25, 0, 0, 0, 0, 0],
    ),
    "PiecewiseConstant": (
        {"boundaries": [4, 11], "values": [1.0, 0.1, 0.01]},
        [0.5, 0.5, 0.05, 0.05, 0.005, 0.005, 0.005],
    ),
    "Linear": ({"start": [0, 1.0], "limit": [4, 0.5]}, [0.5, 0.375, *[0.25] * 5]),
    "Exponential": (
        {"start": [0, 1.0], "limit": [4, 0.25]},
        [0.5, 0.25, *[0.125] * 5],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_rates_are_those_of_praxis(rates, kind):
    settings, expected = CASES[kind]
    found, left = rates(kind, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert not left


def test_a_fall_from_the_first_step_on(rates):
    falling = RAMP | {"warmup_steps": 0, "decay_start": 0, "decay_end": 10}
    found, _ = rates("LinearRampupCosineDecay", **falling)
    assert found[0] == 0.5
    assert found[-1] == pytest.approx(0.05)


def test_an_unknown_schedule_leaves_the_rate(rates):
    found, left = rates("CycleSchedule", schedules=[])
    assert set(found) == {0.5}
    assert left == ["lr_schedule"]


def test_without_a_schedule_there_is_the_rate(node):
    assert learning_rate(node("Adam", learning_rate=0.5, lr_schedule=None)) == 0.5
