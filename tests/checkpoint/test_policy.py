from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.checkpoint import Checkpoints, SavedCheckpoint
from luthier.metrics import Selector

LOSS = Selector("held_out", "loss")
ACCURACY = Selector("held_out", "accuracy", direction="higher")


def saved(*steps, **values):
    return [SavedCheckpoint(step, {}) for step in steps] + [
        SavedCheckpoint(int(name[1:]), {"held_out/loss": value, "held_out/accuracy": value})
        for name, value in values.items()
    ]


def test_keeps_the_latest():
    assert Checkpoints(keep_latest=2).kept(saved(30, 10, 20)) == {20, 30}
    assert Checkpoints(keep_latest=5).kept(saved(30, 10)) == {10, 30}


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ((100, 200, 300, 400), {200, 400}),
        ((150, 250, 350, 450, 460), {250, 450, 460}),
        ((10, 20, 190), {190}),
    ],
)
def test_keeps_the_first_at_or_after_each_multiple(steps, kept):
    assert Checkpoints(keep_latest=1, keep_every=200).kept(saved(*steps)) == kept


@given(st.lists(st.integers(1, 1000), unique=True, min_size=1), st.integers(1, 3))
def test_what_is_kept_for_good_stays_kept(steps, keep_latest):
    policy = Checkpoints(keep_latest=keep_latest, keep_every=100)
    there: set[int] = set()
    for step in sorted(steps):
        there = policy.kept(saved(*there, step))
    first = {min(s for s in steps if s // 100 == bucket) for bucket in {s // 100 for s in steps}}
    newest = set(sorted(steps)[-keep_latest:])
    assert there == {step for step in first if step >= 100} | newest
    assert len(there) <= policy.most_kept(max(steps)) - 1


def test_keeps_the_best_by_a_typed_metric():
    checkpoints = saved(400, s100=2.0, s200=1.0, s300=1.0)
    assert Checkpoints(keep_latest=1, keep_best=LOSS).kept(checkpoints) == {200, 400}
    assert Checkpoints(keep_latest=1, keep_best=ACCURACY).kept(checkpoints) == {100, 400}


def test_nan_and_missing_metrics_are_never_best():
    assert Checkpoints(keep_best=LOSS).best(saved(10, s20=math.nan)) is None
    assert Checkpoints(keep_best=LOSS).best(saved(10, s20=math.nan, s30=5.0)) == 30
    assert Checkpoints().best(saved(s30=5.0)) is None


def test_counts_what_can_be_on_the_disk():
    assert Checkpoints(keep_latest=2).most_kept() == 3
    assert Checkpoints(keep_latest=1, keep_every=100, keep_best=LOSS).most_kept(1000) == 13


def test_the_last_finite_one_is_kept_whatever_came_after():
    diverged = [SavedCheckpoint(10, {"loss": 2.0}), SavedCheckpoint(20, {"loss": 3.0})]
    diverged += [SavedCheckpoint(step, {"loss": math.nan}) for step in (30, 40, 50)]
    assert Checkpoints(keep_latest=2).kept(diverged) == {20, 50}
    assert Checkpoints(keep_latest=1).kept(diverged) == {20, 50}
