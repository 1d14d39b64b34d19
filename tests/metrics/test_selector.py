from __future__ import annotations

import math

import pytest

from luthier.errors import BadInput
from luthier.metrics import ACCURACY, LOSS, NATS_PER_BYTE, Selector

EVALUATIONS = {"held_out": (LOSS, NATS_PER_BYTE, ACCURACY), "train": (LOSS,)}


def test_a_good_choice_has_no_problems():
    selector = Selector("held_out", "nats_per_byte")
    assert selector.check(EVALUATIONS) == []
    assert selector.find(EVALUATIONS) is NATS_PER_BYTE
    assert selector.name == "held_out/nats_per_byte"


@pytest.mark.parametrize(
    ("selector", "path", "nearest"),
    [
        (Selector("heldout", "loss"), "evaluation", ["held_out"]),
        (Selector("held_out", "nats_per_bite"), "metric", ["nats_per_byte"]),
        (Selector("train", "accuracy"), "metric", []),
        (Selector("held_out", "accuracy"), "direction", []),
    ],
)
def test_a_bad_choice_names_what_is_wrong_and_the_nearest(selector, path, nearest):
    (problem,) = selector.check(EVALUATIONS)
    assert problem.path == path
    assert list(problem.nearest)[:1] == nearest
    with pytest.raises(BadInput, match=problem.what.split()[0]):
        selector.find(EVALUATIONS)


def test_better_follows_the_direction_strictly():
    lower, higher = Selector("a", "b"), Selector("a", "b", direction="higher")
    assert lower.better(1, 2)
    assert higher.better(2, 1)
    assert not lower.better(1, 1)
    assert not higher.better(1, 1)


def test_nan_is_worse_than_anything():
    selector = Selector("a", "b")
    assert selector.better(1e9, math.nan)
    assert not selector.better(math.nan, 1e9)
    assert not selector.better(math.nan, math.nan)


def test_selects_the_value_that_decides():
    values = {"held_out": {LOSS: 2.0, NATS_PER_BYTE: 1.5}}
    assert Selector("held_out", "nats_per_byte").select(values) == 1.5
    assert Selector("held_out", "accuracy").select(values) is None
    assert Selector("train", "loss").select(values) is None
