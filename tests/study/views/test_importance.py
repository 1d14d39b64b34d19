import math
import time

import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from luthier.study.views.report import FEWEST, MOST, importance

DISTRIBUTIONS = {
    "rate": distribution_to_json(FloatDistribution(1e-4, 1e-1, log=True)),
    "width": distribution_to_json(IntDistribution(3, 8)),
    "kind": distribution_to_json(CategoricalDistribution((0, 1))),
}


def _complete(count, value):
    found = []
    for i in range(count):
        rate, width, kind = 10 ** (-4 + 3 * (i * 0.618 % 1)), 3 + i % 6, i * 7 % 5 % 2
        chosen = {"rate": rate, "width": width, "kind": kind}
        found.append((chosen, value(rate, width)))
    return found


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_what_decides_counts_most(direction):
    sign = 1 if direction == "lower" else -1
    complete = _complete(
        60, lambda rate, width: [sign * ((math.log10(rate) + 3) ** 2 + 0.01 * width)]
    )
    shares, count = importance(complete, DISTRIBUTIONS, [direction])
    assert count == 60
    assert next(iter(shares)) == "rate"
    assert shares["rate"] > 0.5
    assert sum(shares.values()) == pytest.approx(1.0)


def test_few_settings_give_no_importance():
    complete = _complete(FEWEST - 1, lambda rate, width: [rate])
    assert importance(complete, DISTRIBUTIONS, ["lower"]) == ({}, FEWEST - 1)
    assert importance([], {}, ["lower"]) == ({}, 0)


def test_what_has_no_number_or_no_choice_is_left_out():
    complete = _complete(30, lambda rate, width: [rate])
    odd = [({}, [0.0]), ({"rate": 1e-3, "width": 3, "kind": 0}, [math.nan])]
    assert importance([*odd, *complete], DISTRIBUTIONS, ["lower"])[1] == 30


def test_dimensions_may_take_part_in_some_settings_only():
    complete = _complete(60, lambda rate, width: [abs(width - 5)])
    for chosen, _ in complete[::2]:
        del chosen["rate"]
    shares, _ = importance(complete, DISTRIBUTIONS, ["lower"])
    assert set(shares) == {"rate", "width", "kind"}
    assert next(iter(shares)) == "width"


def test_several_objectives_are_judged_by_their_front():
    complete = _complete(
        60, lambda rate, width: [abs(math.log10(rate) + 3), abs(math.log10(rate) + 2.9)]
    )
    shares, _ = importance(complete, DISTRIBUTIONS, ["lower", "lower"])
    assert next(iter(shares)) == "rate"


def test_the_time_is_bounded():
    complete = _complete(20_000, lambda rate, width: [rate, 1 / width])
    start = time.process_time()
    _, count = importance(complete, DISTRIBUTIONS, ["lower", "lower"])
    assert count == MOST
    assert time.process_time() - start < 5.0
